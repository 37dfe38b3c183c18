"""The traffic lane: what went by, in memory only. No evidence: it forgets, and says how much it forgot.

When there is no room, the box that has the most forgets: one that makes up names blinds nobody but its own user. Must never wait,
grow or fail: it is told in the way of the bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.kernel.ports import Clock
from ringfence.host.store.text import cleaned

RING = 4096  # newest entries: of some 200 bytes each, less than 1 MiB
TOTALS = 4096  # (box, host, verdict) that are counted; the one of a box that was longest without news goes first
_LONGEST = 255  # characters of a host's name (RFC 1035, section 2.3.4)


@dataclass(slots=True)
class _Total:
    requests: int = 0
    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class _Of:
    """One box's: entries with their number, oldest first; totals, the one longest without news first."""

    ring: deque[tuple[int, dict[str, Any]]] = field(default_factory=deque)
    totals: OrderedDict[tuple[str, str], _Total] = field(default_factory=OrderedDict)


class Traffic:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boxes: dict[str, _Of] = {}
        self._carried: dict[str, tuple[int, int]] = {}  # a pair for each box
        self._number = self._kept = self._counted = 0
        self.dropped = 0  # entries that are forgotten

    def add(self, box: str, host: str, verdict: str, sent: int, received: int) -> None:
        """Bytes, as the box sees them."""
        host, verdict = cleaned(host[:_LONGEST]), cleaned(verdict[:_LONGEST])
        mine = self._boxes.setdefault(box, _Of())
        at = self._clock.now().isoformat()
        entry = {"at": at, "box": box, "host": host, "verdict": verdict, "sent": sent, "received": received}
        self._number += 1
        mine.ring.append((self._number, entry))
        self._kept += 1
        if (host, verdict) not in mine.totals:
            mine.totals[host, verdict] = _Total()
            self._counted += 1
        mine.totals.move_to_end((host, verdict))
        total = mine.totals[host, verdict]
        total.requests += 1
        total.sent += sent
        total.received += received
        up, down = self._carried.get(box, (0, 0))
        self._carried[box] = (up + sent, down + received)
        self._make_room(mine)

    def carried(self) -> dict[str, tuple[int, int]]:
        """(sent, received) of each box since the last time. Nothing of it is forgotten before."""
        found, self._carried = self._carried, {}
        return found

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """Newest first: {"at", "box", "host", "verdict", "sent", "received"}."""
        entries = sorted((pair for of in self._boxes.values() for pair in of.ring), key=_number, reverse=True)
        return [entry for _, entry in entries[:limit]]

    def totals(self) -> list[dict[str, Any]]:
        """Since the start, box by box: {"box", "host", "verdict", "requests", "sent", "received"}."""
        return list(self._totals())

    def _totals(self) -> Iterator[dict[str, Any]]:
        for box, of in self._boxes.items():
            for (host, verdict), total in of.totals.items():
                named = {"box": box, "host": host, "verdict": verdict}
                yield {**named, "requests": total.requests, "sent": total.sent, "received": total.received}

    def _make_room(self, mine: _Of) -> None:
        if self._kept > RING:
            self._most(mine, RING, lambda of: of.ring).ring.popleft()
            self._kept -= 1
            self.dropped += 1
        if self._counted > TOTALS:
            self._most(mine, TOTALS, lambda of: of.totals).totals.popitem(last=False)
            self._counted -= 1
        if len(self._boxes) > TOTALS:  # as many have one total each, at most
            self._boxes = {box: of for box, of in self._boxes.items() if of.totals or of.ring}

    def _most(self, mine: _Of, room: int, what: Callable[[_Of], Sized]) -> _Of:
        """The one that adds, when it has more than an equal part: so it is with all of them once the lane is full. Another else,
        looked for in 20 us among some hundred."""
        if len(what(mine)) > max(1, room // len(self._boxes)):
            return mine
        return max(self._boxes.values(), key=lambda of: len(what(of)))


def _number(pair: tuple[int, dict[str, Any]]) -> int:
    return pair[0]
