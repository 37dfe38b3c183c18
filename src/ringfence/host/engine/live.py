"""The runs that this kernel process holds a lease of: what is remembered of each beside its row.

The row in the store is the truth and every write is fenced by its epoch; this is only where a loop's asks find it.
Nothing is kept of a run that was dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import Run


@dataclass(slots=True, eq=False)
class Held:
    """One run under our lease."""

    run: Run  # as claimed or adopted: its epoch is the one that we write with
    since: float  # monotonic: when that was
    box: BoxId | None = None
    guest: str = ""  # id of the PID 1 that was given the run
    started: bool = False  # the loop is there, or was
    starting: bool = False  # its guest has not answered run.start: what it was told before would be lost
    gone: str = ""  # why the loop is no more, until the run has been redriven
    words: str = ""  # the same for its actor
    cancelled: float | None = None  # monotonic: since when it is to end
    ending: bool = False  # its hard deadline is being carried out
    wound: bool = False  # the loop is being told of the soft deadline, or was
    told: int = 0  # cursor of what the loop was last told that its actor said; 0 = not known
    behind: bool = False  # more was said before there was a loop to tell
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time: steers reach the loop in their order
    large: asyncio.Lock = field(default_factory=asyncio.Lock)  # one conversation from a blob at a time, until answered
    deciding: asyncio.Lock = field(default_factory=asyncio.Lock)  # what becomes of it: decided once, not by two at once
    hurried: asyncio.Event = field(default_factory=asyncio.Event)  # it was told: model calls from before end
    over: asyncio.Event = field(default_factory=asyncio.Event)  # set when it is dropped: what it asked is not wanted

    @property
    def id(self) -> RunId:
        return self.run.id

    @property
    def epoch(self) -> int:
        return self.run.epoch

    def worked(self, now: float) -> float:
        """Seconds under a lease at the monotonic time `now`, those of earlier attempts included."""
        return self.run.worked + max(0.0, now - self.since)

    def past_soft(self, seconds: float, now: float) -> bool:
        """Of work; 0 = never."""
        return seconds > 0 and self.worked(now) >= seconds


class LiveRuns:
    def __init__(self) -> None:
        self._held: dict[RunId, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def get(self, run: RunId) -> Held | None:
        return self._held.get(run)

    def add(self, held: Held) -> None:
        self._held[held.id] = held

    def drop(self, held: Held) -> None:
        """Idempotent; never drops a newer attempt of the same run."""
        held.over.set()
        if self._held.get(held.id) is held:
            del self._held[held.id]

    def on(self, box: BoxId) -> list[Held]:
        """Those whose loop is, or was, in the box."""
        return [held for held in self if held.box == box and held.started]
