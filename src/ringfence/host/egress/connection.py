"""The life of one connection from the box after its destination is known: request after request, each judged for itself.

A kept connection is no permission: the policy in force when a request comes decides. It must never let the next request ride
on the decision of the one before, nor answer in clear what came in TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import h11

from ringfence.host.egress import gateway, judging, told, websocket
from ringfence.host.egress.asked import Asked
from ringfence.host.egress.asking import dialled
from ringfence.host.egress.client import Client, Left
from ringfence.host.egress.exchange import Exchange, Linking
from ringfence.host.egress.head import RequestHead
from ringfence.host.egress.judging import Judged, Origin
from ringfence.host.egress.limits import Deadline
from ringfence.host.egress.needs import Traffic
from ringfence.host.egress.refusals import FINDINGS, Code, Refusal, Where, verdict
from ringfence.host.egress.works import Desk, Link, Works
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Verdict

WorksNow = Callable[[], Works]


@dataclass(slots=True)
class Current:
    """What the connection is for now, so that a reload finds who has lost permission. `idle_since`: the loop's time since
    when it waits for a next request; 0: it does not."""

    origin: Origin | None = None
    passthrough: bool = False
    judged: Judged | None = None
    exchange: Exchange | None = None
    gateway: bool = False  # `judged` is of the model gateway: no rule is about it
    idle_since: float = 0.0


class Requests:
    """`origin` None: the explicit port, where each request names its own. `works`: asked again for each request."""

    def __init__(self, desk: Desk, works: WorksNow, box: Client, invocation: str, origin: Origin | None) -> None:
        self._desk = desk
        self._works = works
        self._box = box
        self._invocation = invocation
        self._origin = origin
        self._gate: _Gate | None = None
        self._deadline = Deadline(desk.bounds)
        self._first = True
        self._unread = False  # bytes of the box may still come, and what it was told must arrive
        self.last = False  # the request that is in hand is the last one
        self.silent = False  # it ended before the first byte of a request
        self.trouble: Exception | None = None  # by which it ended
        self.current = Current(origin)

    async def serve(self) -> None:
        """Until the connection ends. Never raises but for cancellation."""
        try:
            while await self._one() and not self.last:
                pass
        except (Left, OSError, h11.ProtocolError) as error:
            self.trouble = error
            self._box.cut()
        except BaseException:  # cancelled: the box left, or lost permission
            self._box.cut()
            raise
        finally:
            self._deadline.end()
            if self._gate is not None:
                self._gate.link.drop()
        await self._box.close(linger=self._unread)

    async def _one(self) -> bool:
        """One request: whether another may follow."""
        where = _Said(origin=self._origin)
        try:
            async with self._deadline:
                if not await self._waited():
                    return False
                self._deadline.within(self._desk.bounds.head, "box")
                return await self._request(await self._box.head(), where)
        except TimeoutError:
            if where.head is None and not self._box.pending and not self._first:
                return False  # idle between two requests: nobody waits for a word
            refusal = _late(self._deadline)
        except Refusal as error:
            refusal = error
        except (Left, asyncio.CancelledError):
            await self._cut_short(where)
            raise
        return await self._refuse(refusal, where)

    async def _waited(self) -> bool:
        bounds = self._desk.bounds
        self._deadline.within(bounds.head if self._first else bounds.idle, "box")
        self.current.idle_since = asyncio.get_running_loop().time()
        came = await self._box.waited()
        self.silent = self._first and not came
        self.current.idle_since = 0.0
        self._first = False
        return came

    async def _request(self, head: RequestHead, where: _Said) -> bool:
        where.head = head
        upgrade = websocket.wanted(head)
        works = self._works()
        if self._origin is None and head.target.startswith(b"/"):
            return await self._model(head, where, works, upgrade=upgrade)
        if self._origin is None:
            origin, target = judging.absolute(head)
        else:
            origin, target = self._origin, head.target
            judging.agree(origin, head)
        where.origin, where.target = origin, target
        judged = judging.judge(works.policy, origin, head, target, websocket=upgrade)
        where.decision, where.path = judged.decision, judged.request.path
        asked = Asked(head, judged, _rule(judged.decision), self._invocation, upgrade, works.policy)
        return await self._exchange(asked, where, lambda: self._dial(works, origin))

    async def _model(self, head: RequestHead, where: _Said, works: Works, *, upgrade: bool) -> bool:
        if not head.target.startswith(gateway.PREFIX):
            raise Refusal(Code.MALFORMED, "this is a proxy: it is asked with http://HOST/ or CONNECT", close=True)
        if not works.configuration.gateway:
            raise Refusal(Code.NOT_CONFIGURED, "this installation has no model gateway")
        asked = gateway.asked(head, self._invocation, websocket=upgrade)
        where.origin, where.path, where.decision = asked.judged.origin, asked.judged.request.path, asked.judged.decision
        key = gateway.digest(head)
        return await self._exchange(asked, where, lambda: self._through_gate(key))

    async def _exchange(self, asked: Asked, where: _Said, linking: Linking) -> bool:
        exchange = where.exchange = Exchange(self._desk, self._box, asked, self._deadline, self._policy)
        current = self.current
        current.judged, current.exchange, current.gateway = asked.judged, exchange, asked.policy is None
        self._box.begin()
        try:
            alive = await exchange.run(linking)
        except Refusal:
            raise
        except BaseException:  # the box left, or was cut
            self._count(where, "allow", where.rule_id)
            raise
        finally:
            self._box.end()
            self.current.judged = self.current.exchange = None
        self._count(where, "allow", where.rule_id)
        self._unread = not exchange.upload.ended
        return alive

    def _policy(self) -> judging.Policy:
        return self._works().policy

    async def _dial(self, works: Works, origin: Origin) -> Link:
        reader, writer = await dialled(works, origin, tls=origin.tls)
        return Link(reader, writer, lambda link: works.dialler.keep(link.writer))

    async def _through_gate(self, key: str) -> Link:
        """One stays with the connection, for the same key: another call to the server would cost more than the request."""
        gate, self._gate = self._gate, None
        if gate is not None and gate.key == key and gate.link.good:
            gate.link.spare = False
            return gate.link
        if gate is not None:
            gate.link.drop()
        reader, writer = await gateway.connected(self._desk.kernel, self._invocation, key)
        return Link(reader, writer, lambda link: self._keep_gate(key, link))

    def _keep_gate(self, key: str, link: Link) -> None:
        self._gate = _Gate(key, link)

    # --- no ------------------------------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal, where: _Said) -> bool:
        """A request whose body was not read, and every answer that has begun, ends the connection."""
        self._count(where, verdict(refusal), str(refusal.code))
        if refusal.code in FINDINGS:
            self._desk.findings.tell(str(refusal.code), self._invocation, where.details())
        if where.exchange is not None and where.exchange.spent.started:
            self._box.cut()
            raise Left
        body = where.head is None or (where.exchange is None and where.head.has_body)
        unread = body or (where.exchange is not None and not where.exchange.upload.ended)
        self._unread = refusal.close or unread
        close = self._unread or where.head is None or where.head.last
        await self._box.refuse(refusal, where.shown(), close=close)
        return not close

    async def _cut_short(self, where: _Said) -> None:
        """Who closed his side within a body still reads: he is told, where nothing was (RFC 9112 section 8)."""
        exchange = where.exchange
        if exchange is not None and not exchange.spent.started and self._box.listens and await exchange.upload.short():
            self._box.part(Refusal(Code.MALFORMED, "the body ended before its length"), where.shown())

    def _count(self, where: _Said, verdict: str, reason: str) -> None:
        spent = where.exchange.spent if where.exchange is not None else None
        shown, origin = where.shown(), where.origin
        up, down = (spent.up, spent.down) if spent is not None else (0, 0)
        port = origin.port if origin is not None else 0
        self._desk.counting.add(Traffic(shown.host, port, verdict, reason, self._invocation, shown.method, 1, up, down))


@dataclass(frozen=True, slots=True)
class _Gate:
    key: str  # digest
    link: Link


@dataclass(slots=True)
class _Said:
    """What of a request is known so far."""

    head: RequestHead | None = None
    origin: Origin | None = None
    decision: Decision | None = None
    target: bytes = b""  # without the origin that a proxy is told
    path: str = ""
    exchange: Exchange | None = None

    @property
    def rule_id(self) -> str:
        return self.decision.rule.id if self.decision is not None and self.decision.rule is not None else ""

    def shown(self) -> Where:
        target = self.target or (self.head.target if self.head else b"")
        path = self.path or target.partition(b"?")[0].decode("latin-1")
        return Where(self.origin.host if self.origin else "", self.head.method if self.head else "", path)

    def details(self) -> dict[str, str]:
        shown = self.shown()
        return {"host": shown.host, "method": shown.method, "path": told.beginning(shown.path)}


def _rule(decision: Decision) -> EgressRule:
    """What bounds the bodies: there is a rule behind every answer but a denial."""
    return decision.rule or EgressRule("", Verdict.ALLOW, "*")


def _late(deadline: Deadline) -> Refusal:
    if deadline.blame == "box":
        return Refusal(Code.TOO_SLOW, "the request did not come in time", close=True)
    return Refusal(Code.UPSTREAM, "the server did not answer in time", close=True)
