"""The traffic lane: requests alike are counted together, at most 4,096 kinds at a time, and what is more is dropped and counted.

It must never wait, nor be taken for evidence: the release and intent lanes are that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ringfence.host.egress.bucket import Bucket
from ringfence.host.egress.needs import Kernel, Traffic

RING = 4096
DENIED = 64  # hosts of refusals that are named between two drains: a box asks for as many names as it likes, and its neighbours
# share the lane. The rest are counted as NAMELESS.
NAMELESS = "-"
_TOLD = (
    30  # findings at once, and then one in two seconds: a box that wants to be noticed is, without filling the record
)
_TOLD_SECOND = 0.5
_Key = tuple[str, int, str, str, str, str]


class Counting:
    def __init__(self) -> None:
        self._sums: dict[_Key, list[int]] = {}
        self._denied: set[str] = set()
        self._dropped = 0

    def add(self, item: Traffic) -> None:
        host = self._named(item.host) if item.verdict == "deny" else item.host
        key = (host, item.port, item.verdict, item.reason, item.invocation, item.method)
        sums = self._sums.get(key)
        if sums is None:
            if len(self._sums) >= RING:
                self._dropped += item.requests
                return
            sums = self._sums[key] = [0, 0, 0]
        sums[0] += item.requests
        sums[1] += item.up
        sums[2] += item.down

    def _named(self, host: str) -> str:
        if host not in self._denied:
            if len(self._denied) >= DENIED:
                return NAMELESS
            self._denied.add(host)
        return host

    def drain(self) -> tuple[list[Traffic], int]:
        """(items, requests dropped) since the last one."""
        sums, self._sums = self._sums, {}
        self._denied.clear()
        dropped, self._dropped = self._dropped, 0
        return [Traffic(*key, *counted) for key, counted in sums.items()], dropped


class Findings:
    """What the owner is told, in bounds. What is more than that is still among the traffic."""

    def __init__(self, kernel: Kernel, clock: Callable[[], float]) -> None:
        self._kernel = kernel
        self._worth = Bucket(_TOLD_SECOND, float(_TOLD), clock)

    def tell(self, kind: str, invocation: str, details: Mapping[str, str]) -> None:
        if self._worth.take():
            self._kernel.finding(kind, invocation, details)
