"""Questions to people about calls, and the words of their ends for the model. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from ringfence.host.kernel.capabilities import Need, Sealed
from ringfence.host.kernel.dispatch import Owed
from ringfence.host.kernel.effects import EffectRow
from ringfence.host.kernel.gates import (
    APPROVAL_SECONDS,
    MENDING_SECONDS,
    Call,
    Gate,
    GateAnswer,
    GateKind,
    GateState,
    Question,
    answer_mac,
    genuine,
    mac,
    unusable,
)
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.policy import Obligations

TO_MEND = ("missing", "mend")  # of what a gate that asks for mending shows: the operator's part
DENIED_BEFORE = "the same call was asked for before in this run, and the answer was no"


def approval(due: Owed, sealed: Sealed | None, owner: UserId | None, now: datetime) -> Question:
    last = now + timedelta(seconds=APPROVAL_SECONDS)
    return Question(
        kind=GateKind.APPROVAL,
        n=due.call.n,
        tool=due.call.tool,
        arguments=due.arguments,
        digest=due.call.digest,
        policy=due.call.policy,
        sealed=due.call.sealed,
        shown=sealed.shown if sealed is not None else {},
        obligations=due.decision.obligations,
        wall=due.decision.wall,
        expires_at=last if due.expires_at is None else min(last, due.expires_at),
        owner=owner,
    )


def in_doubt(row: EffectRow, shown: Mapping[str, Any], owner: UserId | None) -> Question:
    """Whether it was done. Without an end of its time: nobody else can know."""
    return Question(
        kind=GateKind.IN_DOUBT,
        n=row.n,
        tool=row.capability,
        arguments=row.arguments,
        digest=row.digest,
        policy=row.policy,
        sealed=row.sealed,
        shown=shown,
        obligations=Obligations(),
        wall=True,
        expires_at=None,
        owner=owner,
    )


def mending(row: EffectRow, sealed: Sealed, need: Need, owner: UserId | None, now: datetime) -> Question:
    """What has to be mended before it can go out. Sealed with the address alone, as the key may be what is renewed."""
    return Question(
        kind=need.kind,
        n=row.n,
        tool=row.capability,
        arguments=row.arguments,
        digest=row.digest,
        policy=row.policy,
        sealed=sealed.place or sealed.digest,
        shown={**sealed.shown, **dict(zip(TO_MEND, (need.missing, need.mend), strict=True))},
        obligations=Obligations(),
        wall=True,
        expires_at=now + timedelta(seconds=MENDING_SECONDS),
        owner=owner,
    )


def call_of(row: EffectRow) -> Call:
    return Call(row.run, row.n, row.capability, row.digest, row.user, row.policy, row.sealed)


class Pen:
    """Signs gates and checks them, without showing its key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def question(self, gate: Gate) -> str:
        return mac(self._key, gate)

    def answer(self, gate: Gate) -> str:
        return answer_mac(self._key, gate)

    def genuine(self, gate: Gate) -> bool:
        return genuine(self._key, gate)

    def judge(self, row: EffectRow, gate: Gate, now: datetime) -> str:
        """Why the answer to a gate `in_doubt` says nothing of the effect; "" when it does."""
        return unusable(self._key, gate, call_of(row), now)

    def usable_for(self, call: Call) -> Callable[[Gate, datetime], str]:
        return lambda gate, now: unusable(self._key, gate, call, now)


def refused(why: str) -> dict[str, Any]:
    """The result of a step that was not let through."""
    return {"ok": False, "reason": "refused", "effect": "not_done", "error": f"refused: {why}"}


def not_given(gate: Gate) -> str:
    """Why a gate that is closed lets nothing through."""
    if gate.state is GateState.DENIED:
        return "it was asked for, and the answer was no"
    return f"it was asked for, and {gate.reason or 'there was no answer'}"


def said(gate: Gate) -> dict[str, Any]:
    """The result of a step whose effect was in doubt, as a person decided."""
    if gate.answer is GateAnswer.DONE:
        return {"ok": True, "effect": "done", "message": "what came back is not known; a person says that it was done"}
    return {"ok": False, "effect": "not_done", "error": "a person says that it was not done, and is not to be done"}
