"""Runs, steps, checkpoints: nouns and the tables that decide over them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.ids import BoxId, RunId, ThreadId, TurnId, UserId

LEASE_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0  # six beats fit in a lease: five may be lost
HELLO_SECONDS = 10.0  # how long an adopting kernel waits for the loop of a run to show itself
MAX_ATTEMPTS = 3


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


RUN_FINAL = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.RUNNING, RunState.CANCELLED, RunState.FAILED}),
    RunState.RUNNING: frozenset(
        {RunState.QUEUED, RunState.PARKED, RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}
    ),
    RunState.PARKED: frozenset({RunState.QUEUED, RunState.CANCELLED, RunState.FAILED}),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset({RunState.QUEUED}),  # by hand only: `run redrive`
    RunState.CANCELLED: frozenset(),
}


class StepState(StrEnum):
    BEGUN = "begun"
    ENDED = "ended"
    INTERRUPTED = "interrupted"  # ended too: what it did is not known, and it is not run again


class Effect(StrEnum):
    PURE = "pure"
    IDEMPOTENT = "idempotent"
    ONCE = "once"
    LOCAL = "local"


class Evidence(StrEnum):
    """What the host itself could find out about an effect that may or may not have happened."""

    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a turn by one executor under one lease."""

    id: RunId
    turn: TurnId
    thread: ThreadId
    actor: UserId
    box: BoxId | None  # set when an executor was found
    state: RunState
    reason: str  # of a failure, or why it is queued
    epoch: int  # +1 with each claim and each adoption; writes with an older one are refused
    attempts: int
    worker: str | None  # the kernel process that holds the lease
    lease_until: datetime | None
    token_hash: str  # SHA-256 of the run token
    cancel_requested: bool
    guest_digest: str | None
    worked: float  # seconds under a lease so far, as of the last heartbeat; deadlines count these
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    other_tree: bool  # its box has another tree than it worked on, and the redrive table has not looked yet


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A run at work whose lease is over, and whose server is gone."""

    run: Run
    installation: str  # whose box it is in
    unheard: float | None  # seconds since a kernel of that said a word; None: none ever did, or it is long ago
    waits: bool  # whether something in its lane waits for its end

    @property
    def words(self) -> str:
        since = "at all" if self.unheard is None else f"for {self.unheard:.0f} s"
        return f"its server (installation {self.installation}) has not been heard of {since}"


@dataclass(frozen=True, slots=True)
class Step:
    run: RunId
    n: int
    tool: str
    arguments: dict[str, Any]
    digest: str  # SHA-256 of the canonical JSON of (tool, arguments, effect)
    effect: Effect
    state: StepState
    result: dict[str, Any] | None
    begun_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    run: RunId
    boundary: str
    step: int
    cursor: int
    state: str
    created_at: datetime


DEAD_LETTERED = "retries_exhausted"  # the reason of a run that waits for `run redrive`
REASONS: dict[str, str] = {
    "cancelled": "it was cancelled",
    "user_removed": "the user was removed",
    "user_disabled": "the user is disabled",
    "quarantined": "the box is in quarantine",
    "box_busy": "something else is being done with the box, such as a copy of its files; it goes on after that",
    "box_paused": "the box was paused by hand; it goes on when the box is resumed",
    "retries_exhausted": f"it was tried {MAX_ATTEMPTS} times and could not be finished",
    "deadline": "it worked longer than a run may",
    "diverged": "what was asked again is not what the journal has",
    "incompatible": "what it works with has changed since the last checkpoint and steps were recorded after it",
    "not_replayable": "its agent cannot go on from what was recorded; the transcript is kept",
    "message_too_large": "the message does not fit into what an agent loop can be given",
    "step_gap": "the agent loop left out a step number",
    "budget_exhausted": "the agent loop asked for more than a run may",
    "loop_guard": "the agent went round in circles",
    "empty_reply": "the model came to an end without an answer",
    "loop_failed": "the agent loop broke down",
    "too_large": "the conversation grew beyond what can be handled",
    "refused": "the model provider refused",
    "failed": "the model provider or the server broke down",
    "not_found": "the agent loop asked for something that does not exist",
    "invalid": "the agent loop asked for something that makes no sense",
}
"""What each reason of a failure or cancellation means, for people. A loop may give another code of its own."""


def cut_short(state: RunState, reason: str) -> dict[str, Any]:
    """The result of a step that was under way when its run ended: what it did is not known, and it is not run again."""
    why = REASONS.get(reason) or reason or f"it is {state.value}"
    return {"ok": False, "reason": "interrupted", "message": f"the run ended: {why}"}


# Asked again, these would end the same way: the journal and what is asked contradict each other, or nothing may run.
NOT_AGAIN = frozenset({"diverged", "incompatible", "message_too_large", "user_removed", "user_disabled"})


def redrivable(run: Run) -> str:
    """Empty when an operator or the actor may have the run tried again (`run redrive`), else why not, for people."""
    if run.state is not RunState.FAILED:
        return f"the run is {run.state.value}; only a failed one can be tried again"
    if run.reason in NOT_AGAIN:
        return f"it would end the same way again: {REASONS[run.reason]}"
    return ""
