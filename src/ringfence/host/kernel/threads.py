"""The canonical conversation: threads, members, messages, turns, events."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.ids import MessageId, RunId, TenantId, ThreadId, TurnId, UserId

MAX_MESSAGE_BYTES = 256 * 1024
MAX_SUMMARY_BYTES = 64 * 1024
MAX_ATTACHMENTS = 20
MAX_WAITING = 100  # turns that wait in one lane; more are refused, so that nobody's flood is everybody's queue
BREAK_GLASS_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Thread:
    id: ThreadId
    tenant: TenantId
    name: str  # unique in its tenant
    parallel: bool  # lane = (thread, actor) instead of the thread
    members: frozenset[UserId]
    created_at: datetime
    kept_from: int = 1  # the first cursor whose event is kept; filled in where one thread is shown


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file of the author's box, as it was when the message was posted."""

    path: str  # as the author gave it
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Message:
    id: MessageId
    thread: ThreadId
    turn: TurnId
    author: UserId | None  # None = the agent
    author_name: str
    text: str
    cursor: int  # of the event that recorded it
    created_at: datetime
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run of `actor` made of the thread's messages up to and with `cursor`. Given to later runs of that actor only:
    a loop is untrusted, and its words must not stand in another person's prompt as if they were the thread's."""

    thread: ThreadId
    actor: UserId
    cursor: int
    text: str
    created_at: datetime


class TurnState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TURN_FINAL = frozenset({TurnState.COMPLETED, TurnState.FAILED, TurnState.CANCELLED})


@dataclass(frozen=True, slots=True)
class Turn:
    """The agent's work on one message, and on what its author says to it meanwhile (`steer`)."""

    id: TurnId
    thread: ThreadId
    actor: UserId
    message: MessageId
    lane: str
    state: TurnState
    reason: str  # of a failure
    reply: str | None
    run: RunId | None  # the latest
    created_at: datetime
    ended_at: datetime | None


class EventKind(StrEnum):
    MESSAGE = "message"
    RUN_QUEUED = "run.queued"
    RUN_STARTED = "run.started"
    RUN_REDRIVEN = "run.redriven"
    RUN_PARKED = "run.parked"  # at a gate; who answers it may see the call
    RUN_RESUMED = "run.resumed"  # its gate was answered, or has run out
    GATE_ANSWERED = "gate.answered"
    GATE_CLOSED = "gate.closed"  # expired or cancelled
    EFFECT_SETTLED = "effect.settled"  # of a run that had ended before it was known
    STEP_BEGUN = "step.begun"
    STEP_ENDED = "step.ended"
    REPLY = "reply"
    RUN_DETAIL = "run.detail"  # why a run failed, in words; its body is for the run's actor only
    RUN_ENDED = "run.ended"
    MEMBER_ADDED = "member.added"
    MEMBER_REMOVED = "member.removed"
    BREAK_GLASS = "break_glass"
    UNKNOWN = "unknown"  # never written: of a later release, before a rollback. Who may read its body is not known here


@dataclass(frozen=True, slots=True)
class Event:
    """An append-only fact. Cursors of a thread are 1, 2, 3, ... without gaps.

    `actor` bounds who may see the step events: the thread's members see that a step happened, only its actor (and
    nobody else's run) gets `detail` of kind step.*. The same holds for run.detail.
    """

    thread: ThreadId
    cursor: int
    kind: EventKind
    actor: UserId | None
    turn: TurnId | None
    run: RunId | None
    body: dict[str, Any]
    created_at: datetime
