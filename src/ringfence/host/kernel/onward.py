"""The time that whatever expires is measured by: a wall clock that is turned back brings nothing back to life.

Asks the clock it is given and remembers only when it was made. Must never be shown to people: after a clock was turned
back it is ahead of theirs until the server starts anew.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ringfence.host.kernel.ports import Clock


class Onward:
    """The later of the wall time and the wall time at the start plus the seconds that have passed since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now()
        self._start = clock.monotonic()

    def now(self) -> datetime:
        return max(self._clock.now(), self._wall + timedelta(seconds=self._clock.monotonic() - self._start))
