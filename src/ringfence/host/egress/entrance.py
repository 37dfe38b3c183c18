"""A fresh connection from the box: what it is for, before anything is answered in its name.

On an invocation's own port it says so by CONNECT or an absolute target; on the transparent one by the address it was meant for,
which the synthetic resolver gave out, or by SNI. CONNECT and SNI must agree, and Host with them later. The socket is read with
MSG_PEEK and taken byte by exact byte until TLS begins, so that the handshake finds all of its own.

It must never dial before policy has said yes, nor take the name of a server from the server.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from ringfence.host.egress import distrust, head, judging, streams, tunnel
from ringfence.host.egress.arrivals import peeked
from ringfence.host.egress.asking import dialled, held
from ringfence.host.egress.client import Client, Left
from ringfence.host.egress.connection import Current, Requests, WorksNow
from ringfence.host.egress.judging import Origin
from ringfence.host.egress.limits import Deadline
from ringfence.host.egress.needs import Exhausted, Greeting, NoAuthority, Traffic
from ringfence.host.egress.refusals import FINDINGS, Code, Refusal, Where, verdict
from ringfence.host.egress.works import Desk, Works
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.authority import HTTPS
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Mode, Verdict

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_SEALED = "the server cannot read this user's CA, as when its vault is sealed: no TLS can be looked into"
_TELL = "tell the operator: ringfence vault status"
_TLS = b"\x16"  # a handshake record: RFC 8446 section 5.1
_CONNECT = b"CONNECT "
Destination = Callable[[socket.socket], tuple[str, int]]


class Entrance:
    """One connection, whole: `run` ends with it. `cut` ends it at once. `destination`: of a transparent connection."""

    def __init__(
        self,
        desk: Desk,
        works: WorksNow,
        sock: socket.socket,
        *,
        port: int,
        invocation: str,
        destination: Destination | None,
    ) -> None:
        self._desk = desk
        self._works = works
        self._sock = sock
        self._box = Client(desk.bounds)
        self._destination = destination
        self._where = Where()
        self._port = 0  # of the destination
        self._answerable = destination is None  # in clear, before a tunnel is said to be there
        self.port = port
        self.invocation = invocation
        self.requests: Requests | None = None
        self.current = Current()

    async def run(self) -> None:
        """Never raises but for cancellation."""
        try:
            await (self._explicit() if self._destination is None else self._transparent(self._destination))
        except Refusal as refusal:
            await self._refuse(refusal)
        except (OSError, ValueError):  # gone, late, no TLS, no name: nothing can be said to it
            self._box.cut()
        finally:
            if not self._box.attached:
                self._sock.close()

    def cut(self) -> None:
        """With a reset. A socket that is still looked at is shut instead: its task then sees the end of it."""
        if self._box.attached:
            self._box.cut()
        else:
            with suppress(OSError):  # the box was faster
                self._sock.shutdown(socket.SHUT_RDWR)

    # --- one's own port ------------------------------------------------------------------------------------------

    async def _explicit(self) -> None:
        async with asyncio.timeout(self._desk.bounds.head):
            raw, ahead = await self._connect_head()
        if raw is None:
            self._box.attach(await streams.accepted(self._sock, self._box.gone), ahead)
            await self._serve(None)
            return
        asked = head.request(raw, self._desk.bounds)
        self._where = Where("", asked.method, "")
        host, port = judging.destination(asked.target)
        self._where, self._port = Where(host, asked.method, ""), port
        judging.agree_connect(host, port, asked)
        if any(placeholders.find(value) for name, value in asked.fields if not name.startswith(b"proxy-")):
            raise Refusal(Code.MISPLACED, "a stand-in stands in a CONNECT, which goes to no server", close=True)
        await self._tunnelled(Origin(host, port, tls=True))

    async def _connect_head(self) -> tuple[bytes | None, bytes]:
        """(head of a CONNECT, b""), with nothing taken behind it. (None, what was taken): it is another request."""
        got = bytearray()
        while True:
            data = await peeked(self._sock, streams.READ)
            if not data:
                raise Left
            begun = (bytes(got[: len(_CONNECT)]) + data)[: len(_CONNECT)]
            if not _CONNECT.startswith(begun):
                return None, bytes(got)
            looked = len(got)
            overlap = bytes(got[-(len(head.END) - 1) :])  # a head that comes byte by byte is not read over and over
            at = (overlap + data).find(head.END)
            took = len(data) if at < 0 else at + len(head.END) - len(overlap)
            got += self._sock.recv(took)
            if at >= 0:
                return bytes(got), b""
            head.early(got, self._desk.bounds, looked)

    async def _tunnelled(self, origin: Origin) -> None:
        """A name that is denied is told so inside of TLS, where the tool of the box shows it; an address is told at once."""
        works, plainly = self._works(), Origin(origin.host, origin.port, tls=False)
        decision = works.policy.connection(origin)
        denied = decision.answer is Verdict.DENY
        if denied and origin.literal and works.policy.connection(plainly).answer is Verdict.DENY:
            raise judging.refused(decision)
        if not denied and decision.mode is Mode.PASSTHROUGH:
            await self._passed(works, origin, decision, None)
            return
        context = self._minted(works, origin.host, denied=denied)
        await self._establish()
        if await self._first_byte() == _TLS:
            self._agree(origin, await works.peek(self._sock, self._desk.bounds.hello), named=True)
            await self._intercepted(origin, context)
        else:
            self._box.attach(await streams.accepted(self._sock, self._box.gone))
            await self._serve(plainly)

    async def _establish(self) -> None:
        self._answerable = False
        await asyncio.get_running_loop().sock_sendall(self._sock, _ESTABLISHED)

    # --- transparent ---------------------------------------------------------------------------------------------

    async def _transparent(self, destination: Destination) -> None:
        address, self._port = destination(self._sock)
        works = self._works()
        name = works.names.name_of(address)
        self._where = Where(name or address)
        if await self._first_byte() != _TLS:
            self._box.attach(await streams.accepted(self._sock, self._box.gone))
            await self._serve(Origin(name or address, self._port, tls=False))
            return
        greeting = await works.peek(self._sock, self._desk.bounds.hello)
        host = name or (greeting.name if self._port == HTTPS else None)
        if host is None:
            raise Refusal(Code.DENIED, "a TLS connection that names no host", close=True)
        self._where, origin = Where(host), Origin(host, self._port, tls=True)
        self._agree(origin, greeting, named=name is not None)
        decision = works.policy.connection(origin)
        if decision.answer is not Verdict.DENY and decision.mode is Mode.PASSTHROUGH:
            await self._passed(works, origin, decision, greeting)
        else:
            denied = decision.answer is Verdict.DENY
            await self._intercepted(origin, self._minted(works, host, denied=denied))

    # --- both ----------------------------------------------------------------------------------------------------

    async def _first_byte(self) -> bytes:
        async with asyncio.timeout(self._desk.bounds.hello):
            data = await peeked(self._sock, 1)
        if not data:
            raise Left
        return data

    def _agree(self, origin: Origin, greeting: Greeting, *, named: bool) -> None:
        """`named`: the connection was for this name before TLS began, so that SNI may be missing. Refusal: it names another.
        What it hides (ECH) is of no use where TLS ends here: the leaf is for the outer name, and Host has to agree with it.
        Browsers send a meaningless one with every hello (RFC 9849 6.2)."""
        if not (greeting.name == origin.host or (named and greeting.name is None)):
            raise Refusal(Code.AUTHORITY, "SNI names another host than the connection", close=True)

    def _open(self, greeting: Greeting) -> None:
        """Of one that is passed on unread. Refusal."""
        if greeting.ech:
            raise Refusal(Code.AUTHORITY, "what is passed through by its SNI must hide no other name (ECH)", close=True)

    def _minted(self, works: Works, host: str, *, denied: bool) -> ssl.SSLContext:
        try:
            return works.minter.context(host, denied=denied)
        except Exhausted:
            raise Refusal(Code.TOO_MANY, "too many new names in a minute", status=403, close=True) from None
        except NoAuthority:
            raise Refusal(Code.CREDENTIAL, _SEALED, status=503, close=True, remedy=_TELL) from None

    async def _intercepted(self, origin: Origin, context: ssl.SSLContext) -> None:
        try:
            opened = await streams.accepted(self._sock, self._box.gone, context, seconds=self._desk.bounds.hello)
        except OSError as error:
            self._distrusted(origin, distrust.in_handshake(error))
            raise
        self._box.attach(opened)
        requests = await self._serve(origin)
        self._distrusted(origin, distrust.after_it(requests.trouble, silent=requests.silent))

    def _distrusted(self, origin: Origin, how: str | None) -> None:
        """What people are told when a tool of the box does not take the certificates that it is shown."""
        if how is not None:
            self._desk.findings.tell(distrust.FINDING, self.invocation, {"host": origin.host, "how": how})

    async def _serve(self, origin: Origin | None) -> Requests:
        requests = self.requests = Requests(self._desk, self._works, self._box, self.invocation, origin)
        self.current = requests.current
        await requests.serve()
        return requests

    async def _passed(self, works: Works, origin: Origin, decision: Decision, greeting: Greeting | None) -> None:
        """Bytes as they are, by SNI. `greeting`: None, it is still to come, behind the answer to CONNECT."""
        rule = decision.rule
        assert rule is not None  # nobody passes through without a rule
        self._desk.flow.begin()
        self.current = Current(origin, passthrough=True)
        if greeting is not None:
            self._open(greeting)
        if decision.answer is Verdict.ASK:
            if decision.missing is None:
                raise judging.refused(decision)  # nobody is asked about more than this
            await held(self._desk.kernel, self.invocation, decision.missing)
        reader, writer = await dialled(works, origin, tls=False)
        try:
            if greeting is None:
                await self._establish()
                if await self._first_byte() != _TLS:
                    raise Refusal(Code.DENIED, "what is passed through is TLS", close=True)
                hello = await works.peek(self._sock, self._desk.bounds.hello)
                self._agree(origin, hello, named=origin.literal)
                self._open(hello)
            self._box.attach(await streams.accepted(self._sock, self._box.gone))
            await self._spliced(rule, origin, reader, writer)
        finally:
            streams.abort(writer)

    async def _spliced(
        self, rule: EgressRule, origin: Origin, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        box = tunnel.End(self._box.reader, self._box.writer, rule.up_bytes)
        server = tunnel.End(reader, writer, rule.down_bytes)
        deadline = Deadline(self._desk.bounds)
        try:
            async with deadline:
                await tunnel.splice(box, server, deadline, self._desk.bounds.quiet)
        finally:
            deadline.end()
            self._count("allow", rule.id, box.moved, server.moved)
            await self._box.close(linger=False)

    # --- no ------------------------------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal) -> None:
        self._count(verdict(refusal), str(refusal.code), 0, 0)
        if refusal.code in FINDINGS:
            self._desk.findings.tell(str(refusal.code), self.invocation, {"host": self._where.host})
        if not self._answerable:
            self._box.cut()
            return
        try:
            if not self._box.attached:
                self._box.attach(await streams.accepted(self._sock, self._box.gone))
            await self._box.refuse(refusal, self._where, close=True)
            await self._box.close(linger=True)
        except OSError:
            self._box.cut()

    def _count(self, verdict: str, reason: str, up: int, down: int) -> None:
        where = self._where
        item = Traffic(where.host, self._port, verdict, reason, self.invocation, where.method, 1, up, down)
        self._desk.counting.add(item)
