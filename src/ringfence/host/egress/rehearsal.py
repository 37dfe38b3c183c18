"""What a worker does, done once by the template before it forks: a box of nobody asks a server of nobody, all in this process.

What runs for the first time makes the interpreter specialise code and the TLS library look its algorithms up, 3 MB and some
milliseconds that each worker would have for itself, and shares when its template has them. Both ends are socket pairs. It must
never listen, dial, or meet a rule, a name or a secret of anybody.
"""

from __future__ import annotations

import asyncio
import base64
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ringfence.host.egress import configured, streams
from ringfence.host.egress.assembly import Assembly
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.counting import Counting
from ringfence.host.egress.entrance import Entrance
from ringfence.host.egress.holding import Holding
from ringfence.host.egress.hotline import Hotline
from ringfence.host.egress.limits import Flow
from ringfence.host.egress.resolver import Resolver
from ringfence.host.egress.tickets import Ticket, Tickets
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.upstream import Dialler
from ringfence.host.egress.works import Desk, Works
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.shapes import SHAPES

HOST = "rehearsal.test"
CONNECTIONS, REQUESTS = 3, 20  # the interpreter specialises a function at its eighth call, and again when it was wrong
SECONDS = 5.0  # it takes 0.1
_ASKS = (
    "GET / HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nAccept: */*\r\n\r\n",
    "POST /{length} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}",
)
_PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
_CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
)


def rehearse() -> bool:
    """False: not to its end, and each worker warms itself."""
    with suppress(OSError, EOFError), asyncio.Runner() as runner:
        runner.run(_timed())
        return True
    return False


async def _timed() -> None:
    async with asyncio.timeout(SECONDS):
        await _Stage().play()


def _clock() -> float:
    return time.time()  # noqa: TID251 - certificates are believed by the real date


class _Inward(Dialler):
    """Its servers are at the other end of a pair."""

    def use(self, stage: _Stage) -> None:
        self._stage = stage

    async def _socket(self, host: str, port: int) -> socket.socket:
        return self._stage.server()


class _Stage:
    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        self._pem = _authority(key)
        binding = Binding("binding", "credential", HOST)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        said = Configuration(
            "", (EgressRule("rule", Verdict.ALLOW, HOST),), (binding,), self._pem, Secret(private), self._pem, ()
        )
        self._configuration = configured.from_text("".join(configured.parts(configured.as_text(said))))
        self._token = placeholders.make(SHAPES["github"], bytes(placeholders.RANDOM_BYTES))
        self._works = self._assembled()
        self._desk = self._opened(binding)

    def _assembled(self) -> Works:
        trust, clock = Trust(), time.monotonic
        assembly = Assembly(trust, lambda: datetime.fromtimestamp(_clock(), UTC), clock, lambda _: None)
        works = assembly.works(self._configuration)
        self._dialler = _Inward(self._configuration, Resolver((), clock), trust.context(self._pem))
        self._dialler.use(self)
        return replace(works, dialler=self._dialler)

    def _opened(self, binding: Binding) -> Desk:
        bounds = self._configuration.bounds
        tickets = Tickets(_clock)
        digest = placeholders.digest(self._token)
        tickets.replace("invocation", [Ticket(digest, binding.credential, binding.id, _clock() + 60, None)])
        self._hotline = Hotline(self._heard, Holding(time.monotonic), bounds.hold)
        return Desk(self._hotline, tickets, Flow(bounds, time.monotonic), Counting(), bounds)

    def _heard(self, said: Mapping[str, Any]) -> bool:
        """The server of nobody, which gives what it is asked for."""
        number, value = said.get("n"), base64.b64encode(b"the value of a credential of nobody").decode()
        answer = {"n": number, "ok": True, "row": "row", "value": value, "version": 1, "keep": None}
        if number is not None:
            asyncio.get_running_loop().call_soon(self._hotline.answered, answer, ())
        return True

    # --- the play --------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for _ in range(CONNECTIONS):
                box, ours = socket.socketpair()
                ours.setblocking(False)
                entrance = Entrance(
                    self._desk, lambda: self._works, ours, port=1, invocation="invocation", destination=None
                )
                running = group.create_task(entrance.run())
                await self._asking(box)
                await running
            self._dialler.close()

    async def _asking(self, box: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=box)
        writer.write(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(Trust().context(self._pem), server_hostname=HOST)
        for number in range(REQUESTS):
            ask = _ASKS[number % 2].format(host=HOST, token=self._token, length=number)
            writer.write(ask.encode())
            await reader.readuntil(b"hello" if number % 2 == 0 else b"0\r\n\r\n")
        streams.abort(writer)

    def server(self) -> socket.socket:
        """A connection to it."""
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        self._group.create_task(self._serve(far))
        return near

    async def _serve(self, far: socket.socket) -> None:
        """Until its other end is closed."""
        reader, writer = await streams.accepted(far, lambda: None, self._works.minter.context(HOST))
        with suppress(OSError, EOFError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    await reader.readexactly(2)
                writer.write(_CHUNKED if head.startswith(b"POST") else _PLAIN)
        streams.abort(writer)
        await asyncio.sleep(0)


def _authority(key: ec.EllipticCurvePrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.fromtimestamp(_clock(), UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(1))
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
