"""What a client does in the kill loops. Each may be played again after a restart, which is the client's retry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ringfence.host.engine.questions import approval
from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.dispatch import Dispatch, discharge, owed
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import BoxLost, Conflict, NotFound, StaleEpoch
from ringfence.host.kernel.gates import Call, Question
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.policy import decide
from ringfence.host.kernel.runs import RUN_FINAL, Effect, Run, RunState
from ringfence.wire import messages as wire
from tests.support.engine_rig import FAR, OPERATOR
from tests.support.fakes import Loop, Script
from tests.support.paying import ALLOW

if TYPE_CHECKING:
    from tests.support.kill_child import Say, Stage

Play = Callable[["Stage"], Awaitable[None]]
GHOST = "written under an old epoch"


@dataclass(frozen=True)
class Scenario:
    play: Play
    effect: Effect = Effect.ONCE
    asks: bool = False  # policy: ask
    before: Play | None = None  # before the engine is at work
    outside: Mapping[str, Any] = field(default_factory=dict)  # attributes of the receiver


async def prepare(s: Stage) -> None:
    """Once for a database: alice, her token, her box."""
    await s.store.tenants.add("default")
    await s.rig.person("alice")
    _, secret = await s.rig.engine.people.token_add(OPERATOR, "default", "alice", ["user"], "", None)
    s.tell(token=secret)
    alice = s.rig.actors["alice"].user
    assert alice is not None
    await s.store.boxes.home_of(alice, "fake", Limits())


async def turn(s: Stage) -> None:
    """F01 to F04, F07: a message, a command in the box, a reply."""
    await s.ended(await s.say("$ echo here", "first"))


async def steer(s: Stage) -> None:
    """A second message that joins the turn of the first, or begins one of its own."""
    run = await s.say("$ echo here", "first")
    second = await s.say("hello", "second", "steer")
    await s.ended(run)
    await s.ended(second)


async def hello(s: Stage) -> None:
    await s.ended(await s.say("hello", "stale"))


async def cancel(s: Stage) -> None:
    """A cancel that races with the work."""
    run = await s.say("$ sleep 0.05", "first")
    await s.cancel(run)
    await s.ended(run)


async def pay(s: Stage) -> None:
    """F05, F06: an effect of the host."""
    await s.ended(await s.say("pay", "pay"))


async def pay_and_say(s: Stage) -> None:
    """F06 without evidence: a person says what became of it."""
    run = await s.say("pay", "pay")
    gate = await s.asked(run)
    if gate is not None and gate.kind == "in_doubt":
        await s.answer(gate, "done")
    await s.ended(run)


async def approve(s: Stage) -> None:
    """F09, F48: a gate, decided and used up by the intent. The answer comes twice."""
    run = await s.say("pay", "pay")
    gate = await s.asked(run)
    assert gate is not None
    await s.answer(gate, "allow")
    await s.answer(gate, "allow")
    await s.ended(run)


async def drain(s: Stage) -> None:
    """F15: the server is stopped while the effect is out; the next one goes on."""
    run = await s.say("pay", "pay")
    while (await s.store.runs.get(run)).state not in RUN_FINAL:
        rows = await s.store.effects.of_run(run)
        if rows and rows[0].state is not EffectState.INTENDED:
            break
        await asyncio.sleep(0.01)
    await s.rig.restart()
    gate = await s.asked(run)
    if gate is not None:
        await s.answer(gate, "done")
    await s.ended(run)


async def step_twice(s: Stage) -> None:
    """F34: see `dies_before_the_ack`."""
    await s.ended(await s.say("note it", "note"))


async def stale(s: Stage) -> None:
    """F04, F30: whoever held the run before goes on writing. It is refused, each time."""
    run = await s.say("hello", "stale")
    old = await _claimed(s, run, "krn_first")
    if old is None:
        return
    how = digest("note", {}, Effect.IDEMPOTENT)
    await s.store.steps.begin(run, old.epoch, 1, "note", {}, how, Effect.IDEMPOTENT)  # what can be asked about
    await s.store.runs.requeue(run, old.epoch, "executor_lost")
    while await _claimed(s, run, "krn_second") is None:
        await asyncio.sleep(0.02)
    store, told = s.store, {"ok": True, "text": GHOST}
    question, dispatch = _call_of(old)
    for write in (
        lambda: store.effects.intend(dispatch, old.epoch, lambda *_: ""),
        lambda: store.gates.ask(run, old.epoch, question, lambda _: "mac"),
        lambda: store.steps.end(run, old.epoch, 1, told, False),
        lambda: store.steps.save_checkpoint(run, old.epoch, "before_model", 0, json.dumps(GHOST), []),
        lambda: store.runs.end(run, old.epoch, RunState.COMPLETED, "", GHOST),
    ):
        with suppress(StaleEpoch, Conflict, NotFound):
            await write()


def _call_of(run: Run) -> tuple[Question, Dispatch]:
    """Of step 1, to be asked about and to go out."""
    arguments, now = {"what": GHOST}, datetime.now(UTC)
    call = Call(run.id, 1, "http.webhook", "", run.actor, "", "")
    due = owed(decide(ALLOW, call.tool, arguments, host=True), call, arguments, Effect.ONCE, now, 1 << 20)
    return approval(due, None, None, now), discharge(due, notified=False, gate=None, key=b"", now=now)


async def _claimed(s: Stage, run: RunId, worker: str) -> Run | None:
    runs = await s.store.runs.claim(worker, 8, lambda _: "hash")
    return next((one for one in runs if one.id == run), None)


# --- loops -----------------------------------------------------------------------------------------------------------


def dies_before_the_ack(say: Say) -> Script:
    """A loop that sends the result of its step and is gone before it hears that it was taken. The result names the attempt:
    when it is sent again, what was there first stays."""

    async def loop(loop: Loop) -> None:
        token = loop.start["token"]
        begun = await loop.ask("step.begin", wire.StepBegin(token, 1, "note", {"a": 1}, "idempotent"))
        if begun["decision"] != "done":
            result = {"ok": True, "by": token}
            await loop.ask("step.end", wire.StepEnd(token, 1, result))
            say(ack={"step": loop.run, "result": result})
            raise BoxLost("it dies here")
        say(ack={"step": loop.run, "result": begun["result"]})
        again = {"ok": True, "by": "the second"}
        with suppress(Conflict):
            await loop.ask("step.end", wire.StepEnd(token, 1, again))
        await loop.ask("run.finish", wire.RunFinish(token, "noted", FAR))

    return loop


def loop_of(scenario: str, say: Say) -> Script | None:
    return dies_before_the_ack(say) if scenario == "step_twice" else None


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "prepare": Scenario(prepare),
        "turn": Scenario(turn),
        "cancel": Scenario(cancel),
        "steer": Scenario(steer),
        "stale": Scenario(hello, before=stale),
        "step_twice": Scenario(step_twice),
        "once": Scenario(pay, outside={"behave": "ok"}),
        "once_done": Scenario(pay, outside={"behave": "cut_after"}),
        "once_not_done": Scenario(pay, outside={"first": "fail_before"}),
        "once_unknown": Scenario(pay_and_say, outside={"behave": "cut_after", "says": "unknown"}),
        "idempotent": Scenario(pay, Effect.IDEMPOTENT, outside={"first": "fail_after"}),
        "gate": Scenario(approve, asks=True),
        "drain": Scenario(drain, outside={"pause": 0.05}),
    }
)
