"""The time that whatever expires is measured by: a wall clock that is turned back brings nothing back to life.

Asks the clock it is given and remembers what it said last, and what the clock of the database said. Must never be shown to
people: after a clock was turned back it is ahead of theirs until the server starts anew.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # ports names this
    from ringfence.host.kernel.ports import Clock


class Onward:
    """The later of the wall time and what was said last plus the seconds that have passed since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = (clock.now(), clock.monotonic())
        self._lock = threading.Lock()  # threads of the store ask too: the later of two answers is the one to remember

    def now(self) -> datetime:
        with self._lock:
            wall, seconds = self._last
            monotonic = self._clock.monotonic()
            later = max(self._clock.now(), wall + timedelta(seconds=monotonic - seconds))
            self._last = (later, monotonic)
        return later

    def hear(self, at: datetime) -> None:
        """Another clock, of the database server, which several kernels share, says so: no kernel whose own clock is behind
        keeps alive what is over for the others."""
        with self._lock:
            wall, seconds = self._last
            monotonic = self._clock.monotonic()
            self._last = (max(at, wall + timedelta(seconds=monotonic - seconds)), monotonic)
