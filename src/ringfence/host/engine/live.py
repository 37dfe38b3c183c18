"""The runs that this kernel process holds a lease of: what is remembered of each beside its row.

The row in the store is the truth and every write is fenced by its epoch; this is only where a loop's asks find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.runs import Run


@dataclass(slots=True, eq=False)
class Held:
    """One run under our lease."""

    run: Run  # as claimed or adopted: its epoch is the one that we write with
    box: BoxId | None = None
    guest: str = ""  # id of the PID 1 that was given the run
    started: bool = False  # the loop is there, or was
    gone: str = ""  # why the loop is no more, until the run has been redriven
    cancelled: bool = False

    @property
    def id(self) -> RunId:
        return self.run.id

    @property
    def epoch(self) -> int:
        return self.run.epoch


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
        if self._held.get(held.id) is held:
            del self._held[held.id]

    def on(self, box: BoxId) -> list[Held]:
        """Those whose loop is, or was, in the box."""
        return [held for held in self if held.box == box and held.started]
