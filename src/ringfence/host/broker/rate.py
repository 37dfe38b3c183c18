"""Token buckets: how often a box or a run may say a thing. Pure: the time comes in.

A bucket holds two seconds' worth (the burst) and fills by `per_second`. It must never refuse a peer that keeps to the
table of METHODS, and costs one float and one time for each (speaker, method).
"""

from __future__ import annotations

from collections.abc import Callable

BURST_SECONDS = 2.0
_MAX_BUCKETS = 4096  # 30 runs at once x 6 methods is 180; a run that is over leaves its few behind until then


class Bucket:
    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, per_second: float, now: float) -> None:
        self._rate = per_second
        self._level = per_second * BURST_SECONDS
        self._at = now

    def take(self, now: float) -> float:
        """Takes one. 0.0: it was there. Otherwise the seconds until it will be; the bucket is in debt by then, so the
        next one waits longer."""
        self._level = min(self._rate * BURST_SECONDS, self._level + (now - self._at) * self._rate) - 1.0
        self._at = now
        return 0.0 if self._level >= 0.0 else -self._level / self._rate


class Buckets:
    """One bucket for each (speaker, method)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._all: dict[tuple[str, str], Bucket] = {}

    def take(self, speaker: str, method: str, per_second: int) -> float:
        """As Bucket.take."""
        now = self._now()
        bucket = self._all.get((speaker, method))
        if bucket is None:
            if len(self._all) >= _MAX_BUCKETS:
                del self._all[next(iter(self._all))]
            bucket = self._all[speaker, method] = Bucket(per_second, now)
        return bucket.take(now)
