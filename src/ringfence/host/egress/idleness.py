"""Since when a worker has had nothing to do, and whether that is so still. No I/O.

Under way is a connection, from the moment it is taken until it has ended, with all that it waits for, and a question to the box's
resolver. It must never be still while something is that a box waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf


class Idleness:
    """`clock`: monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._busy = 0
        self._since = clock()
        self._told = -inf

    def begin(self) -> None:
        self._busy += 1

    def over(self) -> None:
        """Once for each `begin`."""
        self._busy -= 1
        self._since = self._clock()

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.over()

    def due(self, seconds: float) -> bool:
        """Nothing has been under way for so long, nor was this said within it."""
        now = self._clock()
        if self._busy or now - max(self._since, self._told) < seconds:
            return False
        self._told = now
        return True

    def still(self) -> bool:
        """Nothing has begun since `due`."""
        return not self._busy and self._since < self._told
