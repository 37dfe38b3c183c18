"""The engine's sends to a box: a link that reaches a failpoint before and after each order. It must never do anything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ringfence.host.kernel.failpoints import Failpoints, Point
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import Command, CommandSpec, GuestHello, Link

T = TypeVar("T")


class WireOut:
    """kernel.ports.Link."""

    def __init__(self, link: Link, failpoints: Failpoints) -> None:
        self._link, self._failpoints = link, failpoints

    @property
    def hello(self) -> GuestHello:
        return self._link.hello

    @property
    def alive(self) -> bool:
        return self._link.alive

    async def spawn(self, key: str, spec: CommandSpec) -> Command:
        return await self._out(f"cmd.spawn {key}", lambda: self._link.spawn(key, spec))

    async def start_run(self, start: Mapping[str, Any]) -> int:
        return await self._out(f"run.start {start['run']}", lambda: self._link.start_run(start))

    async def cancel_run(self, run: RunId, grace: float) -> None:
        await self._out(f"run.cancel {run}", lambda: self._link.cancel_run(run, grace))

    async def steer_run(self, run: RunId, message: Mapping[str, Any]) -> None:
        await self._out(f"run.steer {run}", lambda: self._link.steer_run(run, message))

    async def wind_down(self, run: RunId, seconds: int) -> None:
        await self._out(f"run.wind_down {run}", lambda: self._link.wind_down(run, seconds))

    def paused(self) -> None:
        self._link.paused()

    async def resumed(self, pause: str, seconds: float) -> None:
        await self._out(f"box.resumed {pause}", lambda: self._link.resumed(pause, seconds))

    async def close(self) -> None:
        await self._link.close()

    async def _out(self, detail: str, send: Callable[[], Awaitable[T]]) -> T:
        await self._failpoints.areach(Point.WIRE_SEND_BEFORE, detail, send)
        answer = await send()
        await self._failpoints.areach(Point.WIRE_SEND_AFTER, detail)
        return answer
