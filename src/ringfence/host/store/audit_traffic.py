"""The traffic lane: what went by, in memory only. No evidence: it forgets, and says how much it forgot.

Must never wait, grow or fail: it is told in the way of the bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.ports import Clock
from ringfence.host.store.text import cleaned

RING = 4096  # newest entries: of some 200 bytes each, less than 1 MiB
TOTALS = 4096  # (box, host, verdict) that are counted; the one that was longest without news goes first
_LONGEST = 255  # characters of a host's name (RFC 1035, section 2.3.4)


@dataclass(slots=True)
class _Total:
    requests: int = 0
    sent: int = 0
    received: int = 0


class Traffic:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ring: deque[dict[str, Any]] = deque(maxlen=RING)
        self._totals: OrderedDict[tuple[str, str, str], _Total] = OrderedDict()
        self.dropped = 0  # entries that the ring has forgotten

    def add(self, box: str, host: str, verdict: str, sent: int, received: int) -> None:
        """Bytes, as the box sees them."""
        host, verdict = cleaned(host[:_LONGEST]), cleaned(verdict[:_LONGEST])
        if len(self._ring) == RING:
            self.dropped += 1
        at = self._clock.now().isoformat()
        self._ring.append({"at": at, "box": box, "host": host, "verdict": verdict, "sent": sent, "received": received})
        key = (box, host, verdict)
        total = self._totals.setdefault(key, _Total())
        self._totals.move_to_end(key)
        total.requests += 1
        total.sent += sent
        total.received += received
        if len(self._totals) > TOTALS:
            self._totals.popitem(last=False)

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """Newest first: {"at", "box", "host", "verdict", "sent", "received"}."""
        return [self._ring[-at] for at in range(1, min(limit, len(self._ring)) + 1)]

    def totals(self) -> list[dict[str, Any]]:
        """Since the start: {"box", "host", "verdict", "requests", "sent", "received"}."""
        return [
            {"box": box, "host": host, "verdict": verdict, "requests": total.requests, "sent": total.sent,
             "received": total.received}
            for (box, host, verdict), total in self._totals.items()
        ]  # fmt: skip
