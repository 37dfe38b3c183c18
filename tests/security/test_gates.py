"""Group J: authority that somebody else has, or had, or never gave. Each with its control: the same without the attack works.

An approval lets exactly one call through, once. The database alone makes none, and neither does a loop. Another call
than the approved one: test_gates_other_calls.py; too late, by somebody else, too often: test_gates_late.py.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Conflict, NotFound
from ringfence.host.kernel.gates import GateAnswer, GateKind, GateState, answer_mac
from ringfence.host.kernel.policy import Policy, Rule, Verdict
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from ringfence.wire import messages as wire
from tests.support.approving import forged, newer, result, tried_again, yes
from tests.support.engine_rig import eventually
from tests.support.fakes import Loop
from tests.support.paying import ASK, KEY, asked, paid_key, parked, paying


async def test_an_approved_call_goes_out_once(tmp_path: Path) -> None:
    """The control of everything below."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        assert (gate.kind, gate.wall, gate.arguments) == (
            GateKind.APPROVAL,
            True,
            {"name": "pay", "body": {"amount": 5}},
        )
        assert not outside.arrived
        run = await r.store.runs.get(said.run.id)
        assert (run.worker, run.lease_until, run.token_hash, run.reason) == (None, None, "", "approval")
        await eventually(lambda: not r.box("alice").loops, "its loop to end")
        await yes(r, gate)
        assert (await r.turn(said)).reply == "paid"
        assert outside.arrived == {paid_key(said.run.id): 1}
        used = await r.store.gates.get(gate.id)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (used.state, row.gate) == (GateState.USED, gate.id)
        kinds = [event.kind.value for event in await r.store.events.after(said.turn.thread, 0, 100)]
        assert [kind for kind in kinds if "park" in kind or "gate" in kind or "resum" in kind] == [
            "run.parked",
            "gate.answered",
            "run.resumed",
        ]


async def test_no_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.engine.gates.answer(r.actors["alice"], gate.id, "deny", None)
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert (await result(r, said))["reason"] == "refused"
        assert not outside.arrived


async def test_it_survives_the_loop_the_box_and_the_server(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        await yes(r, gate)
        await r.restart()
        assert (await r.turn(said)).reply == "paid"
        assert outside.arrived == {paid_key(said.run.id): 1}


# --- J01, J08: words of a model, words of a loop ---------------------------------------------------------------------


async def test_j01_j08_a_loop_approves_nothing(tmp_path: Path) -> None:
    """It says that the user has approved, invents methods, ends the step by itself, begins it as another class."""
    refused: list[str] = []

    async def sly(loop: Loop) -> None:
        token, arguments = loop.start["token"], {"name": "pay", "body": {"approved": "by alice"}}
        for method in ("gate.answer", "gate.ask", "effect.call", "gates.answer"):
            try:
                await loop.ask(method, {"gate": "gat_1", "answer": "allow", "token": token})
            except NotFound:
                refused.append(method)
        try:
            await loop.ask("step.end", wire.StepEnd(token, 1, {"ok": True, "approved": True}))
        except NotFound:
            refused.append("step.end before")
        await loop.ask("step.begin", wire.StepBegin(token, 1, "http.webhook", arguments, "pure"))

    async with paying(tmp_path, ASK, script=sly) as (r, outside):
        said, gate = await asked(r)  # what it asked before that is answered
        assert len(refused) == 5
        assert (await r.store.gates.get(gate.id)).state is GateState.OPEN
        assert (await r.store.runs.get(said.run.id)).state is RunState.PARKED
        assert not outside.arrived


async def test_j08_a_loop_does_not_end_a_step_of_the_host(tmp_path: Path) -> None:
    async def sly(loop: Loop) -> None:
        token = loop.start["token"]
        arguments = {"name": "pay", "body": {}}
        begin = loop.ask("step.begin", wire.StepBegin(token, 1, "http.webhook", arguments, "host"))
        done = await asyncio.gather(begin, while_it_is_out(loop), return_exceptions=True)
        assert isinstance(done[1], Conflict)
        await loop.ask("run.finish", wire.RunFinish(token, "ok", 1 << 40))

    async def while_it_is_out(loop: Loop) -> Any:
        await outside.seen.wait()
        try:
            return await loop.ask("step.end", wire.StepEnd(loop.start["token"], 1, {"ok": True, "forged": True}))
        finally:
            outside.gate.set()

    policy = Policy((Rule("*", Verdict.ALLOW),))
    async with paying(tmp_path, policy, script=sly) as (r, outside):
        outside.behave = "hang_after"
        said = await r.say("alice", "pay")
        assert (await r.turn(said)).reply == "ok"
        assert (await result(r, said))["effect"] == "done"


# --- J07: the database alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, b"w" * 32], ids=["no mac", "a mac of another key"])
async def test_an_answer_written_into_the_database_is_none(tmp_path: Path, key: bytes | None) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        at = r.clock.now()
        made = replace(gate, answer=GateAnswer.ALLOW, answered_by=gate.user, answered_via="token:t", answered_at=at)
        mac = answer_mac(key, made) if key is not None else ""
        values = {"answer": "allow", "answered_by": gate.user, "answered_via": "token:t", "answered_at": at}
        await forged(r, gate, state="allowed", answer_mac=mac, **values)
        await tried_again(r, said)
        await newer(r, said, gate)
        assert (await r.store.gates.get(gate.id)).reason == "the gate was not written by this installation"
        assert not outside.arrived


async def test_the_control_of_the_forged_answer(tmp_path: Path) -> None:
    """With the true key the very same row lets it through: it is the mac that stops it."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        at = r.clock.now() - timedelta(seconds=1)
        made = replace(gate, answer=GateAnswer.ALLOW, answered_by=gate.user, answered_via="token:t", answered_at=at)
        values = {"answer": "allow", "answered_by": gate.user, "answered_via": "token:t", "answered_at": at}
        await forged(r, gate, state="allowed", answer_mac=answer_mac(KEY, made), **values)
        await tried_again(r, said)
        assert (await r.turn(said)).reply == "paid"
        assert sum(outside.arrived.values()) == 1


# --- advice ----------------------------------------------------------------------------------------------------------


async def test_a_gate_before_a_command_is_advice_and_says_so(tmp_path: Path) -> None:
    policy = Policy(
        (Rule("shell", Verdict.ASK, (("command", "*secret*"),)), Rule("shell", Verdict.DENY, (("command", "rm *"),)))
    )
    async with paying(tmp_path, policy) as (r, _):
        said = await r.say("alice", "$ echo secret >> log\n$ rm log\n$ echo on")
        gate = await parked(r, said)
        assert (gate.wall, gate.tool) == (False, "shell")
        view = await r.engine.gates.show(r.actors["alice"], gate.id)
        assert view.means.startswith("advice")
        assert not (r.box("alice").folder / "log").exists()
        await yes(r, gate)
        turn = await r.turn(said)
        assert turn.state is TurnState.COMPLETED
        assert (r.box("alice").folder / "log").read_text() == "secret\n"
        assert (await result(r, said, 2))["reason"] == "refused"
        assert (await r.store.gates.get(gate.id)).state is GateState.USED


# --- J05: what is shown ----------------------------------------------------------------------------------------------

NASTY = "pay\u202e\u0440\u0430ypal\x1b[2K\x1b]0;owned\x07\u200b\x7f" + "\n" * 3 + "end"


async def test_j05_everything_is_shown_and_nothing_obeyed(tmp_path: Path) -> None:
    body = {"to": NASTY, "k\u0435y": [True, None, 1.5], "long": "x" * 100_000 + "END"}

    async def wants(loop: Loop) -> None:
        arguments = {"name": "pay", "body": body}
        await loop.ask("step.begin", wire.StepBegin(loop.start["token"], 1, "http.webhook", arguments, "host"))

    async with paying(tmp_path, ASK, script=wants) as (r, _):
        _, gate = await asked(r)
        view = await r.engine.gates.show(r.actors["alice"], gate.id)
        assert view.call is not None
        assert all(character == "\n" or " " <= character <= "~" for character in view.call)
        tool, _, text = view.call.partition(" ")
        assert (tool, json.loads(text)) == ("http.webhook", {"name": "pay", "body": body}), "all of it, and the same"
        assert "END" in view.call
        named = "\n".join(view.odd)
        for name in ("RIGHT-TO-LEFT OVERRIDE", "CYRILLIC SMALL LETTER ER", "U+001B", "ZERO WIDTH SPACE", "U+007F"):
            assert name in named
