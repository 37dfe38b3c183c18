"""Gates: questions that park a run until somebody with the right answers them. Nouns, states, seals. Pure.

A gate's `mac` binds the question (run, step, the exact canonical call, user, policy, what the call refers to, expiry), its
`answer_mac` binds the answer to that question: whoever can write into the database alone can neither change what was asked
nor answer it. A gate is used once. For what the host does it is a wall; for commands of a box it is advice (policy.WALL,
policy.ADVICE).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from ringfence.host.kernel.canonical import canonical_json, sha256_json
from ringfence.host.kernel.ids import RunId, TenantId, ThreadId, TurnId, UserId
from ringfence.host.kernel.people import Actor, Scope
from ringfence.host.kernel.policy import Obligations

GateId = NewType("GateId", str)  # gat_...

# What a loop can cause at will is bounded. A question about what has happened is not: nobody but a person can end the doubt,
# and it comes once for each time that somebody outside gave no answer.
MAX_OPEN = 20  # of one user: a screenful; more are refused, so that nobody approves by habit
MAX_OF_RUN = 50  # in the life of a run
APPROVAL_SECONDS = 7 * 86_400  # an approval that nobody gave, or that was not used, by then is none
ANEW = "it was asked under a key that is not here any more: it is asked anew"  # of a gate that was disowned
MENDING_SECONDS = 7 * 86_400  # what nobody has set up by then is looked at once more, and then given up


class GateKind(StrEnum):
    APPROVAL = "approval"  # may this call be carried out?
    AUTH = "auth"  # somebody outside did not accept the key: it is to be renewed there
    SETUP = "setup"  # something is missing here
    IN_DOUBT = "in_doubt"  # was this carried out?


class GateState(StrEnum):
    OPEN = "open"
    ALLOWED = "allowed"  # answered, and not acted on yet
    DENIED = "denied"
    EXPIRED = "expired"  # not answered in time, or what was approved is not what would be done by now
    CANCELLED = "cancelled"  # its run ended
    USED = "used"


class GateAnswer(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    DONE = "done"  # in_doubt: it was carried out; auth, setup: it is mended, and is to be looked at again
    NOT_DONE = "not_done"  # in_doubt: it was not, and is not to be
    AGAIN = "again"  # in_doubt: carry it out again, under the same key


TRANSITIONS: dict[GateState, frozenset[GateState]] = {
    GateState.OPEN: frozenset({GateState.ALLOWED, GateState.DENIED, GateState.EXPIRED, GateState.CANCELLED}),
    GateState.ALLOWED: frozenset({GateState.USED, GateState.EXPIRED, GateState.CANCELLED}),
    GateState.DENIED: frozenset(),
    GateState.EXPIRED: frozenset(),
    GateState.CANCELLED: frozenset(),
    GateState.USED: frozenset(),
}
_YES_NO = (GateAnswer.ALLOW, GateAnswer.DENY)
_MENDED = (GateAnswer.DONE, GateAnswer.DENY)
MENDING = frozenset({GateKind.AUTH, GateKind.SETUP})
ANSWERS: dict[GateKind, tuple[GateAnswer, ...]] = {
    GateKind.APPROVAL: _YES_NO,
    GateKind.AUTH: _MENDED,
    GateKind.SETUP: _MENDED,
    GateKind.IN_DOUBT: (GateAnswer.DONE, GateAnswer.NOT_DONE, GateAnswer.AGAIN),
}
BECOMES: dict[GateAnswer, GateState] = {
    GateAnswer.ALLOW: GateState.ALLOWED,
    GateAnswer.DENY: GateState.DENIED,
    GateAnswer.DONE: GateState.ALLOWED,
    GateAnswer.NOT_DONE: GateState.ALLOWED,
    GateAnswer.AGAIN: GateState.ALLOWED,
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, as the engine has it before there is a gate."""

    kind: GateKind
    n: int  # the step
    tool: str
    arguments: Mapping[str, Any]  # exactly those that would be carried out
    digest: str  # of the call: canonical.digest
    policy: str  # digest of the policy that it is asked under
    sealed: str  # digest of what the call refers to; "" = nothing
    shown: Mapping[str, Any]  # the same for people
    obligations: Obligations
    wall: bool  # False: advice
    expires_at: datetime | None
    owner: UserId | None  # who answers in the place of a user that is no person


@dataclass(frozen=True, slots=True)
class Gate:
    id: GateId
    tenant: TenantId
    user: UserId  # the acting one
    owner: UserId | None
    thread: ThreadId
    turn: TurnId
    run: RunId
    n: int
    kind: GateKind
    tool: str
    arguments: Mapping[str, Any]
    digest: str
    policy: str
    sealed: str
    shown: Mapping[str, Any]
    obligations: Obligations
    wall: bool
    mac: str
    created_at: datetime
    expires_at: datetime | None
    state: GateState
    reason: str  # why it is expired or cancelled
    answer: GateAnswer | None
    answered_by: UserId | None
    answered_via: str  # Actor.via; with "as " before it when an operator acted as the user
    answered_at: datetime | None
    answer_mac: str
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Call:
    """What is about to be carried out, from the facts of now and not from any gate."""

    run: RunId
    n: int
    tool: str
    digest: str
    user: UserId
    policy: str
    sealed: str


def mac(key: bytes, gate: Gate) -> str:
    """HMAC-SHA256 over the canonical JSON of the question, 64 hex digits."""
    fields = [
        "gate",
        gate.id,
        gate.run,
        gate.n,
        gate.kind.value,
        gate.tool,
        gate.digest,
        sha256_json(
            [gate.arguments, gate.shown, gate.obligations.to_json()]
        ),  # what the screens show is what is approved
        gate.user,
        gate.owner,
        gate.policy,
        gate.sealed,
        gate.wall,
        _moment(gate.expires_at),
    ]
    return hmac.new(key, canonical_json(fields), hashlib.sha256).hexdigest()


def answer_mac(key: bytes, gate: Gate) -> str:
    """The same over the answer and the question's mac."""
    answer = gate.answer.value if gate.answer is not None else None
    fields = ["answer", gate.id, gate.mac, answer, gate.answered_by, gate.answered_via, _moment(gate.answered_at)]
    return hmac.new(key, canonical_json(fields), hashlib.sha256).hexdigest()


def genuine(key: bytes, gate: Gate) -> bool:
    """Whether question, and answer if there is one, are what a kernel of this installation wrote."""
    asked = hmac.compare_digest(mac(key, gate), gate.mac)
    return asked and (gate.answer is None or hmac.compare_digest(answer_mac(key, gate), gate.answer_mac))


def _moment(at: datetime | None) -> str | None:
    return at.isoformat(timespec="microseconds") if at is not None else None


def expired(gate: Gate, now: datetime) -> bool:
    return gate.expires_at is not None and gate.expires_at <= now


def unusable(key: bytes, gate: Gate, call: Call, now: datetime) -> str:
    """Why an answered gate does not let the call through now; "" when it does. Checked in the transaction of the intent."""
    if gate.state is not GateState.ALLOWED:
        return f"the gate is {gate.state.value}"
    if not genuine(key, gate):
        return "the gate was not written by this installation"
    asked = Call(gate.run, gate.n, gate.tool, gate.digest, gate.user, gate.policy, gate.sealed)
    for name, what in _MUST_AGREE.items():
        if getattr(asked, name) != getattr(call, name):
            return f"{what} is not what was approved"
    if gate.answer not in ANSWERS[gate.kind] or gate.answer is GateAnswer.DENY:
        return "it was not approved"
    return "the approval has expired" if expired(gate, now) else ""


_MUST_AGREE = {
    "run": "the run",
    "n": "the step",
    "tool": "the tool",
    "digest": "the call",
    "user": "the user",
    "policy": "the policy in force",
    "sealed": "what the call refers to",
}


def over(gate: Gate) -> bool:
    """Whether a closed gate also ends the asking of its step: somebody said no, or nobody said anything."""
    return gate.state is GateState.DENIED or (gate.answer is None and gate.reason != ANEW)


def denied(gates: Iterable[Gate], digest: str) -> bool:
    """Whether somebody has said no to that very call, in whichever step of the run whose gates they are."""
    return any(gate.state is GateState.DENIED and gate.digest == digest for gate in gates)


def answerer(gate: Gate) -> UserId:
    """Who answers: the acting person; of a user that is no person its owner."""
    return gate.owner if gate.owner is not None else gate.user


def may_answer(actor: Actor, gate: Gate) -> str:
    """ "" or why not. An operator never answers for himself, and neither does one who broke a thread's glass: both have no
    user, or another one."""
    if actor.user is None or actor.user.id != answerer(gate):
        return "only the acting user, or its owner, may answer this"
    return "" if actor.operator or Scope.USER in actor.scopes else "the token may only read"


def answer_of(gate: Gate, said: str) -> GateAnswer | None:
    """None: no answer to a gate of that kind."""
    return next((answer for answer in ANSWERS[gate.kind] if answer.value == said.replace("-", "_")), None)
