"""J02 to J04: an approval of one call, and another call. Each with its control in test_gates.py: the approved one
goes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ringfence.host.engine.questions import Pen, call_of
from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import GateState
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.gates import use_gate
from ringfence.host.store.ledger import effects
from ringfence.host.store.schema import steps
from tests.support.approving import forged, newer, tried_again, yes, yes_while_down
from tests.support.paying import ASK, KEY, asked, paid_key, paying

# --- J02: what was approved is not what would be done ----------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"arguments": {"name": "pay", "body": {"amount": 500}}},
        {"digest": "0" * 64},
        {"n": 2},
        {"tool": "http.other"},
        {"policy": "0" * 64},
        {"sealed": "0" * 64},
        {"wall": False},
        {"mac": "0" * 64},
    ],
    ids=lambda values: next(iter(values)),
)
async def test_j02_a_question_that_was_changed_takes_no_answer(tmp_path: Path, values: dict[str, Any]) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        _, gate = await asked(r)
        await forged(r, gate, **values)
        with pytest.raises(Conflict, match="not one that this installation wrote"):
            await yes(r, gate)
        assert not outside.arrived


async def test_j02_arguments_changed_after_the_approval(tmp_path: Path) -> None:
    """The journal's row is changed too, as by somebody who owns the database: the approval is for another digest."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await r.store._database.write(
            lambda tx: tx.connection.execute(
                sa.update(steps).values(arguments={"name": "pay", "body": {"amount": 500}})
            )
        )
        await yes(r, gate)
        again = await newer(r, said, gate)
        assert again.arguments["body"] == {"amount": 500}, "asked anew, for what it is now"
        assert (await r.store.gates.get(gate.id)).reason == "the call is not what was approved"
        assert not outside.arrived


# --- J03: what it refers to ------------------------------------------------------------------------------------------


async def test_j03_another_place_behind_the_same_name_is_asked_anew(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await yes_while_down(r, gate, outside, secret=b"another key for the same name")
        again = await newer(r, said, gate)
        assert (await r.store.gates.get(gate.id)).reason == "what the call refers to is not what was approved"
        assert (again.state, again.digest) == (GateState.OPEN, gate.digest)
        assert not outside.arrived


# --- J04: once, here -------------------------------------------------------------------------------------------------


async def test_j04_it_is_for_one_step(tmp_path: Path) -> None:
    """The very same call again is asked again."""
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r, text="twice")
        await yes(r, gate)
        second = await newer(r, said, gate)
        assert (second.n, second.digest, second.state) == (2, gate.digest, GateState.OPEN)
        assert sum(outside.arrived.values()) == 1
        await yes(r, second)
        assert (await r.turn(said)).reply == "paid twice"
        assert sum(outside.arrived.values()) == 2


@pytest.mark.parametrize("state", ["allowed", "used"])
async def test_j04_a_used_gate_that_is_put_back_into_the_database(tmp_path: Path, state: str) -> None:
    """Copied to the other run, with its true macs: another run is not what was asked about."""
    async with paying(tmp_path, ASK) as (r, outside):
        first, gate = await asked(r, thread="one")
        await yes(r, gate)
        await r.turn(first)
        second, other = await asked(r, thread="two")
        used = await r.store.gates.get(gate.id)
        await forged(
            r,
            other,
            state="allowed",
            mac=used.mac,
            answer="allow",
            answered_by=used.answered_by,
            answered_via=used.answered_via,
            answered_at=used.answered_at,
            answer_mac=used.answer_mac,
        )
        if state == "used":
            await forged(r, other, state="used", used_at=used.used_at)
        await tried_again(r, second)
        if state == "used":
            await r.until(second.run.id, lambda run: run.state in (RunState.PARKED, RunState.COMPLETED))
        else:
            await newer(r, second, other)
        assert outside.arrived == {paid_key(first.run.id): 1}


async def test_j04_two_uses_at_once_are_one(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await yes(r, gate)
        await r.turn(said)
        [row] = await r.store.effects.of_run(said.run.id)
        pen = Pen(KEY)
        with pytest.raises(Conflict, match="used"):
            await r.store._database.write(lambda tx: use_gate(tx, said.run.id, gate.id, pen.usable_for(call_of(row))))
        with pytest.raises(Conflict):  # by the database itself, whatever the code says
            twin = {**{c.name: getattr(row, c.name) for c in effects.c}, "n": 2, "key": "other", "state": "done"}
            await r.store._database.write(lambda tx: tx.connection.execute(sa.insert(effects).values(twin)))
        assert await r.store.effects.of_run(said.run.id) == [row]
        alone = {**twin, "gate": None}
        await r.store._database.write(lambda tx: tx.connection.execute(sa.insert(effects).values(alone)))
        assert [one.n for one in await r.store.effects.of_run(said.run.id)] == [1, 2], "control: it was the gate"
        assert sum(outside.arrived.values()) == 1
