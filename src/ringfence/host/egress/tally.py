"""What a box's workers have let through and refused since it was opened, and which of their findings are worth a row."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.host.egress.needs import Traffic

# A hostile box can cause findings at the rate of its requests; a row of a kind in ten seconds says that it does.
_EACH = 10.0
_MOST_KINDS = 64


class Tally:
    """`clock`: monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}
        self.requests = 0
        self.denials = 0
        self.up = self.down = 0  # bytes
        self.dropped = 0  # requests that the traffic lane did not count
        self.crashes = 0

    def count(self, item: Traffic) -> None:
        self.requests += item.requests
        self.up += item.up
        self.down += item.down
        if item.verdict == "deny":
            self.denials += item.requests

    def worth(self, kind: str) -> bool:
        now = self._clock()
        if now - self._told.get(kind, -_EACH) < _EACH or (kind not in self._told and len(self._told) >= _MOST_KINDS):
            return False
        self._told[kind] = now
        return True
