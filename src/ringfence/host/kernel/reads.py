"""What the engine asks of the store so often that each is one question: answered from one snapshot, in one go.

Part of `kernel.ports`, in a file of its own. Nothing here is kept for later: who may see what is read anew each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.effects import EffectRow
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.runs import Checkpoint, Effect, Run, StepState
from ringfence.host.kernel.threads import Event, Message, Summary, Thread


@dataclass(frozen=True, slots=True)
class Page:
    """Events of a thread, oldest first, as they are: what of them may be shown is for the caller to say."""

    events: Sequence[Event]
    names: Mapping[UserId, str]  # of their actors, without those who were removed


@dataclass(frozen=True, slots=True)
class Tail:
    """The newest messages of a thread behind a cursor."""

    after: int
    messages: Sequence[Message]  # oldest first
    more: bool  # there are older ones behind the cursor


@dataclass(frozen=True, slots=True)
class Brief:
    """What a run begins with."""

    user: User  # its actor
    box: Box | None  # the actor's home, if that was made already
    thread: Thread
    said: Sequence[Message]  # what people said to its turn: its own message, then the steers
    summary: Summary | None  # of its actor, of its thread
    tail: Tail  # of its thread: behind the summary, if that was made before its own message
    checkpoint: Checkpoint | None
    steps: Mapping[int, StepState]  # by number


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands when its executor is gone."""

    run: Run
    held_back: str  # why nothing may run for its actor; nothing holds back one who was removed
    checkpoint: int  # the step that it is after; 0: none
    steps: int  # that were begun
    open: Mapping[int, Effect]  # steps without an end, by number
    effects: Sequence[EffectRow]  # by step; none when no step is open
    gates: Sequence[Gate]  # oldest first; none when no step is open


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits for something, over all tenants."""

    queued: int
    queued_since: datetime | None  # of the oldest that is queued
    parked: int  # at gates
    dead: int  # failed `retries_exhausted`, and not redriven yet


class Reads(Protocol):
    async def thread(self, tenant: str, name: str) -> Thread:
        """By names. NotFound: the tenant or the thread, which takes the same time."""

    async def page(self, tenant: str, name: str, member: UserId, after: int, limit: int) -> Page | None:
        """Events behind the cursor. None: there is no such tenant or thread, or the user is no member of it now; which of
        them takes the same time."""

    async def tail(
        self, thread: ThreadId, before: int | None, after: int, limit: int | None, size: int
    ) -> tuple[list[Message], bool]:
        """(messages between the two cursors, oldest first, whether there are older ones). The newest, at least as many
        as `limit` or as `size` bytes of text take, whatever comes first, if there are that many."""

    async def home(self, user: UserId) -> tuple[User, Box | None]:
        """The user with the home box, if that was made already. NotFound: who was removed."""

    async def brief(self, run: RunId, limit: int, size: int) -> Brief:
        """`limit`, `size`: of its tail, as of `tail`. NotFound: the run, its actor (who was removed) or its thread."""

    async def standings(self, which: Sequence[RunId]) -> dict[RunId, Standing]:
        """Those that are there, from one snapshot."""

    async def waiting(self) -> bool:
        """Whether any run is queued, for whatever reason. Cheaper than a claim, and in nobody's way."""

    async def backlog(self) -> Backlog:
        """Looks at every run: for a person who asks, not for a loop."""
