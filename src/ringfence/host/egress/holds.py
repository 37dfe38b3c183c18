"""Questions to owners about ways out that a rule says `ask` to, and the connections that wait for the answers.

One question for a user and a rule, however many connections wait; each waits for as long as it may and is then refused, and
the question stays for a while: one for which nobody waits any more makes room for others. `once` is for one of them: the one that
has waited longest, whose parameters were shown. Must never let anything out by itself: a yes comes from `answer`, which the audit
has first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import Conflict, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId, UserId
from ringfence.host.kernel.outward.ports import EgressRules, Hold, HoldAnswer, HoldSaid, Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Verdict
from ringfence.host.kernel.outward.spelled import rule_digest, rule_to_json
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Clock, Ids

MAX_OPEN = 20  # of one user, as of gates: a screenful; what is more is not asked, and the owner is told that it was not
# A yes to a connection that did not wait for it, a no, and a question that nobody waits for, are remembered for as long: a tool
# tries again within minutes.
REMEMBERED = 600.0  # seconds
_MOST_SAID = 1000
_Key = tuple[UserId, str]


@dataclass(frozen=True, slots=True)
class _Waiter:
    who: Invoker
    query: str
    future: asyncio.Future[HoldAnswer]


@dataclass(eq=False, slots=True)
class _Question:
    """`who` and `query`: of the first that asked. `waiting`: the one that waits longest first."""

    id: str
    who: Invoker
    rule: EgressRule
    query: str
    at: datetime
    asked: float  # monotonic: when somebody asked it last, or left
    waiting: list[_Waiter] = field(default_factory=list)

    @property
    def next(self) -> _Waiter | None:
        return next((each for each in self.waiting if not each.future.done()), None)


class OpenHolds:
    """ports.Holds. `seconds`: how long a connection waits. `added`: told whose rules are another by an answer; what it returns is
    awaited before those who wait go on."""

    def __init__(
        self,
        rules: EgressRules,
        audit: Audit,
        clock: Clock,
        ids: Ids,
        seconds: float,
        added: Callable[[UserId], Awaitable[None]],
    ) -> None:
        self._rules, self._audit, self._clock, self._ids, self._seconds = rules, audit, clock, ids, seconds
        self._added = added
        self._open: dict[_Key, _Question] = {}
        self._full: OrderedDict[UserId, float] = OrderedDict()  # until when it is not told again
        self._said: OrderedDict[_Key, tuple[HoldAnswer, str, float]] = OrderedDict()
        self.changed = asyncio.Event()  # set whenever there is another question or answer

    async def ask(self, who: Invoker, asked: EgressRule, query: str = "") -> HoldAnswer:
        """timeout: nobody said anything within the time, or too much is asked already. `query`: names of parameters."""
        rule = replace(asked, id="", answer=Verdict.ALLOW, layer=Layer.USER, note="")
        key = (who.user, rule_digest(rule))
        if (before := self._remembered(key, query)) is not None:
            return before
        waiter = _Waiter(who, query, asyncio.get_running_loop().create_future())
        question = self._open.get(key)
        fresh = question is None
        if question is None:
            self._tidy()
            if sum(1 for user, _ in self._open if user == who.user) >= MAX_OPEN:
                await self._crowded(who)
                return "timeout"
            question = self._made(who, rule, query)
        question.waiting.append(waiter)
        try:
            if fresh:
                await self._opened(key, question)
            async with asyncio.timeout(self._seconds):
                return await waiter.future
        except TimeoutError:
            return "timeout"
        finally:
            for each in (question, self._open.get(key)):  # by now it may wait for another question
                if each is not None and waiter in each.waiting:
                    each.waiting.remove(waiter)
                    each.asked = self._clock.monotonic()

    async def _opened(self, key: _Key, question: _Question) -> None:
        self._open[key] = question
        self._told()
        who = question.who
        asked = {"hold": question.id, "rule": rule_to_json(question.rule), "query": question.query}
        details = {**asked, "command": who.key, "run": who.run}
        try:
            await self._audit.record(None, "egress.held", f"user:{who.user}", details)
        except BaseException:
            self._drop(key, question)  # nobody is asked what the audit does not know of
            raise

    def _drop(self, key: _Key, question: _Question) -> None:
        if self._open.get(key) is question:
            del self._open[key]
        self._close(key, question, "timeout")
        self._told()

    def _made(self, who: Invoker, rule: EgressRule, query: str, waiting: Iterable[_Waiter] = ()) -> _Question:
        clock = self._clock
        return _Question(self._ids.new("hld"), who, rule, query, clock.now(), clock.monotonic(), list(waiting))

    def _tidy(self) -> None:
        old = self._clock.monotonic() - REMEMBERED
        for key, question in list(self._open.items()):
            if question.next is None and question.asked < old:
                self._drop(key, question)

    async def _crowded(self, who: Invoker) -> None:
        """A row, once in a while: what is not asked is refused, and only the owner can do something about it."""
        now = self._clock.monotonic()
        if self._full.get(who.user, now) > now:
            return
        self._full[who.user] = now + REMEMBERED
        while len(self._full) > _MOST_SAID:
            self._full.popitem(last=False)
        said = {"open": str(MAX_OPEN), "remedy": "ringfence gate ls"}
        details = {"kind": "questions_full", "said": said, "user": who.user, "command": who.key, "run": who.run or ""}
        await self._audit.record(None, "egress.finding", f"box:{who.box}", details)

    def of(self, users: Collection[UserId]) -> list[Hold]:
        self._tidy()
        return [_shown(each) for (user, _), each in self._open.items() if user in users]

    async def answer(self, actor: Actor, hold: str, said: HoldSaid) -> Hold:
        key, question = self._found(hold)
        shown = _shown(question)
        details = {"hold": hold, "said": said, "rule": rule_to_json(question.rule), "query": shown.query}
        await self._audit.record(actor, "egress.answer", f"user:{question.who.user}", details)
        if said == "always":
            who = question.who
            with suppress(Conflict):  # the very same rule is there by now
                await self._rules.add((who.tenant, who.user), question.rule)
            await self._added(who.user)
        if self._open.get(key) is not question:
            raise NotFound(f"no such question: {hold!r}", remedy="ringfence gate ls")
        del self._open[key]
        if said == "once":
            await self._once(key, question)
        else:
            self._close(key, question, "deny" if said == "deny" else "allow")
        self._told()
        return shown

    def end(self, box: BoxId) -> None:
        """Its connections have ended, and what they asked stays to be answered for the next."""
        for question in self._open.values():
            for each in question.waiting:
                if each.who.box == box and not each.future.done():
                    each.future.set_result("deny")

    async def _once(self, key: _Key, question: _Question) -> None:
        """One goes out. The others wait on, for an answer to a question of their own: it was not them that were shown."""
        first = question.next
        if first is None:
            self._remember(key, "allow", question.query)
            return
        first.future.set_result("allow")
        if (second := question.next) is not None:
            rest = [each for each in question.waiting if not each.future.done()]
            made = self._made(second.who, question.rule, second.query, rest)
            question.waiting = []
            with suppress(RingfenceError):  # the answer that was given holds; the others ask again
                await self._opened(key, made)

    def _close(self, key: _Key, question: _Question, answer: HoldAnswer) -> None:
        for each in question.waiting:
            if not each.future.done():
                each.future.set_result(answer)
        if answer == "deny":
            self._remember(key, answer, "")

    def _remember(self, key: _Key, answer: HoldAnswer, query: str) -> None:
        self._said[key] = (answer, query, self._clock.monotonic() + REMEMBERED)
        while len(self._said) > _MOST_SAID:
            self._said.popitem(last=False)

    def _remembered(self, key: _Key, query: str) -> HoldAnswer | None:
        """A yes is for the same names of parameters, and used up by that; a no is neither."""
        if key not in self._said:
            return None
        answer, named, until = self._said[key]
        if until < self._clock.monotonic():
            del self._said[key]
            return None
        if answer == "allow":
            if named != query:
                return None
            del self._said[key]
        return answer

    def _found(self, hold: str) -> tuple[_Key, _Question]:
        for key, question in self._open.items():
            if question.id == hold:
                return key, question
        raise NotFound(f"no such question: {hold!r}", remedy="ringfence gate ls")

    def _told(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _shown(question: _Question) -> Hold:
    first = question.next
    query = question.query if first is None else first.query
    return Hold(question.id, question.who, question.rule, question.at, len(question.waiting), query)
