"""Boxes without walls whose commands take virtual time: what is outside the kernel processes and outlives each of them.

A guest never does anything in the name of a kernel: its tasks have a context of their own, and what it asks is asked in the context of
the kernel at the other end of the wire.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any, Literal, cast

from ringfence.host.kernel.errors import BoxLost, RingfenceError
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.ports import CommandSpec, Kept, LoopHost, Outcome
from tests.support.fake_commands import GuestCommand, Tasks
from tests.support.fakes import FakeBox, FakeLink, Loop, World
from tests.support.sim.chance import Chance
from tests.support.sim.loop import PROCESS, Process


class SimTasks(Tasks):
    """Of nobody's process."""

    def go(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class SimWorld(World):
    def __init__(self, folder: Path, chance: Chance) -> None:
        super().__init__(folder)
        self.tasks = SimTasks()
        self.chance = chance
        self.spawned: list[str] = []  # every key that ever started a command
        self._copies: dict[BoxId, Path] = {}

    async def drive(self, loop: Loop) -> None:
        await asyncio.sleep(self.chance.between(0, 0.05))
        await super().drive(loop)

    def cut_off(self, process: Process) -> None:
        """The sockets of a process that is dead are closed."""
        for box in self.boxes.values():
            if box.link is not None and cast(SimLink, box.link).process is process:
                box.link.end()

    def copy(self, box: BoxId) -> None:
        """An older copy, from now on."""
        self._copies[box] = self.folder / f"{box}.copy"
        shutil.copytree(self.box(box).folder, self._copies[box], dirs_exist_ok=True)

    async def restore(self, box: BoxId) -> None:
        """From the older copy; without one, to an empty tree."""
        await self.kill_box(box)
        folder = self.box(box).folder
        shutil.rmtree(folder)
        if box in self._copies:
            shutil.copytree(self._copies[box], folder)
        else:
            folder.mkdir()


class SimCommand:
    """A command in a box, and ports.Command for whoever holds it."""

    def __init__(self, box: FakeBox, key: str, spec: CommandSpec, seconds: float) -> None:
        self._box, self._key, self._seconds, self._output = box, key, seconds, spec.output
        self.began = asyncio.get_running_loop().time()
        self.ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.pid, self.attached = 100, False

    async def watch(self) -> None:
        await asyncio.sleep(self._seconds)
        self._end("exit", 0)

    def kill(self, reason: Literal["timeout", "killed", "box_lost"]) -> None:
        self._end(reason, None)

    def _end(self, reason: Literal["exit", "timeout", "killed", "box_lost"], code: int | None) -> None:
        if self.ended.done():
            return
        kept = Kept(b"said\n", b"", 5, 0) if self._output == "keep" and reason != "box_lost" else None
        number = 9 if reason == "killed" else None
        took = round((asyncio.get_running_loop().time() - self.began) * 1000)
        self.ended.set_result(Outcome(code, number, reason, "", (), took, kept, kept))

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        await asyncio.shield(self.ended)
        yield 1, b"said\n"

    async def write(self, data: bytes) -> None:
        """Nobody reads it."""

    async def close_stdin(self) -> None:
        """It has none."""

    async def signal(self, number: int) -> None:
        self._end("killed", None)

    async def stop(self, grace: float) -> None:
        self._end("killed", None)

    def on_end(self, call: Callable[[], None]) -> None:
        self.ended.add_done_callback(lambda _: call())

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self.ended)

    async def release(self) -> None:
        if self.ended.done():
            self._box.commands.pop(self._key, None)


class Door:
    """ports.LoopHost: of one kernel process, in whose context everything is asked."""

    def __init__(self, host: LoopHost, process: Process) -> None:
        self._host, self._process = host, process

    async def ask(self, box: BoxId, run: RunId, method: str, params: Any) -> Any:
        return await asyncio.shield(self._process.begin(self._host.ask(box, run, method, params)))

    async def loop_ended(self, box: BoxId, run: RunId, code: int | None, signal: int | None) -> None:
        await self._tell(self._host.loop_ended(box, run, code, signal))

    async def link_lost(self, box: BoxId) -> None:
        await self._tell(self._host.link_lost(box))

    async def _tell(self, work: Coroutine[Any, Any, None]) -> None:
        """A broker logs what its host says to news, and goes on."""
        with suppress(RingfenceError):
            await asyncio.shield(self._process.begin(work))


class SimLink(FakeLink):
    """`process`: the kernel at its other end."""

    def __init__(self, world: SimWorld, box: FakeBox, host: LoopHost, process: Process) -> None:
        super().__init__(world, box, Door(host, process))
        self.sim, self.process = world, process

    async def spawn(self, key: str, spec: CommandSpec) -> Any:
        self._check()
        known: Any = self.box.commands.get(key)
        if known is not None:
            return known
        self.sim.spawned.append(key)
        command = SimCommand(self.box, key, spec, self.sim.chance.between(0, 2))
        self.box.commands[key] = cast(GuestCommand, command)
        self.sim.tasks.go(command.watch())
        return command


class SimBroker:
    """ports.Broker."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    async def attach(self, box: BoxId, sock_fd: int, host: LoopHost) -> SimLink:
        os.close(sock_fd)
        process = PROCESS.get()
        assert process is not None
        await asyncio.sleep(self._world.chance.between(0, 0.02))
        found = self._world.box(box)
        if not found.running:
            raise BoxLost(f"box {box} did not say hello")
        if (former := found.link) is not None:
            former.end()
            self._world.tasks.go(former.host.link_lost(box))
        link = found.link = SimLink(self._world, found, host, process)
        reports, found.reports = found.reports, []
        for run, code, number in reports:
            self._world.tasks.go(link.host.loop_ended(box, run, code, number))
        found.news.set()
        return link
