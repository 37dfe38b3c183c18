"""So many a second on average, and so many at once. Pure but for its clock."""

from __future__ import annotations

from collections.abc import Callable


class Bucket:
    """`clock`: monotonic seconds."""

    def __init__(self, a_second: float, burst: float, clock: Callable[[], float]) -> None:
        self._a_second, self._burst, self._clock = a_second, burst, clock
        self._left, self._at = burst, clock()

    def take(self, cost: float = 1.0) -> bool:
        """False: not now, and nothing is taken."""
        now = self._clock()
        self._left, self._at = min(self._burst, self._left + (now - self._at) * self._a_second), now
        if self._left < cost:
            return False
        self._left -= cost
        return True
