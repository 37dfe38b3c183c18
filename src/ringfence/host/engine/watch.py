"""A command as the engine hands it on: the guest's, with an end by the out-of-memory killer told from other kills."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Literal

from ringfence.host.engine.links import Slot
from ringfence.host.engine.oom import SIGKILL, suspicious
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ports import Clock, Command, Driver, Outcome


class Watched:
    """ports.Command around another. The driver is asked only when the end looks like a kill: never on the hot path."""

    __slots__ = ("_asked", "_began", "_clock", "_driver", "_inner", "_outcome", "_slot")

    def __init__(self, inner: Command, slot: Slot, driver: Driver, clock: Clock, began: float) -> None:
        self._inner, self._slot, self._driver, self._clock, self._began = inner, slot, driver, clock, began
        self._asked = False
        self._outcome: Outcome | None = None

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def attached(self) -> bool:
        return self._inner.attached

    def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        return self._inner.output()

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    async def signal(self, number: int) -> None:
        self._asked = self._asked or number == SIGKILL
        await self._inner.signal(number)

    async def stop(self, grace: float) -> None:
        self._asked = True
        await self._inner.stop(grace)

    async def outcome(self) -> Outcome:
        """The same object each time."""
        if self._outcome is None:
            ended = await self._inner.outcome()
            self._outcome = await self._judged(ended) if suspicious(ended, self._asked) else ended
        return self._outcome

    async def release(self) -> None:
        await self._inner.release()

    async def _judged(self, ended: Outcome) -> Outcome:
        try:
            sight = await self._driver.observe(self._slot.box)
        except RingfenceError:
            return ended
        if not self._slot.kills.grew(self._began, self._clock.monotonic(), sight.oom_kills):
            return ended
        limit, peak = sight.memory_limit_bytes, sight.memory_peak_bytes
        return replace(
            ended,
            reason="oom",
            message=f"out of memory: the box's commands used {peak} bytes at most, the limit is {limit}",
            memory_limit_bytes=limit,
            memory_peak_bytes=peak,
        )


def watched(inner: Command, slot: Slot, driver: Driver, clock: Clock, began: float) -> Watched:
    return Watched(inner, slot, driver, clock, began)
