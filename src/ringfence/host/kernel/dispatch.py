"""A call that may go out: made in one way only, by discharging what it owes. Pure.

The store takes an intent from a `Dispatch` and from nothing else, so that no path leads around an obligation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ringfence.host.kernel.canonical import canonical_json, digest, digest_of
from ringfence.host.kernel.capabilities import key_of
from ringfence.host.kernel.effects import EffectRow
from ringfence.host.kernel.errors import Failed, Invalid, Refused, TooLarge
from ringfence.host.kernel.gates import MENDING, Call, Gate, GateKind, GateState, unusable
from ringfence.host.kernel.policy import Decision, Verdict, redacted
from ringfence.host.kernel.runs import Effect

_DISCHARGED = object()


@dataclass(frozen=True, slots=True)
class Owed:
    """The call as it would go out, before what it owes is paid."""

    call: Call
    arguments: Mapping[str, Any]  # redacted
    decision: Decision
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Made by `discharge`. Failed: by anything else."""

    call: Call
    arguments: Mapping[str, Any]
    gate: Gate | None
    discharged: object

    def __post_init__(self) -> None:
        if self.discharged is not _DISCHARGED:
            raise Failed("a call goes out only after its obligations are discharged", remedy="report this")


def owed(
    decision: Decision, call: Call, arguments: Mapping[str, Any], effect: Effect, begun_at: datetime, limit: int
) -> Owed:
    """The exact call: redacted, within its bounds, its digest put into `call`. TooLarge."""
    going = redacted(arguments, decision.obligations.redact)
    spelled = canonical_json(going)
    cap = min(limit, decision.obligations.cap_bytes if decision.obligations.cap_bytes is not None else limit)
    if len(spelled) > cap:
        raise TooLarge(f"the arguments have {len(spelled)} bytes as JSON; the limit is {cap}", limit=cap)
    seconds = decision.obligations.expire_seconds
    exact = replace(call, digest=digest_of(call.tool, spelled, effect), policy=decision.policy)
    return Owed(exact, going, decision, None if seconds is None else begun_at + timedelta(seconds=seconds))


def check_still(due: Owed, digest: str, now: datetime) -> None:
    """Of a call that was let through before as `digest`, and has not gone out yet. Refused: not by the policy of now, or not any
    more. Whether it asks is the caller's to look at."""
    if due.decision.answer is Verdict.DENY:
        raise Refused(due.decision.why)
    if due.call.digest != digest:
        raise Refused("the policy redacts it in another way than when it was let through")
    _check_time(due, now)


def altered(row: EffectRow, effect: Effect) -> str:
    """Why the ledger's row is not the call that its digest names; "" when it is. The row is what is sent, and no seal is on it."""
    try:
        named = digest(row.capability, row.arguments, effect)
    except (Invalid, TypeError, ValueError):  # no JSON object
        named = ""
    if named != row.digest:
        return "what lies in the ledger is not the call that was let through"
    return "" if row.key == key_of(row.run, row.n, row.digest) else "its key in the ledger is not that of the call"


def unapproved(key: bytes, row: EffectRow, gates: Sequence[Gate], place: str) -> str:
    """Why the gate that the ledger names is no used approval of that very call; "" when it is. `gates`: of the run; `place`: as
    `Sealed` has it now.

    The policy may be a later one, which is judged by itself, and the key of the place a renewed one, if a person said so at a
    gate that is sealed with the same address. Whether it was in time was looked at when it was used."""
    gate = next((each for each in gates if each.id == row.gate), None)
    if gate is None or gate.kind is not GateKind.APPROVAL or gate.state is not GateState.USED:
        return "the gate that the ledger names is no approval that was used for it"
    call = Call(row.run, row.n, row.capability, row.digest, row.user, gate.policy, row.sealed)
    if gate.sealed != row.sealed and any(_renewed(key, each, call, place) for each in gates):
        call = replace(call, sealed=gate.sealed)
    return _never_given(key, gate, call)


def _renewed(key: bytes, gate: Gate, call: Call, place: str) -> bool:
    if gate.kind not in MENDING or gate.state is not GateState.USED or not place:
        return False
    return not _never_given(key, gate, replace(call, sealed=place, policy=gate.policy))


def _never_given(key: bytes, gate: Gate, call: Call) -> str:
    """Of a gate that is used: as of one that was answered a moment ago. State and times of use are under no seal."""
    return unusable(key, replace(gate, state=GateState.ALLOWED), call, gate.created_at)


def _check_time(due: Owed, now: datetime) -> None:
    if due.expires_at is not None and due.expires_at <= now:
        raise Refused("it was to go out earlier than this")


def discharge(due: Owed, *, notified: bool, gate: Gate | None, key: bytes, now: datetime) -> Dispatch:
    """`notified`: whoever has to be told has been, durably. `gate`: the approval, when the policy says ask.
    Refused: denied, not approved, an obligation that is not discharged."""
    decision = due.decision
    if decision.answer is Verdict.DENY:
        raise Refused(decision.why)
    if decision.answer is Verdict.ASK:
        problem = "it was not approved" if gate is None else unusable(key, gate, due.call, now)
        if problem:
            raise Refused(problem)
    if decision.obligations.notify_owner and not notified:
        raise Refused("its owner was not told")
    _check_time(due, now)
    return Dispatch(due.call, due.arguments, gate if decision.answer is Verdict.ASK else None, _DISCHARGED)
