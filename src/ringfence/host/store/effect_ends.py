"""How effects in doubt end: what a person says of one, and what is known of all when their run ends. Write functions only.

Must never make an outcome up: what may have gone out, and of which nobody said anything, is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Row

from ringfence.host.kernel.effects import IN_DOUBT, EffectRow, EffectState
from ringfence.host.kernel.gates import Gate, GateAnswer
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.effect_rows import ALL, change_effect, effect_of
from ringfence.host.store.gates import answered_gates, use_gate
from ringfence.host.store.transaction import Tx

Judge = Callable[[EffectRow, Gate, datetime], str]  # "" or why the answer says nothing of that effect

# `again` is of what nobody knows: it is to be carried out once more.
_SAID: dict[GateAnswer | None, EffectState] = {
    GateAnswer.DONE: EffectState.DONE,
    GateAnswer.NOT_DONE: EffectState.NOT_DONE,
}


def as_said(tx: Tx, chain: Chain, row: Row[Any], epoch: int, gate: Gate) -> EffectRow:
    """What a person answered to a gate `in_doubt`, which is used up in this transaction."""
    said = {"by": gate.answered_by, "gate": gate.id, "answer": gate.answer.value if gate.answer else None}
    return change_effect(tx, chain, row, epoch, _SAID.get(gate.answer, EffectState.INTENDED), said, gate)


def use_answers(tx: Tx, chain: Chain, run: Row[Any], judge: Judge) -> None:
    """The run ends in this transaction: what people said of its effects in doubt, and nothing has used yet, is what is known.
    Of one that was to be carried out again nothing is."""
    said = {gate.n: gate for gate in answered_gates(tx, run.id) if gate.answer in _SAID}
    for row in tx.connection.execute(ALL, {"in_run": run.id}).all() if said else ():
        gate = said.get(row.n)
        if gate is None or EffectState(row.state) not in IN_DOUBT or judge(effect_of(row), gate, tx.onward_now()):
            continue
        as_said(tx, chain, row, row.epoch, use_gate(tx, run.id, gate.id, lambda *_: ""))


def close_effects(tx: Tx, chain: Chain, run: Row[Any]) -> dict[int, EffectState]:
    """The run ends in this transaction: what never went out is not done, what may have gone out is not known. By step."""
    closed = {}
    for row in tx.connection.execute(ALL, {"in_run": run.id}).all():
        state = EffectState(row.state)
        if state is EffectState.INTENDED:
            state = change_effect(tx, chain, row, row.epoch, EffectState.NOT_DONE, None).state
        elif state is EffectState.SENT:
            state = change_effect(tx, chain, row, row.epoch, EffectState.UNKNOWN, None).state
        closed[row.n] = state
    return closed
