"""What one worker asks of the server, answered: secrets, evidence, holds, the model gateway. One for each worker.

Everything is held against what this box's own configuration names: a binding and its credential that belong together and to its
user, an invocation of this box that lives, a request that the binding covers. Evidence is on disk before the answer. Must never
answer with a value that the release lane has not recorded, nor one that was revoked meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ringfence.host.egress import hearing, reasons
from ringfence.host.egress.chores import Chores
from ringfence.host.egress.evidence import Evidence, recorded, step_of
from ringfence.host.egress.hearing import SecretAsk
from ringfence.host.egress.holds import OpenHolds
from ringfence.host.egress.needs import Intent
from ringfence.host.egress.packets import Malformed
from ringfence.host.egress.site import Home
from ringfence.host.egress.tally import Tally
from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.matching import compile_binding
from ringfence.host.kernel.outward.ports import HoldAnswer, Invoker, Lent, Releases, Wanted
from ringfence.host.kernel.outward.rules import EgressRule, Request

# Of asks, of what goes on record, and of connections to the gateway: hotline.MOST. Of the last a box has 128, and as many that have
# ended and are not seen to have.
MOST = 256


_Tasks = dict[asyncio.Task[None], str]  # and the invocation of each; "" where it does not matter


class Gateway(Protocol):
    """The model gateway, as commands of a box reach it."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: Caller) -> None:
        """HTTP/1.1 of that command, until either side ends."""


class Known(Protocol):
    """What the box's own configuration names, as it is now."""

    def binding(self, identifier: str) -> Binding | None: ...
    def invoker(self, invocation: str) -> Invoker | None:
        """Of a live one; "" is nobody's in particular."""

    def model_invoker(self, invocation: str, digest: str) -> Invoker | None:
        """Of a live one whose key for the gateway has that digest."""

    def revocations(self, credential: str) -> int:
        """How many there were: whoever got a value before must not hand it on after."""

    def spend(self, invocation: str, binding: str) -> bool:
        """One use of the stand-in; False: there is none left."""

    def unspent(self, invocation: str, binding: str) -> None:
        """It was not used after all."""

    def row(self) -> bool:
        """Whether the box may make another row that stays; one of a bounded number a second."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the answers come from."""

    releases: Releases
    audit: Audit
    holds: OpenHolds
    chores: Chores
    gateway: Gateway | None = None


class Attendant:
    """`say`: a packet to the worker, which may have gone."""

    def __init__(
        self,
        home: Home,
        counters: Counters,
        known: Known,
        tally: Tally,
        say: Callable[[Mapping[str, Any], Sequence[int]], None],
    ) -> None:
        self._home, self._counters, self._known, self._tally, self._say = home, counters, known, tally, say
        self._evidence = Evidence(home, counters.audit)
        self._asks: _Tasks = {}
        self._recording: _Tasks = {}
        self._models: _Tasks = {}
        self._log = logging.getLogger("ringfence.egress")

    def asked(self, kind: str, said: Mapping[str, Any]) -> None:
        """Malformed: the worker is to be ended."""
        match kind:
            case "secret":
                self._begin(self._secret(hearing.secret(said)), self._asks)
            case "intent":
                number, intent = hearing.intent(said)
                self._begin(self._intent(number, intent), self._recording, last=True)
            case "outcome":
                self._begin(self._evidence.ended(*hearing.outcome(said)), self._recording, last=True)
            case "hold":
                self._begin(self._hold(*hearing.hold(said)), self._asks)
            case "model":
                number, invocation, digest = hearing.model(said)
                self._begin(self._model(number, invocation, digest), self._models, invocation)
            case "traffic":
                self._traffic(said)
            case "finding":
                found = hearing.finding(said)
                if self._tally.worth(found.kind):
                    self._begin(self._found(found), self._asks)
            case _:
                raise Malformed("a packet of a kind that is not known")

    @property
    def busy(self) -> bool:
        """Whether something that the worker said is not done with."""
        return bool(self._asks or self._recording or self._models)

    def ended(self, invocation: str) -> None:
        """What it has with the model gateway ends with it, whatever the worker does with its end."""
        for task in [task for task, of in self._models.items() if of == invocation]:
            task.cancel()

    async def over(self) -> None:
        """The worker has gone: nobody waits any more. What it has said of its writes goes on record, and how the others ended
        nobody knows (F14). Not to be cancelled: a chore that is `last`."""
        waiting = [*self._asks, *self._models]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, *self._recording, return_exceptions=True)
        await self._evidence.unknown()

    def _begin(self, work: Coroutine[Any, Any, None], among: _Tasks, of: str = "", *, last: bool = False) -> None:
        if len(among) >= MOST:
            work.close()
            raise Malformed("more asks at once than connections could have")
        task = self._counters.chores.go(work, f"egress of {self._home.box}", last=last)
        if task is not None:
            among[task] = of
            task.add_done_callback(lambda done: among.pop(done, None))

    # --- secrets -----------------------------------------------------------------------------------------------------

    async def _secret(self, ask: SecretAsk) -> None:
        try:
            value = await self._released(ask)
        except Exception as error:  # of whatever kind: the worker waits for a word
            self._log.warning("box %s got no value of %s: %s", self._home.box, ask.credential, _shown(error))
            value = reasons.of(error)
        body: dict[str, Any] = {"t": "secret", "n": ask.n}
        if isinstance(value, str):
            self._say({**body, "error": value}, ())
        else:
            text = base64.b64encode(value.value.reveal()).decode()
            self._say({**body, "value": text, "version": value.version, "keep": value.keep}, ())

    async def _released(self, ask: SecretAsk) -> Lent | str:
        """The value; a text: why there is none."""
        binding, who = self._known.binding(ask.binding), self._known.invoker(ask.invocation)
        if binding is None or binding.credential != ask.credential or binding.use is Use.MOUNTED:
            return reasons.UNBOUND
        if who is None or (not ask.invocation and binding.use is not Use.INJECT):
            return reasons.ENDED
        request = Request(ask.host, binding.ports[0], True, ask.method, ask.path)
        if not compile_binding(binding).covers(request):
            return reasons.UNBOUND
        if not self._known.row():
            return reasons.TOO_MANY
        if not self._known.spend(ask.invocation, ask.binding):
            return reasons.SPENT
        try:
            return await self._handed(ask, who)
        except BaseException:
            self._known.unspent(ask.invocation, ask.binding)
            raise

    async def _handed(self, ask: SecretAsk, who: Invoker) -> Lent | str:
        before = self._known.revocations(ask.credential)
        wanted = Wanted(
            box=self._home.box,
            user=self._home.user,
            credential=ask.credential,
            binding=ask.binding,
            invocation=ask.invocation,
            host=ask.host,
            method=ask.method,
            path=recorded(ask.path),
            run=who.run,
            step=step_of(who),
            refused=ask.refused,
        )
        lent = await self._counters.releases.lend(None, wanted)
        if self._known.revocations(ask.credential) != before or self._known.binding(ask.binding) is None:
            return reasons.UNBOUND
        return lent

    # --- evidence ----------------------------------------------------------------------------------------------------

    async def _intent(self, number: int, intent: Intent) -> None:
        answer: dict[str, Any] = {"t": "answer", "n": number, "ok": False, "why": "", "row": ""}
        who, binding = self._known.invoker(intent.invocation), self._known.binding(intent.binding)
        if who is None or (intent.binding and (binding is None or binding.credential != intent.credential)):
            self._say({**answer, "why": reasons.ENDED if who is None else reasons.UNBOUND}, ())
            return
        if not self._known.row():
            self._say({**answer, "why": reasons.TOO_MANY}, ())
            return
        try:
            row = await self._evidence.begun(who, intent)
        except Exception as error:
            self._log.warning("box %s: a request is not recorded: %s", self._home.box, _shown(error))
            self._say({**answer, "why": reasons.UNRECORDED}, ())
        else:
            self._say({**answer, "ok": True, "row": row}, ())

    def _traffic(self, said: Mapping[str, Any]) -> None:
        items, dropped = hearing.traffic(said)
        for item in items:
            self._tally.count(item)
            self._counters.audit.traffic(self._home.box, item.host, item.verdict, item.up, item.down)
        self._tally.dropped += dropped

    async def _found(self, found: hearing.Found) -> None:
        who = self._known.invoker(found.invocation)
        details: dict[str, Any] = {"said": dict(found.details), "kind": found.kind, "user": self._home.user}
        if who is not None:
            details |= {"invocation": found.invocation, "command": who.key, "run": who.run or ""}
        await self._counters.audit.record(None, "egress.finding", f"box:{self._home.box}", details)

    # --- holds and models --------------------------------------------------------------------------------------------

    async def _hold(self, number: int, invocation: str, rule: EgressRule | None, query: str) -> None:
        try:
            answer = await self._held(invocation, rule, query)
        except Exception as error:
            self._log.warning("box %s: a question is not asked: %s", self._home.box, _shown(error))
            answer = "timeout"
        self._say({"t": "answer", "n": number, "ok": answer == "allow", "why": answer, "row": ""}, ())

    async def _held(self, invocation: str, rule: EgressRule | None, query: str) -> HoldAnswer:
        who = self._known.invoker(invocation)
        if who is None or rule is None:
            return "deny"
        return await self._counters.holds.ask(who, rule, query) if self._known.row() else "timeout"

    async def _model(self, number: int, invocation: str, digest: str) -> None:
        gateway, who = self._counters.gateway, self._known.model_invoker(invocation, digest)
        if gateway is None or who is None:
            why = "there is none here" if gateway is None else "that is no key of this command"
            error = {"error": why, "configured": gateway is not None}
            self._say({"t": "model", "n": number, **error}, ())
            return
        ours, theirs = socket.socketpair()
        self._say({"t": "model", "n": number}, (theirs.detach(),))
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            caller = Caller(self._home.tenant, self._home.user, who.run, self._home.box, invocation)
            await gateway.serve(reader, writer, caller)
        finally:
            writer.transport.abort()


def _shown(error: Exception) -> str:
    """For the log. Of a fault of ours its kind alone: its text may be of what it had in hand, which is a value."""
    return error.message if isinstance(error, RingfenceError) else type(error).__name__
