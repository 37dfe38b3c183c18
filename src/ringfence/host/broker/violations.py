"""Broken rules of the wire, told to the audit: at most one line for each box in ten seconds, with a count of the rest.

A hostile box can break a rule as often as it is dialled; it must never be able to fill the audit with it. What the box
sent is not repeated, only what kind of rule it broke.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ringfence.host.kernel.ids import BoxId

QUIET_SECONDS = 10.0
_MAX_BOXES = 4096

Tell = Callable[[BoxId, str, Mapping[str, Any]], None]
"""(box, kind, details with "reason" and "suppressed"). Called in the event loop; must not block or raise."""


class Violations:
    def __init__(self, tell: Tell, now: Callable[[], float]) -> None:
        self._tell = tell
        self._now = now
        self._last: dict[BoxId, tuple[float, int]] = {}  # when it was told, and how many were not since

    def report(self, box: BoxId, kind: str, reason: str) -> None:
        """`kind`: protocol (malformed, oversize, unknown, duplicate), half_frame, slow_frame, slow_reader, flood,
        silent."""
        now = self._now()
        at, suppressed = self._last.pop(box, (-QUIET_SECONDS, 0))
        if now - at < QUIET_SECONDS:
            self._last[box] = (at, suppressed + 1)
            return
        if len(self._last) >= _MAX_BOXES:
            del self._last[next(iter(self._last))]
        self._last[box] = (now, 0)
        self._tell(box, kind, {"reason": reason[:500], "suppressed": suppressed})
