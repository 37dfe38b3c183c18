"""The ledger of what the host did for steps. Nouns and states. Pure.

intended   the intent is on disk; nothing has gone out, and nothing will once a newer epoch is at work
sent       it may have gone out
unknown    evidence was looked for and there was none
done, not_done
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.audit import Outcome
from ringfence.host.kernel.gates import GateId
from ringfence.host.kernel.ids import RunId, UserId


class EffectState(StrEnum):
    INTENDED = "intended"
    SENT = "sent"
    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


TRANSITIONS: dict[EffectState, frozenset[EffectState]] = {
    EffectState.INTENDED: frozenset({EffectState.SENT, EffectState.NOT_DONE}),
    EffectState.SENT: frozenset(
        {EffectState.INTENDED, EffectState.SENT, EffectState.DONE, EffectState.NOT_DONE, EffectState.UNKNOWN}
    ),  # intended: evidence says that it did not arrive; sent: once more under its key, whatever came of the first
    EffectState.UNKNOWN: frozenset(
        {EffectState.INTENDED, EffectState.SENT, EffectState.DONE, EffectState.NOT_DONE, EffectState.UNKNOWN}
    ),
    EffectState.DONE: frozenset(),
    EffectState.NOT_DONE: frozenset(),
}
# For people, of a step that was cut short.
_SAYS: dict[EffectState, str] = {
    EffectState.INTENDED: "it was not sent",
    EffectState.SENT: "it was sent, and whether it was done is not known",
    EffectState.UNKNOWN: "it was sent, and whether it was done is not known",
    EffectState.NOT_DONE: "it was not done",
    EffectState.DONE: "it was done",
}
IN_DOUBT = frozenset({EffectState.SENT, EffectState.UNKNOWN})


@dataclass(frozen=True, slots=True)
class EffectRow:
    run: RunId
    n: int
    user: UserId
    capability: str
    key: str  # what the receiver knows it by
    arguments: Mapping[str, Any]  # as they go out
    digest: str  # of the call
    sealed: str  # of what it refers to
    policy: str
    gate: GateId | None  # the approval that was used for it
    state: EffectState
    outcome: Mapping[str, Any]  # what is known of it; bounded
    epoch: int  # whose it is
    tries: int  # times that it was sent
    intent: str | None  # of the last of them, in the audit
    intended_at: datetime
    sent_at: datetime | None
    ended_at: datetime | None


def told(before: EffectState, after: EffectState) -> Outcome | None:
    """What the audit learns of the last try when the ledger goes from one state to another; None: nothing new."""
    if before not in IN_DOUBT:
        return None
    if after in IN_DOUBT:
        return Outcome.UNKNOWN if before is EffectState.SENT else None
    return Outcome.DONE if after is EffectState.DONE else Outcome.NOT_DONE


def with_effect(result: Mapping[str, Any], state: EffectState) -> dict[str, Any]:
    """The result of a step that was cut short (runs.cut_short), with what is known of its effect."""
    return {**result, "effect": state.value, "message": f"{result['message']}; {_SAYS[state]}"}
