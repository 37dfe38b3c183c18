"""The fence: no write of an executor but under the epoch that its run has, and only while that is running. I5, F30.

Each write has its stage: a run in which whoever holds it may make that write. Who held it before, who may hold it
next, and who has given it back are refused there.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from ringfence.host.engine.questions import approval
from ringfence.host.kernel.effects import EffectRow, EffectState
from ringfence.host.kernel.errors import StaleEpoch
from ringfence.host.kernel.gates import Gate, GateId
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.runs import Run, RunState
from tests.support.store import Team, a_team
from tests.support.store_calls import PEN, approved, due, going, mended, out

FIRST = 1  # cursor
BLOB, OTHER = hashlib.sha256(b"blob").hexdigest(), hashlib.sha256(b"other").hexdigest()
Stage = Callable[[Team], Awaitable[Run]]
Write = Callable[[Team, Run, int], Awaitable[object]]


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


async def at_work(team: Team) -> Run:
    """A running run with a step, a blob and a message before its own."""
    await team.store.runs.cancel((await team.say("earlier")).run.id)
    run = await team.running()
    await team.begin(run, 1)
    await team.store.blobs.put(run.id, 1, BLOB, 0, 4, b"blob")
    return run


async def _gate(team: Team, run: Run) -> GateId:
    return (await team.store.gates.of_run(run.id))[-1].id


async def asks(team: Team, run: Run, epoch: int) -> Gate:
    question = approval(due(team, run, 1), None, None, team.clock.now())
    return await team.store.gates.ask(run.id, epoch, question, PEN.question)


async def uses(team: Team, run: Run, epoch: int) -> Gate:
    return await team.store.gates.use(run.id, epoch, await _gate(team, run), lambda *_: "")


async def voids(team: Team, run: Run, epoch: int) -> Gate:
    return await team.store.gates.void(run.id, epoch, await _gate(team, run), "late")


async def intends(team: Team, run: Run, epoch: int) -> EffectRow:
    dispatch = await going(team, run)
    return await team.store.effects.intend(dispatch, epoch, PEN.usable_for(dispatch.call))


async def mends(team: Team, run: Run, epoch: int) -> EffectRow:
    return await team.store.effects.mend(run.id, epoch, 1, await _gate(team, run), lambda *_: "", "another")


async def resolves(team: Team, run: Run, epoch: int) -> object:
    gate = await _gate(team, run)
    return await team.store.effects.resolve(run.id, epoch, 1, gate, lambda *_: "", lambda _: {"ok": True})


BOX: Mapping[str, Write] = MappingProxyType(
    {
        "adopt": lambda team, run, epoch: team.store.runs.adopt(run.id, "w9", epoch),
        "assign": lambda team, run, epoch: team.store.runs.assign(run.id, epoch, BoxId("a" * 16), "digest"),
        "requeue": lambda team, run, epoch: team.store.runs.requeue(run.id, epoch, "why"),
        "hold": lambda team, run, epoch: team.store.runs.hold(run.id, epoch, "why"),
        "end": lambda team, run, epoch: team.store.runs.end(run.id, epoch, RunState.COMPLETED, "", "late"),
        "end seen": lambda team, run, epoch: team.store.runs.end(
            run.id, epoch, RunState.COMPLETED, "", "late", 1 << 40
        ),
        "begin again": lambda team, run, epoch: team.begin(run, 1, epoch),
        "begin": lambda team, run, epoch: team.begin(run, 2, epoch),
        "end step": lambda team, run, epoch: team.store.steps.end(run.id, epoch, 1, {"ok": True}, False),
        "checkpoint": lambda team, run, epoch: team.store.steps.save_checkpoint(run.id, epoch, "before_model", 0, "s"),
        "checkpoint with a blob": lambda team, run, epoch: team.store.steps.save_checkpoint(
            run.id, epoch, "before_model", 0, "s", [BLOB]
        ),
        "summary": lambda team, run, epoch: team.store.threads.set_summary(run.id, epoch, FIRST, "late"),
        "put": lambda team, run, epoch: team.store.blobs.put(run.id, epoch, OTHER, 0, 5, b"other"),
        "get": lambda team, run, epoch: team.store.blobs.get(run.id, epoch, BLOB, 0),
        "whole": lambda team, run, epoch: team.store.blobs.whole(run.id, epoch, BLOB),
        "gates.ask": asks,
    }
)
APPROVED: Mapping[str, Write] = MappingProxyType({"gates.use": uses, "gates.void": voids, "intend": intends})
MENDED: Mapping[str, Write] = MappingProxyType(
    {
        "mend": mends,
        "judge": lambda team, run, epoch: team.store.effects.judge(run.id, epoch, 1, "another", None, lambda *_: ""),
        "mark sent": lambda team, run, epoch: team.store.effects.mark(run.id, epoch, 1, EffectState.SENT),
    }
)
OUT: Mapping[str, Write] = MappingProxyType(
    {
        "mark unknown": lambda team, run, epoch: team.store.effects.mark(run.id, epoch, 1, EffectState.UNKNOWN),
        "settle": lambda team, run, epoch: team.store.effects.settle(
            run.id, epoch, 1, EffectState.DONE, {}, {"ok": True}
        ),
        "resolve": resolves,
    }
)
STAGES: tuple[tuple[Stage, Mapping[str, Write]], ...] = (
    (at_work, BOX),
    (approved, APPROVED),
    (mended, MENDED),
    (out, OUT),
)
WRITES = [pytest.param(stage, write, id=name) for stage, writes in STAGES for name, write in writes.items()]


async def rows(team: Team, run: Run) -> list[object]:
    """Whatever such a write could change."""
    store = team.store
    events = await store.events.after(run.thread, 0, 10_000)
    effects, gates = await store.effects.of_run(run.id), await store.gates.of_run(run.id)
    checkpoint = await store.steps.checkpoint(run.id)
    return [await team.get(run.id), await store.steps.all(run.id), events, effects, gates, checkpoint]


@pytest.mark.parametrize(("stage", "write"), WRITES)
async def test_every_write_is_fenced(team: Team, stage: Stage, write: Write) -> None:
    """By an old epoch, by one to come, and by the right one of a run that is not running."""
    run = await stage(team)
    now = await team.store.runs.adopt(run.id, "w2", run.epoch)
    before = await rows(team, run)
    for epoch in (0, run.epoch, now.epoch + 1):
        with pytest.raises(StaleEpoch):
            await write(team, run, epoch)
    assert await rows(team, run) == before
    await team.store.runs.requeue(run.id, now.epoch, "lost")
    with pytest.raises(StaleEpoch):
        await write(team, run, now.epoch)


@pytest.mark.parametrize(("stage", "write"), [one for one in WRITES if one.id != "assign"])
async def test_the_current_epoch_may_write(team: Team, stage: Stage, write: Write) -> None:
    """The control. To a box that is there is assigned in test_store_runs.py."""
    run = await stage(team)
    await write(team, run, run.epoch)
