"""Questions about ways out: whom an answer is for, and what is remembered of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ringfence.host.egress.holds import MAX_OPEN, REMEMBERED, OpenHolds
from ringfence.host.kernel.errors import NotFound, Unavailable
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.outward.ports import HoldAnswer, HoldSaid, Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from tests.support.clocks import CountingIds, HandClock

ALICE = Invoker(TenantId("t"), UserId("u"), BoxId("b"), "x/1")
RULE = EgressRule("", Verdict.ASK, "api.test", methods=frozenset({"POST"}), paths=("/pay",))
ACTOR: Any = None


class Asked:
    def __init__(self, seconds: float = 5.0) -> None:
        self.rows: list[tuple[str, Mapping[str, Any]]] = []
        self.added: list[EgressRule] = []
        self.failing = ""
        store = SimpleNamespace(add=self._add)
        audit: Any = SimpleNamespace(record=self._record)
        self.clock = HandClock()
        self.holds = OpenHolds(store, audit, self.clock, CountingIds(1), seconds, self._told)

    async def _record(self, actor: object, action: str, subject: str, details: Mapping[str, Any]) -> None:
        await asyncio.sleep(0)
        if self.failing == action:
            raise Unavailable("no disk", remedy="make room")
        self.rows.append((action, details))

    async def _add(self, layer: object, rule: EgressRule) -> EgressRule:
        self.added.append(rule)
        return rule

    async def _told(self, user: UserId) -> None:
        pass

    def ask(self, query: str = "") -> asyncio.Task[HoldAnswer]:
        return asyncio.create_task(self.holds.ask(ALICE, RULE, query))

    async def waits(self, count: int) -> str:
        """The id of the question for which so many wait."""
        return await self.one(lambda waiting: waiting == count)

    async def one(self, such: Callable[[int], bool]) -> str:
        async with asyncio.timeout(5):
            while not (found := [each for each in self.holds.of([ALICE.user]) if such(each.waiting)]):
                await asyncio.sleep(0.005)
        return found[0].id


async def test_once_lets_one_out_the_one_that_was_shown() -> None:
    asked = Asked()
    tasks = [asked.ask("to&sum"), asked.ask("to&sum&from"), asked.ask("sum")]
    first = await asked.waits(3)
    [shown] = asked.holds.of([ALICE.user])
    assert (shown.query, shown.rule.paths) == ("to&sum", ("/pay",))
    await asked.holds.answer(ACTOR, first, "once")
    assert await tasks[0] == "allow" and not any(task.done() for task in tasks[1:])
    with pytest.raises(NotFound):  # said twice, it lets out no second
        await asked.holds.answer(ACTOR, first, "once")
    [left] = asked.holds.of([ALICE.user])
    assert (left.id != first, left.waiting, left.query) == (True, 2, "to&sum&from")
    await asked.holds.answer(ACTOR, left.id, "deny")
    assert [await task for task in tasks[1:]] == ["deny", "deny"]
    said = [(action, details["query"]) for action, details in asked.rows]
    assert said == [("egress.held", "to&sum"), ("egress.answer", "to&sum"), ("egress.held", "to&sum&from"),
                    ("egress.answer", "to&sum&from")]  # fmt: skip


async def test_always_and_deny_are_for_all_that_wait() -> None:
    """Control of the above."""
    meant: tuple[tuple[HoldSaid, HoldAnswer], ...] = (("always", "allow"), ("deny", "deny"))
    for said, answer in meant:
        asked = Asked()
        tasks = [asked.ask("a"), asked.ask("b")]
        await asked.holds.answer(ACTOR, await asked.waits(2), said)
        assert [await task for task in tasks] == [answer, answer]
        assert len(asked.added) == (said == "always") and asked.holds.of([ALICE.user]) == []


async def test_a_yes_that_nobody_waited_for_is_for_one_of_the_same_names() -> None:
    asked = Asked(seconds=0.05)
    assert await asked.ask("to&sum") == "timeout"
    await asked.holds.answer(ACTOR, await asked.waits(0), "once")
    assert await asked.ask("to&sum&from") == "timeout"
    assert await asked.ask("to&sum") == "allow"  # the control
    assert await asked.ask("to&sum") == "timeout"


async def test_who_waits_on_gives_up_in_time_and_leaves_nothing() -> None:
    asked = Asked(seconds=0.2)
    tasks = [asked.ask("a"), asked.ask("b")]
    await asked.holds.answer(ACTOR, await asked.waits(2), "once")
    assert [await task for task in tasks] == ["allow", "timeout"]
    assert await asked.waits(0)


async def test_a_box_that_ends_is_denied_behind_a_yes_too() -> None:
    asked = Asked()
    tasks = [asked.ask("a"), asked.ask("b")]
    await asked.holds.answer(ACTOR, await asked.waits(2), "once")
    asked.holds.end(ALICE.box)
    assert [await task for task in tasks] == ["allow", "deny"]


async def test_nobody_is_asked_what_the_audit_does_not_have() -> None:
    asked = Asked()
    tasks = [asked.ask("a"), asked.ask("b")]
    first = await asked.waits(2)
    asked.failing = "egress.answer"
    with pytest.raises(Unavailable):
        await asked.holds.answer(ACTOR, first, "once")
    assert not any(task.done() for task in tasks)
    asked.failing = "egress.held"  # the row of what is asked next cannot be written
    await asked.holds.answer(ACTOR, first, "once")
    assert (await tasks[0], await tasks[1], asked.holds.of([ALICE.user])) == ("allow", "timeout", [])
    other = asked.ask("c")
    with pytest.raises(Unavailable):
        await other
    assert asked.holds.of([ALICE.user]) == []


async def test_questions_that_nobody_waits_for_make_room() -> None:
    """A box can ask more than a screenful in a second. Control: those that somebody waits for stay, and the owner hears of it."""
    asked = Asked(seconds=0.01)
    paths = [replace(RULE, paths=(f"/{n}",)) for n in range(MAX_OPEN + 1)]
    for rule in paths:
        assert await asked.holds.ask(ALICE, rule) == "timeout"
    assert len(asked.holds.of([ALICE.user])) == MAX_OPEN
    told = [details["kind"] for action, details in asked.rows if action == "egress.finding"]
    assert told == ["questions_full"]
    assert await asked.holds.ask(ALICE, paths[-1]) == "timeout"  # nor is it told each time
    assert len([action for action, _ in asked.rows if action == "egress.finding"]) == 1
    asked.clock.pass_seconds(REMEMBERED + 1)
    asked.holds._seconds = 30.0
    waits = asyncio.create_task(asked.holds.ask(ALICE, paths[-1]))
    question = await asked.waits(1)
    assert len(asked.holds.of([ALICE.user])) == 1
    asked.clock.pass_seconds(REMEMBERED + 1)
    assert await asked.waits(1) == question
    await asked.holds.answer(ACTOR, question, "deny")
    assert await waits == "deny"
