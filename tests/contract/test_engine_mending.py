"""Gates `setup` and `auth`: what the host cannot send because something has to be mended first. The receiver counts.

"done" is no evidence: what is mended is looked at again. A renewed key leads to the same address, or nowhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from ringfence.host.capabilities.keys import secret_in
from ringfence.host.capabilities.webhook import Place, WebhookTool
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Invalid, NotFound, Refused
from ringfence.host.kernel.gates import Gate, GateKind, GateState, mac
from ringfence.host.kernel.policy import Policy
from ringfence.host.kernel.ports import Accepted, Clock
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import EventKind, TurnState
from ringfence.host.store.ledger import gates as table
from tests.support.approving import newer, result, yes
from tests.support.engine_rig import OPERATOR, Rig
from tests.support.paying import ASK, KEY, asked, paid_key, parked, paying
from tests.support.receiver import SECRET, Receiver

PATIENCE = 30.0
OTHER = b"another-secret-of-a-webhook"


def reading(file: Path) -> type[WebhookTool]:
    """Webhooks whose key is read of that file before each call."""

    class Reading(WebhookTool):
        def __init__(self, places: Sequence[Place], clock: Clock) -> None:
            one = places[0]
            super().__init__([replace(one, declared=replace(one.declared, secret_file=str(file)))], clock, secret_in)

    return Reading


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "canary-of-a-path"
    put(file)
    return file


def put(file: Path, secret: bytes = SECRET) -> None:
    file.write_bytes(secret)
    file.chmod(0o600)


async def over(r: Rig, gate: Gate) -> None:
    """Its time."""
    past = gate.created_at - timedelta(seconds=1)
    values = {"expires_at": past, "mac": mac(KEY, replace(gate, expires_at=past))}
    change = sa.update(table).where(table.c.id == gate.id).values(**values)
    await r.store._database.write(lambda tx: tx.connection.execute(change))


def sent(outside: Receiver, said: Accepted) -> int:
    assert set(outside.arrived) <= {paid_key(said.run.id)}, "one key, whatever happens"
    return sum(outside.arrived.values())


# --- setup -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoilt", ["gone", "short", "public"])
async def test_a_key_that_is_no_key_now_is_asked_for(tmp_path: Path, key: Path, spoilt: str) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        match spoilt:
            case "gone":
                key.unlink()
            case "short":
                key.write_bytes(b"canary")
            case _:
                key.chmod(0o644)
        said, gate = await asked(r)
        assert (gate.kind, gate.state, gate.wall) == (GateKind.SETUP, GateState.OPEN, True)
        run = await r.store.runs.get(said.run.id)
        assert (run.state, run.reason, run.worker, run.attempts) == (RunState.PARKED, "setup", None, 0)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries, sent(outside, said)) == (EffectState.INTENDED, 0, 0)
        assert "secret_file of webhook pay" in gate.shown["missing"] and ("chmod 600" in gate.shown["mend"]) is (
            spoilt != "gone"
        )
        assert "canary" not in repr(gate), "neither the key nor where it lies"
        put(key)
        await yes(r, gate, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        assert (sent(outside, said), outside.bad) == (1, [])
        assert (await r.store.gates.get(gate.id)).state is GateState.USED


async def test_done_is_looked_at_again(tmp_path: Path, key: Path) -> None:
    """Whoever says done without mending it is asked again; nothing goes out meanwhile."""
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        key.unlink()
        said, gate = await asked(r)
        await yes(r, gate, said="done")
        again = await newer(r, said, gate)
        assert (again.kind, again.state, sent(outside, said)) == (GateKind.SETUP, GateState.OPEN, 0)
        put(key)
        await yes(r, again, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        assert sent(outside, said) == 1


async def test_it_waits_through_the_end_of_loop_box_and_server(tmp_path: Path, key: Path) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        key.unlink()
        said, gate = await asked(r)
        await r.restart(lambda: r.world.kill_box(r.box("alice").id))
        assert (await r.store.gates.get(gate.id)).state is GateState.OPEN
        put(key)
        await yes(r, gate, said="done")
        await r.restart()
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        assert sent(outside, said) == 1


@pytest.mark.parametrize("mended", [True, False], ids=["mended", "not mended"])
async def test_a_gate_whose_time_is_over_is_looked_at_once_more(tmp_path: Path, key: Path, mended: bool) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        key.unlink()
        said, gate = await asked(r)
        if mended:
            put(key)
        await over(r, gate)
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        told = await result(r, said)
        assert (told["ok"], sent(outside, said)) == (mended, int(mended))
        assert len(await r.store.gates.of_run(said.run.id)) == 1
        if not mended:
            assert "nobody answered in time" in told["error"]


async def test_no_ends_the_step(tmp_path: Path, key: Path) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        key.unlink()
        said, gate = await asked(r)
        await yes(r, gate, said="deny")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        told = await result(r, said)
        assert (told["reason"], told["effect"], sent(outside, said)) == ("refused", "not_done", 0)
        [row] = await r.store.effects.of_run(said.run.id)
        assert row.state is EffectState.NOT_DONE


async def test_what_the_policy_denies_is_not_asked_for(
    tmp_path: Path, key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with paying(tmp_path, Policy(), kind=reading(key)) as (r, outside):
        key.unlink()
        said = await r.say("alice", "pay")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert await r.store.gates.of_run(said.run.id) == []
        assert not outside.arrived
        assert key.name not in caplog.text, "its key is not looked for"


async def test_an_approval_is_asked_for_too_and_used_once(tmp_path: Path, key: Path) -> None:
    async with paying(tmp_path, ASK, kind=reading(key)) as (r, outside):
        said, first = await asked(r)
        assert first.kind is GateKind.APPROVAL
        key.unlink()
        await yes(r, first)
        second = await newer(r, said, first)
        assert second.kind is GateKind.SETUP
        put(key)
        await yes(r, second, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        states = [gate.state for gate in await r.store.gates.of_run(said.run.id)]
        assert (states, sent(outside, said)) == ([GateState.USED, GateState.USED], 1)


# --- auth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["401", "403"])
async def test_a_receiver_that_does_not_take_our_key_is_asked_about(tmp_path: Path, key: Path, status: str) -> None:
    """It says itself that nothing was done; once somebody has mended it, the same goes out under the same key."""
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave = status
        said, gate = await asked(r)
        assert (gate.kind, gate.state) == (GateKind.AUTH, GateState.OPEN)
        assert status in gate.shown["missing"]
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries, sent(outside, said), outside.looked) == (EffectState.INTENDED, 1, 1, [])
        outside.behave = "ok"
        await yes(r, gate, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, row.tries, sent(outside, said), len(outside.done)) == (EffectState.DONE, 2, 2, 1)


async def test_done_without_a_change_there_asks_again(tmp_path: Path, key: Path) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave = "401"
        said, gate = await asked(r)
        await yes(r, gate, said="done")
        again = await newer(r, said, gate)
        assert (again.kind, again.state, sent(outside, said)) == (GateKind.AUTH, GateState.OPEN, 2)
        await yes(r, again, said="deny")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert ((await result(r, said))["effect"], sent(outside, said)) == ("not_done", 2)


async def test_a_gate_that_nobody_answered_is_tried_once_more(tmp_path: Path, key: Path) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave = "403"
        said, gate = await asked(r)
        await over(r, gate)
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        told = await result(r, said)
        assert (told["status"], told["effect"], sent(outside, said)) == (403, "not_done", 2)
        assert len(await r.store.gates.of_run(said.run.id)) == 1


async def test_a_key_that_was_renewed_goes_on_with_what_was_let_through(tmp_path: Path, key: Path) -> None:
    """Approved under the old key, turned away, renewed: no second approval, and signed with the new one."""
    async with paying(tmp_path, ASK, kind=reading(key)) as (r, outside):
        put(key, OTHER)  # not the one that the receiver knows
        outside.behave = "401"
        said, first = await asked(r)
        await yes(r, first)
        second = await newer(r, said, first)
        assert (second.kind, outside.bad) == (GateKind.AUTH, ["signature"])
        put(key)
        outside.behave = "ok"
        await yes(r, second, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        assert (outside.bad, sent(outside, said), len(outside.done)) == (["signature"], 2, 1)
        kinds = [gate.kind for gate in await r.store.gates.of_run(said.run.id)]
        assert kinds == [GateKind.APPROVAL, GateKind.AUTH]


async def test_a_renewed_key_leads_to_no_other_address(tmp_path: Path, key: Path) -> None:
    """The attack: a place of the same name somewhere else, put there while somebody renews a key. The control is above."""
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave = "401"
        said, gate = await asked(r)
        tool = r.with_parts["capabilities"]["http.webhook"]
        place = tool._places["pay"]
        elsewhere = replace(place.declared, url=place.declared.url.replace("/hook", "/elsewhere"))
        tool._places["pay"] = replace(place, declared=elsewhere)
        outside.behave = "ok"
        await yes(r, gate, said="done")
        assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
        assert (outside.done, sent(outside, said)) == ({}, 1)
        closed = await r.store.gates.get(gate.id)
        assert (closed.state, "what the call refers to" in closed.reason) == (GateState.EXPIRED, True)


async def test_a_control_without_the_gate_a_changed_key_stops_it(tmp_path: Path, key: Path) -> None:
    """A key that changes under an intent that nobody was asked about: it is not what was let through."""
    async with paying(tmp_path, ASK, kind=reading(key)) as (r, outside):
        said, gate = await asked(r)
        put(key, OTHER)
        await yes(r, gate)
        again = await newer(r, said, gate)
        assert (again.kind, sent(outside, said)) == (GateKind.APPROVAL, 0)


# --- who, and what they see ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GateKind.SETUP, GateKind.AUTH])
async def test_who_answers_and_who_sees_what(tmp_path: Path, key: Path, kind: GateKind) -> None:
    """The acting person answers; the operator sees what is missing and how to mend it, and nothing of the call."""
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave = "401"
        if kind is GateKind.SETUP:
            key.unlink()
        said, gate = await asked(r)
        assert gate.kind is kind
        with pytest.raises(NotFound):
            await r.engine.gates.show(r.actors["bob"], gate.id)
        with pytest.raises((Refused, NotFound)):
            await r.engine.gates.answer(OPERATOR, gate.id, "done", None)
        for no_answer in ("allow", "again", "not-done"):
            with pytest.raises(Invalid, match="no answer"):
                await yes(r, gate, said=no_answer)
        own, seen = await r.engine.gates.show(r.actors["alice"], gate.id), await r.engine.gates.show(OPERATOR, gate.id)
        assert own.answers == ["done", "deny"] and own.call is not None and "amount" in own.call
        assert own.gate.shown == gate.shown
        assert (seen.call, seen.gate.arguments, "amount" in repr(seen)) == (None, {}, False)
        assert seen.gate.shown == {name: gate.shown[name] for name in ("missing", "mend")}, "not where it goes"
        assert "canary" not in repr((own, seen))
        events = await r.store.events.after(said.turn.thread, 0, 1000)
        [park] = [event.body for event in events if event.kind is EventKind.RUN_PARKED]
        assert (park["kind"], park["gate"]) == (kind.value, gate.id)
        assert "canary" not in repr(events)


async def test_a_cancelled_run_closes_it_as_not_done(tmp_path: Path, key: Path) -> None:
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave = "401"
        said, gate = await asked(r)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        assert (await r.turn(said, PATIENCE)).state is TurnState.CANCELLED
        [row] = await r.store.effects.of_run(said.run.id)
        closed = await r.store.gates.get(gate.id)
        assert (row.state, closed.state, sent(outside, said)) == (EffectState.NOT_DONE, GateState.CANCELLED, 1)


async def test_turned_away_while_the_server_was_gone(tmp_path: Path, key: Path) -> None:
    """The loop is lost between the request and its 401: it is sent again, turned away again, and asked about then."""
    async with paying(tmp_path, kind=reading(key)) as (r, outside):
        outside.behave, outside.says = "hang_before", "not_done"
        said = await r.say("alice", "pay")
        await asyncio.wait_for(outside.seen.wait(), PATIENCE)

        async def down() -> None:
            outside.behave = "401"
            await r.world.kill_box(r.box("alice").id)

        await r.restart(down)
        await r.until(said.run.id, lambda run: run.state is RunState.PARKED, PATIENCE)
        gate = await parked(r, said)
        assert gate.kind is GateKind.AUTH
        outside.behave = "ok"
        await yes(r, gate, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "paid"
        assert len(outside.done) == 1
