"""Token buckets: how often a box or a run may say a thing, and how much output a box may have carried. Pure: the time
comes in.

A bucket holds two seconds' worth (the burst) and fills by `per_second`. It must never refuse a peer that keeps to the
table of METHODS, and costs one float and one time for each (speaker, method).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

BURST_SECONDS = 2.0
MOST_WAIT = 10.0  # seconds that one piece of output waits: those before it may have ended with their commands
_MAX_SPEAKERS = 512  # PID 1, "" for all unknown runs, and 64 loops; each has at most a bucket for every row


class Bucket:
    __slots__ = ("_at", "_debt", "_level", "_rate")

    def __init__(self, per_second: float, now: float, debt: float = math.inf) -> None:
        """`debt`: the most that it may be in."""
        self._rate, self._debt = per_second, debt
        self._level = per_second * BURST_SECONDS
        self._at = now

    def take(self, now: float, count: float = 1.0) -> float:
        """Takes so many. 0.0: they were there. Otherwise the seconds until they will be; the bucket is in debt by then,
        so the next one waits longer."""
        level = min(self._rate * BURST_SECONDS, self._level + (now - self._at) * self._rate) - count
        self._level = max(level, -self._debt)
        self._at = now
        return 0.0 if self._level >= 0.0 else -self._level / self._rate


class Buckets:
    """One bucket for each (speaker, method)."""

    def __init__(self, now: Callable[[], float], rates: Mapping[str, int] | None = None) -> None:
        """`rates`: by method, in the place of the table's."""
        self._now, self._rates = now, dict(rates or {})
        self._all: dict[str, dict[str, Bucket]] = {}  # speaker -> method -> bucket; the oldest speaker first

    def __len__(self) -> int:
        """Speakers."""
        return len(self._all)

    def take(self, speaker: str, method: str, per_second: int) -> float:
        """As Bucket.take."""
        now = self._now()
        methods = self._all.get(speaker)
        if methods is None:
            if len(self._all) >= _MAX_SPEAKERS:
                del self._all[next(iter(self._all))]
            methods = self._all[speaker] = {}
        bucket = methods.get(method)
        if bucket is None:
            bucket = methods[method] = Bucket(self._rates.get(method, per_second), now)
        return bucket.take(now)

    def forget(self, speaker: str) -> None:
        self._all.pop(speaker, None)


class Pace:
    """Of the bytes that one box has carried: all its commands together."""

    def __init__(self, per_second: float, now: Callable[[], float]) -> None:
        """0: no bound."""
        self._now = now
        self._bucket = Bucket(per_second, now(), per_second * MOST_WAIT) if per_second else None

    def take(self, size: int) -> float:
        """As Bucket.take."""
        return min(self._bucket.take(self._now(), size), MOST_WAIT) if self._bucket is not None else 0.0
