"""F38, F39, F41, F44, F49: what is outside the kernel process and fails: a provider, a network, a receiver, the agent loop that
is another one by now, a store of yesterday, an audit that takes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from ringfence.host.engine.sending import LOOK_UPS
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.gates import GateKind
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.host.models.scripted import Scripted
from ringfence.wire import messages as wire
from tests.support.databases import outside
from tests.support.engine_rig import eventually, rig
from tests.support.fake_driver import FakeDriver
from tests.support.fakes import Loop, native
from tests.support.paying import paid_key, parked, paying
from tests.support.yesterday import backup, put_back

PATIENCE = 30.0
PIECES = ("half ", "a ", "sentence")
Trouble = Literal["429", "cut", "hang"]


# --- F38, F39: the provider ------------------------------------------------------------------------------------------


class Troubled(Scripted):
    """A provider that fails at some of its answers: before a word, after some of it, or by saying nothing more."""

    def __init__(self, trouble: Trouble, at: Sequence[int]) -> None:
        super().__init__()
        self._trouble, self._at = trouble, set(at)
        self.asked = 0

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        self.asked += 1
        if self.asked in self._at:
            if self._trouble == "429":
                raise Unavailable("429: too many requests")
            for piece in PIECES:
                on_delta(piece)
            if self._trouble == "hang":
                await asyncio.Event().wait()
            raise Unavailable("the stream ended in the middle")
        return await super().generate(messages, tools, on_delta)


@pytest.mark.parametrize("trouble", ["429", "cut", "hang"])
async def test_a_provider_that_fails_twice_in_the_middle_of_a_turn(tmp_path: Path, trouble: Trouble) -> None:
    """F38: before the first call and after it. The command is run once, the words that were lost are in no event, no
    message and no later attempt's conversation, and the reply is there once."""
    model = Troubled(trouble, [1, 3])
    patience = 2.0 if trouble == "hang" else PATIENCE  # of the engine, with its model
    async with rig(tmp_path, model=model, model_timeout_seconds=patience) as r:
        said = await r.say("alice", "$ echo x >> log")
        turn = await r.turn(said, PATIENCE)
        assert turn.state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "x\n"
        assert len(r.box("alice").spawned) == 1
        events = await r.store.events.after(turn.thread, 0, 1000)
        assert [event.cursor for event in events] == list(range(1, len(events) + 1))
        assert Counter(event.kind for event in events)[EventKind.REPLY] == 1
        kept = f"{events} {turn.reply} {await r.store.steps.checkpoint(said.run.id)}"
        assert not any(piece.strip() in kept for piece in ("half a", "sentence"))
        assert model.asked == 4, "the two that failed, and the two that did not"


async def test_a_network_that_is_gone_is_not_asked_all_the_time(tmp_path: Path) -> None:
    """F39: three attempts and no more, each after a longer wait; when it is back, by hand from where it was."""
    model = Troubled("429", range(1, 4))
    async with rig(tmp_path, model=model) as r:
        said = await r.say("alice", "$ echo x >> log")
        turn = await r.turn(said, PATIENCE)
        assert (turn.state, turn.reason, model.asked) == (TurnState.FAILED, "retries_exhausted", 3)
        await r.engine.runs.redrive(r.actors["alice"], said.run.id)
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "x\n"


# --- F39: a receiver -------------------------------------------------------------------------------------------------


async def test_a_receiver_that_is_away_and_comes_back(tmp_path: Path) -> None:
    """It took the webhook and is gone with its answer: a few look-ups, then a person is asked, and nothing is sent or asked
    again by itself, not by the next server either."""
    async with paying(tmp_path) as (r, there):
        there.behave = "hang_after"
        said = await r.say("alice", "pay")
        key = paid_key(said.run.id)
        await eventually(lambda: key in there.done, "it is carried out", PATIENCE)
        asked = 0
        answered = there._answered

        async def away(*_: Any, **__: Any) -> bool:
            nonlocal asked
            asked += 1
            return False  # the connection is cut

        there._answered = away  # type: ignore[method-assign]
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        await r.until(said.run.id, lambda run: run.state is RunState.PARKED, PATIENCE)
        gate = await parked(r, said)
        assert (gate.kind, asked) == (GateKind.IN_DOUBT, LOOK_UPS)
        await r.restart()
        await r.until(said.run.id, lambda run: run.state is RunState.PARKED, PATIENCE)
        for _ in range(3):  # whoever would go on with it looks there
            await r.engine._sweep.once()
            await r.engine._work._claim()
        assert (asked, dict(there.arrived)) == (LOOK_UPS, {key: 1}), "and it does not go on"
        there._answered = answered  # type: ignore[method-assign]
        await r.engine.gates.answer(r.actors["alice"], gate.id, "done", None)
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert dict(there.arrived) == {key: 1}
        assert (await r.store.effects.of_run(said.run.id))[0].state is EffectState.DONE


# --- F41: another agent loop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", [True, False], ids=["a step was recorded", "nothing was"])
async def test_an_agent_loop_of_another_release(tmp_path: Path, recorded: bool) -> None:
    """Refused with what changed, when anything was recorded after the checkpoint; else the new one begins from there. The
    control: the same loop as before goes on with the step."""
    for name, digest in (("the same", "d1"), ("another", "d2")):
        folder = tmp_path / name
        folder.mkdir()
        begun = asyncio.Event()

        async def stays(loop: Loop, begun: asyncio.Event = begun) -> None:
            if begun.is_set():
                await native(loop)
                return
            if recorded:
                step = wire.StepBegin(loop.start["token"], 1, "shell", {"command": "echo x >> log"}, "local")
                await loop.ask("step.begin", step)
            begun.set()
            await asyncio.get_running_loop().create_future()

        async with rig(folder, script=stays) as r:
            said = await r.say("alice", "$ echo x >> log")
            async with asyncio.timeout(PATIENCE):
                await begun.wait()
            r.driver = FakeDriver(r.world, digest=digest)
            await r.restart(lambda: r.world.kill_box(r.box("alice").id))
            turn = await r.turn(said, PATIENCE)
            if recorded and digest == "d2":
                assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
                assert "the agent loop is another one" in str(await r.details("alice"))
            else:
                assert turn.state is TurnState.COMPLETED
            assert (r.box("alice").folder / "log").read_text() == "x\n", "once, whoever goes on"


# --- F44: yesterday's store ------------------------------------------------------------------------------------------


async def test_what_was_sent_after_the_backup_is_not_sent_again(tmp_path: Path) -> None:
    """F44: the backup is of the moment when it was out. After the restore the receiver is asked by its key: it had done it."""
    async with paying(tmp_path) as (r, there):
        there.behave = "hang_after"
        said = await r.say("alice", "pay")
        key = paid_key(said.run.id)
        await eventually(lambda: key in there.done, "it is carried out", PATIENCE)
        content = await backup(tmp_path)
        there.behave = "ok"
        there.gate.set()
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        async with put_back(r, tmp_path, content):
            await r.turn(said, PATIENCE)
            assert dict(there.arrived) == {key: 1}
            assert there.looked[-1:] == [key]
            [row] = await r.store.effects.of_run(said.run.id)
            assert row.state is EffectState.DONE


# --- F49: the audit --------------------------------------------------------------------------------------------------

_NO_INTENT = """
CREATE TRIGGER no_room BEFORE INSERT ON audit_rows WHEN NEW.lane = 'intent'
BEGIN SELECT RAISE(ABORT, 'the audit takes no intent'); END
"""


async def test_what_the_audit_does_not_take_is_not_sent(tmp_path: Path) -> None:
    """Everything else of the database can be written: the intent's row alone cannot, and not a byte goes out. The step has
    no answer then, so the loop ends; three attempts, and the run fails with the step undone: it is not a refusal that the
    model could talk around."""
    async with paying(tmp_path) as (r, there):
        outside(tmp_path, _NO_INTENT)
        said = await r.say("alice", "pay")
        turn = await r.turn(said, PATIENCE)
        assert (turn.state, turn.reason) == (TurnState.FAILED, "retries_exhausted")
        [row] = await r.store.effects.of_run(said.run.id)
        assert (dict(there.arrived), there.looked) == ({}, [])
        assert (row.state, row.tries) == (EffectState.NOT_DONE, 0)
        assert await r.states(said.run.id) == ["interrupted"]
        outside(tmp_path, "DROP TRIGGER no_room")
        again = await r.say("alice", "pay", thread="u")
        assert (await r.turn(again, PATIENCE)).state is TurnState.COMPLETED
        assert dict(there.arrived) == {paid_key(again.run.id): 1}, "control: with its row it goes out"
