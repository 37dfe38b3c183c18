"""How long what is over is kept, and who takes away the rest. Nouns only.

Never taken away: what a live run needs, or a failed one that may yet be tried again; messages and replies, which are the
conversation; runs, turns, gates and effects, which are evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Keep:
    """Days; 0 = for ever."""

    events_days: int = 0  # of threads; a cut thread says from which cursor on it is kept
    runs_days: int = 0  # steps, checkpoints and blobs of runs that have ended; which command had which way out
    audit_days: int = 0
    keys_days: int = 7  # idempotency keys (architecture.md section 7); never 0
    usage_days: int = 400  # what boxes used, day by day: a year and a month


class Retention(Protocol):
    async def sweep(self, keep: Keep) -> dict[str, int]:
        """One small batch of what is too old: what was taken away, by kind; empty when nothing was."""

    async def kept_from(self, thread: str) -> int:
        """The first cursor whose event is kept; 1: nothing was cut."""


class Reserve(Protocol):
    """Room that is given up when the volume of the database is full, so that what is under way can be ended."""

    @property
    def low(self) -> bool:
        """It was given up, or there is none and no room for one: new work is refused until there is room again."""

    async def keep(self) -> bool:
        """Makes it where it is missing and there is room for it four times; to be called every few seconds. Whether it is
        there."""


class Log(Protocol):
    """What the database writes ahead of itself, which grows while somebody reads on."""

    async def look(self) -> str:
        """Why it is too large, and who holds it; "" when it is not. Tries to make it smaller; waits for nobody."""
