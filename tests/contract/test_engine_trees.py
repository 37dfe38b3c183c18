"""A turn of several steps, and between any two of them nothing happens, or the store is opened anew, or the box is destroyed
(its tree kept), or its tree is restored from an older copy; and the loop is lost with it, or the whole server.

The receiver counts what went out, a file in the box what was done there.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import StaleEpoch
from ringfence.host.kernel.gates import GateKind, GateState
from ringfence.host.kernel.ports import Accepted, ModelReply
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.script import parse_script
from ringfence.host.kernel.threads import TurnState
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.store import open_store
from tests.support.clocks import CountingIds
from tests.support.databases import address
from tests.support.engine_rig import CONFIG, RealClock, Rig
from tests.support.paying import ALLOW, ASK, CALL, Repeatable, asked, paid_key, parked, paying

PATIENCE = 30.0


def shell(word: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "shell", "arguments": {"command": f"echo {word} >> log"}}]}


ANSWERS = [shell("one"), {"tool_calls": [CALL]}, shell("two"), {"text": "paid"}]
STEPS = len(ANSWERS) - 1
AT = re.compile(r"work (\d)")


class Stops:
    """ports.Model: in a turn that says `work N` it thinks, once N steps have ended, until somebody lets it go on. That is
    between two steps. What it then asks for has N in the names of its files."""

    def __init__(self, answers: Sequence[Mapping[str, Any]] = ANSWERS) -> None:
        self.places = range(len(answers))
        rules = [{"when": f"work {at}", "answers": _of_place(answers, at)} for at in self.places]
        self._inner = Scripted(parse_script(json.dumps(rules)))
        self.reached = {at: asyncio.Event() for at in self.places}
        self.go_on = asyncio.Event()

    @property
    def window(self) -> int:
        return self._inner.window

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        asked = AT.search(str([message["text"] for message in messages if message["role"] == "user"]))
        assert asked is not None
        at = int(asked[1])
        if sum(message["role"] == "tool" for message in messages) == at and not self.go_on.is_set():
            self.reached[at].set()
            await self.go_on.wait()
        return await self._inner.generate(messages, tools, on_delta)

    async def all_reached(self) -> None:
        async with asyncio.timeout(PATIENCE):
            for reached in self.reached.values():
                await reached.wait()


def _of_place(answers: Sequence[Mapping[str, Any]], at: int) -> list[dict[str, Any]]:
    text = json.dumps(answers).replace(">> log", f">> log{at}").replace('"path": "note"', f'"path": "note{at}"')
    found: list[dict[str, Any]] = json.loads(text)
    return found


async def working(r: Rig, model: Stops) -> list[Accepted]:
    """A turn for each place between two of its steps, all of them at once."""
    r.model = model
    await r.restart()
    return [await r.say("alice", f"work {at}", thread=f"t{at}") for at in model.places]


async def reopened(r: Rig, folder: Path) -> None:
    await r.store.close()
    r.store = await open_store(address(folder), RealClock(), CountingIds(1 << 40), installation=CONFIG.installation)


async def happens(r: Rig, folder: Path, what: str) -> None:
    box = r.box("alice").id
    if what == "reopened":
        await reopened(r, folder)
    if what in ("destroyed", "restored"):
        await r.world.kill_box(box)
    if what == "restored":
        await r.store.boxes.new_tree(box)


async def comes_to_its_end(r: Rig, said: Accepted, at: int, arrived: Mapping[str, int]) -> None:
    turn = await r.turn(said, PATIENCE)
    assert (turn.state, turn.reply) == (TurnState.COMPLETED, "paid")
    assert (r.box("alice").folder / f"log{at}").read_text() == "one\ntwo\n"
    assert _of(said, arrived) == {paid_key(said.run.id, 2): 1}
    states = [step.state.value for step in await r.store.steps.all(said.run.id)]
    assert states == ["ended"] * STEPS


def _of(said: Accepted, arrived: Mapping[str, int]) -> dict[str, int]:
    return {key: times for key, times in arrived.items() if key.startswith(f"s/{said.run.id}/")}


# A loop ends with its box: that nothing else happens is the same as that the box is destroyed.
CASES = [("nothing", "server"), ("reopened", "server")]
CASES += [(what, gone) for what in ("destroyed", "restored") for gone in ("loop", "server")]


async def strikes(r: Rig, folder: Path, what: str, gone: str) -> None:
    if gone == "server":
        await r.restart(lambda: happens(r, folder, what))
    else:
        await happens(r, folder, what)


@pytest.mark.parametrize(("what", "gone"), CASES, ids=["-".join(case) for case in CASES])
async def test_between_two_steps(tmp_path: Path, what: str, gone: str) -> None:
    """At each place at once: before the first step, between any two, after the last one. Nothing is recorded after the
    checkpoint there, so another tree under it is no reason to fail."""
    model = Stops()
    async with paying(tmp_path, ALLOW) as (r, outside):
        said = await working(r, model)
        await model.all_reached()
        await strikes(r, tmp_path, what, gone)
        model.go_on.set()
        try:
            for at, one in enumerate(said):
                await comes_to_its_end(r, one, at, outside.arrived)
        finally:
            if what == "reopened":  # the rig closes the first one
                await r.engine.stop()
                await r.store.close()


NOTE = {"path": "note", "text": "here"}
CLASSES: list[dict[str, Any]] = [
    {"tool_calls": [{"name": "write", "arguments": NOTE}]},  # idempotent, in the box
    {"tool_calls": [{"name": "read", "arguments": {"path": "note"}}]},  # pure
    {"tool_calls": [CALL]},  # behind a gate; idempotent, of the host
    {"text": "paid"},
]
GATE = 3  # the step that is asked about


async def answered(r: Rig, said: Accepted) -> None:
    await r.until(said.run.id, lambda run: run.state is RunState.PARKED, PATIENCE)
    gate = (await r.store.gates.of_run(said.run.id))[-1]
    await r.engine.gates.answer(r.actors["alice"], gate.id, "allow", None)


@pytest.mark.parametrize("gone", ["loop", "server"])
@pytest.mark.parametrize("what", ["destroyed", "restored"])
async def test_between_two_steps_of_other_classes(tmp_path: Path, what: str, gone: str) -> None:
    """Pure, idempotent, and one that is asked about: what has ended is not done again, and it is asked once."""
    model = Stops(CLASSES)
    async with paying(tmp_path, ASK, kind=Repeatable) as (r, outside):
        said = await working(r, model)
        await answered(r, said[GATE])
        await model.all_reached()
        notes = [r.box("alice").folder / f"note{at}" for at in model.places]
        for note in notes[1:]:
            note.write_text("as it was left")  # who writes it again, or reads it again, is found out
        await strikes(r, tmp_path, what, gone)
        model.go_on.set()
        for at, one in enumerate(said):
            if at < GATE:
                await answered(r, one)
            turn = await r.turn(one, PATIENCE)
            assert (turn.state, turn.reply) == (TurnState.COMPLETED, "paid")
            steps = await r.store.steps.all(one.run.id)
            assert [(step.effect.value, step.state.value) for step in steps] == [
                ("idempotent", "ended"),
                ("pure", "ended"),
                ("idempotent", "ended"),
            ]
            assert notes[at].read_text() == ("as it was left" if at else "here")
            assert steps[1].result == {"ok": True, "text": "as it was left" if at == 1 else "here"}
            assert list(_of(one, outside.arrived).values()) == [1]
            assert [gate.state for gate in await r.store.gates.of_run(one.run.id)] == [GateState.USED]


@pytest.mark.parametrize("gone", ["loop", "server"])
async def test_a_box_that_is_destroyed_under_a_question(tmp_path: Path, gone: str) -> None:
    """Its tree is kept: the question stays, and its answer lets the call through once."""
    async with paying(tmp_path, ASK, kind=Repeatable) as (r, outside):
        said, gate = await asked(r)
        if gone == "server":
            await r.restart(lambda: happens(r, tmp_path, "destroyed"))
        else:
            await happens(r, tmp_path, "destroyed")
        assert (await r.store.gates.get(gate.id)).state is GateState.OPEN
        await answered(r, said)
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert list(outside.arrived.values()) == [1]


async def test_a_tree_that_is_another_one_under_a_step(tmp_path: Path) -> None:
    """The step that is under way was recorded after the checkpoint: it is not guessed what of it is in the tree."""
    async with paying(tmp_path) as (r, _):
        said = await r.say("alice", "$ echo x >> log; sleep 30\n$ echo on")
        await r.running_command("alice", f"s/{said.run.id}/1")
        row = await r.store.runs.get(said.run.id)
        assert await r.store.boxes.new_tree(r.box("alice").id) == 1
        with pytest.raises(StaleEpoch):
            await r.store.runs.requeue(said.run.id, row.epoch, "late")
        turn = await r.turn(said, PATIENCE)
        assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
        again = await r.say("alice", "$ echo works")
        assert (await r.turn(again, PATIENCE)).state is TurnState.COMPLETED


async def test_a_tree_that_is_another_one_under_a_question(tmp_path: Path) -> None:
    """What was asked is asked no more, and nothing goes out."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.store.boxes.new_tree(r.box("alice").id)
        turn = await r.turn(said, PATIENCE)
        assert (turn.state, turn.reason) == (TurnState.FAILED, "incompatible")
        closed = await r.store.gates.get(gate.id)
        assert (closed.state, "tree" in closed.reason) == (GateState.CANCELLED, True)
        assert not outside.arrived


@pytest.mark.parametrize("says", ["done", "unknown"])
async def test_a_tree_that_is_another_one_while_something_is_out(tmp_path: Path, says: str) -> None:
    """The run fails, and the record says what became of the effect: evidence is sought first."""
    async with paying(tmp_path) as (r, outside):
        outside.behave, outside.says = "hang_after", says
        said = await r.say("alice", "pay")
        async with asyncio.timeout(PATIENCE):
            await outside.seen.wait()

        async def down() -> None:
            await happens(r, tmp_path, "restored")

        await r.restart(down)
        turn = await r.turn(said, PATIENCE)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (turn.state, turn.reason, row.state.value) == (TurnState.FAILED, "incompatible", says)
        assert sum(outside.arrived.values()) == 1


async def test_other_peoples_runs_and_those_that_have_not_begun_are_let_be(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, _):
        bobs, gate = await asked(r, "bob", thread="b")
        assert gate.kind is GateKind.APPROVAL
        assert await r.store.boxes.new_tree(r.box("alice").id) == 0
        assert (await r.store.runs.get(bobs.run.id)).state is RunState.PARKED
        assert (await parked(r, bobs)).state is GateState.OPEN
