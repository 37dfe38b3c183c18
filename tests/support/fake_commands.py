"""Commands of the boxes without walls: real processes, each of a session of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from ringfence.host.kernel.ports import CommandSpec, Kept, Outcome

if TYPE_CHECKING:
    from tests.support.fakes import FakeBox

HEAD, TAIL = 64 * 1024, 192 * 1024


class Tasks:
    """Kept and awaited."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def go(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class GuestCommand:
    """A command in a box: a process of its own session."""

    def __init__(self, spec: CommandSpec, process: asyncio.subprocess.Process) -> None:
        self.spec, self.process = spec, process
        self.began = asyncio.get_running_loop().time()
        self.queue: asyncio.Queue[tuple[Literal[1, 2], bytes] | None] = asyncio.Queue()
        self.kept: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self.reason: Literal["exit", "timeout", "killed", "box_lost"] = "exit"
        self.ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def watch(self) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        timer = None
        if self.spec.timeout is not None:
            timer = asyncio.get_running_loop().call_later(self.spec.timeout, self.kill, "timeout")
        await asyncio.gather(self._pump(1, self.process.stdout), self._pump(2, self.process.stderr))
        code = await self.process.wait()
        if timer is not None:
            timer.cancel()
        self.queue.put_nowait(None)
        if not self.ended.done():
            self.ended.set_result(self._outcome(code))

    async def _pump(self, stream: Literal[1, 2], pipe: asyncio.StreamReader) -> None:
        while data := await pipe.read(48 * 1024):
            if self.spec.output == "keep":
                self.kept[stream] += data
            else:
                self.queue.put_nowait((stream, data))

    def kill(self, reason: Literal["timeout", "killed", "box_lost"]) -> None:
        if self.process.returncode is None:
            self.reason = reason
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _outcome(self, code: int) -> Outcome:
        lost = self.reason == "box_lost"
        keep = self.spec.output == "keep" and not lost
        return Outcome(
            code=code if code >= 0 and not lost else None,
            signal=-code if code < 0 and not lost else None,
            reason=self.reason,
            message="",
            left=(),
            duration_ms=round((asyncio.get_running_loop().time() - self.began) * 1000),
            stdout=_kept(self.kept[1]) if keep else None,
            stderr=_kept(self.kept[2]) if keep else None,
        )


def _kept(data: bytearray) -> Kept:
    if len(data) <= HEAD + TAIL:
        return Kept(bytes(data[:HEAD]), bytes(data[HEAD:]), len(data), 0)
    return Kept(bytes(data[:HEAD]), bytes(data[-TAIL:]), len(data), len(data) - HEAD - TAIL)


class FakeCommand:
    """ports.Command: a holder of a guest's command."""

    def __init__(self, box: FakeBox, key: str, inner: GuestCommand, attached: bool) -> None:
        self._box, self._key, self._inner, self._attached = box, key, inner, attached

    @property
    def pid(self) -> int:
        return self._inner.process.pid

    @property
    def attached(self) -> bool:
        return self._attached

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        while (chunk := await self._inner.queue.get()) is not None:
            yield chunk

    async def write(self, data: bytes) -> None:
        if self._inner.process.stdin is not None:
            with suppress(OSError):
                self._inner.process.stdin.write(data)
                await self._inner.process.stdin.drain()

    async def close_stdin(self) -> None:
        if self._inner.process.stdin is not None:
            self._inner.process.stdin.close()

    async def signal(self, number: int) -> None:
        if self._inner.process.returncode is None:
            os.killpg(self._inner.process.pid, number)

    async def stop(self, grace: float) -> None:
        self._inner.kill("killed")

    def on_end(self, call: Callable[[], None]) -> None:
        self._inner.ended.add_done_callback(lambda _: call())

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._inner.ended)

    async def release(self) -> None:
        if self._inner.ended.done():
            self._box.commands.pop(self._key, None)
