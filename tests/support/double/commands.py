"""Commands of the double: real processes, each in a session of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Kept, Outcome
from tests.support.double.boxes import BoxKeeper
from tests.support.double.world import World

HEAD, TAIL = 64 << 10, 192 << 10


def kept(data: bytes) -> Kept:
    if len(data) <= HEAD + TAIL:
        return Kept(data, b"", len(data), 0)
    return Kept(data[:HEAD], data[-TAIL:], len(data), len(data) - HEAD - TAIL)


class Command:
    """A real process in its own session."""

    def __init__(self, process: asyncio.subprocess.Process, request: Any) -> None:
        self._process = process
        self._request = request
        self._timed_out = False
        self._ended = asyncio.Event()
        self._kept = (bytearray(), bytearray())
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaping = asyncio.create_task(self._reap())
        if request.timeout is not None:
            self._attend(self._expire(request.timeout))
        self._keeping = asyncio.create_task(self._keep()) if request.output == "keep" else None
        self.released = False

    def _attend(self, work: Any) -> None:
        self._tasks.add(asyncio.create_task(work))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def attached(self) -> bool:
        return False

    async def _reap(self) -> None:
        while self._process.returncode is None:  # Process.wait() would wait for the pipes' readers too
            await asyncio.sleep(0.005)
        self._ended.set()

    async def _expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not self._ended.is_set():
            self._timed_out = True
            await self.stop(0.5)

    async def _keep(self) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None
        self._kept = (
            bytearray(await self._process.stdout.read()),
            bytearray(await self._process.stderr.read()),
        )

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        """One chunk at a time: the pipes fill while the reader is slow."""
        pipes: dict[Literal[1, 2], asyncio.StreamReader | None] = {1: self._process.stdout, 2: self._process.stderr}
        reads: dict[asyncio.Task[bytes], Literal[1, 2]] = {}
        for number, pipe in pipes.items():
            assert pipe is not None
            reads[asyncio.create_task(pipe.read(48 << 10))] = number
        try:
            while reads:
                done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = reads.pop(task)
                    if data := task.result():
                        yield number, data
                        pipe = pipes[number]
                        assert pipe is not None
                        reads[asyncio.create_task(pipe.read(48 << 10))] = number
        finally:
            for task in reads:
                task.cancel()
        await self._ended.wait()

    async def write(self, data: bytes) -> None:
        if self._process.stdin is not None and not self._ended.is_set():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    async def close_stdin(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def stop(self, grace: float) -> None:
        await self.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), grace)
        await self.signal(signal.SIGKILL)
        await self._ended.wait()

    def on_end(self, call: Callable[[], None]) -> None:
        """Asked for by the engine alone, whose place this takes."""

    async def outcome(self) -> Outcome:
        await self._ended.wait()
        code = self._process.returncode or 0
        streams = [kept(bytes(each)) for each in self._kept] if await self._settled() else [None, None]
        reason: Any = "timeout" if self._timed_out else "killed" if code < 0 else "exit"
        return Outcome(
            code if code >= 0 else None, -code if code < 0 else None, reason, "", [], 1, streams[0], streams[1]
        )

    async def _settled(self) -> bool:
        if self._keeping is None:
            return False
        await asyncio.wait({self._keeping}, timeout=2)
        return True

    def close(self) -> None:
        transport: Any = vars(self._process)["_transport"]
        transport.close()

    async def release(self) -> None:
        self.released = True
        await self._ended.wait()
        for task in self._tasks:
            task.cancel()


@dataclass
class NoCommand:
    """One that could not be started, or whose box ended."""

    reason: Any
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    pid: int = 0
    attached: bool = False

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        empty: list[tuple[Literal[1, 2], bytes]] = []
        for chunk in empty:
            yield chunk

    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def stop(self, grace: float) -> None: ...
    async def release(self) -> None: ...
    def on_end(self, call: Callable[[], None]) -> None: ...
    async def outcome(self) -> Outcome:
        return Outcome(None, 9 if self.reason == "oom" else None, self.reason, self.message, [], 1)


@dataclass
class Commands:
    world: World
    boxes: BoxKeeper
    started: list[Command] = field(default_factory=list)

    async def run(self, actor: Actor, tenant: str, user: str, request: Any) -> Command | NoCommand:
        self.world.user(actor, tenant, user)
        if not request.argv:
            raise Invalid("no command", remedy="ringfence exec U -- CMD")
        if request.timeout is not None and not (0 < request.timeout < math.inf):
            raise Invalid("timeout is not above 0", remedy="give seconds")
        await self.boxes.start(actor, tenant, user)
        if request.argv[0] == b"@oom":
            return NoCommand("oom", "out of memory: limit 1 GiB")
        if request.argv[0] == b"@lost":
            return NoCommand("box_lost", "the box ended")
        env = {b"PATH": b"/usr/bin:/bin", **{name.encode(): value for name, value in request.env.items()}}
        try:
            process = await asyncio.create_subprocess_exec(
                *request.argv,
                env=env,
                cwd=request.cwd or self.world.home(tenant, user),
                stdin=asyncio.subprocess.PIPE if request.stdin == "pipe" else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return NoCommand("spawn_failed", f"{os.fsdecode(request.argv[0])}: {error.strerror}")
        command = Command(process, request)
        self.started.append(command)
        return command
