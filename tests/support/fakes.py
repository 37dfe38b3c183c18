"""A driver, a broker and guests without walls, for tests of the engine: they behave, and commands are real processes.

A `World` is what lives outside the kernel process: boxes with their commands and loops. It outlives an engine, so that a
second engine over the same world and store is a restarted server. A wire can be lost, a box killed, a loop killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ringfence.host.kernel.boxes import BoxKind, Limits, Observed
from ringfence.host.kernel.errors import BoxLost, Conflict, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.ports import CommandSpec, FileInfo, GuestHello, Kept, LoopHost, Outcome, Sight
from ringfence.wire import messages as wire

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

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._inner.ended)

    async def release(self) -> None:
        if self._inner.ended.done():
            self._box.commands.pop(self._key, None)


@dataclass(eq=False)
class Loop:
    """An agent loop in a box."""

    box: FakeBox
    start: Mapping[str, Any]
    task: asyncio.Task[Any] | None = None

    @property
    def run(self) -> RunId:
        return RunId(self.start["run"])

    async def ask(self, method: str, params: Any) -> Any:
        """Over the present wire; when it ends before the answer, again over the next one."""
        while True:
            link = await self.box.linked()
            # As with the real wire, what was asked goes on in the host when the loop or the wire is gone.
            asked = link.world.tasks.go(answered(link.host.ask(self.box.id, self.run, method, params)))
            ended = link.world.tasks.go(link.ended.wait())
            try:
                await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    result = asked.result()
                    if isinstance(result, RingfenceError):
                        raise result
                    return result
            finally:
                ended.cancel()


async def answered(ask: Coroutine[Any, Any, Any]) -> Any:
    """The result, or the error as a value: nobody may be there to take it."""
    try:
        return await ask
    except RingfenceError as error:
        return error


Script = Callable[[Loop], Awaitable[None]]


@dataclass(eq=False)
class FakeBox:
    id: BoxId
    folder: Path
    uid: int
    running: bool = False
    starts: int = 0
    guest: str = ""
    limits: Limits = field(default_factory=Limits)
    oom_kills: int = 0
    deaf: bool = False  # runs and does not say hello
    brittle: float | None = None  # seconds from a wire's hello to its end
    hung: bool = False  # takes a wire and says nothing at all
    mute: bool = False  # says hello and never answers an order to end a loop
    commands: dict[str, GuestCommand] = field(default_factory=dict)
    spawned: list[str] = field(default_factory=list)  # every key that started a process
    loops: dict[RunId, Loop] = field(default_factory=dict)
    link: FakeLink | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    reports: list[tuple[RunId, int | None, int | None]] = field(default_factory=list)  # not delivered yet

    @property
    def identity(self) -> dict[str, Any]:
        return {"pid": 1000 + self.starts, "guest": self.guest, "uid": self.uid}

    async def linked(self) -> FakeLink:
        while self.link is None or not self.link.alive:
            self.news.clear()
            await self.news.wait()
        return self.link


class World:
    """What is outside the kernel process."""

    def __init__(self, folder: Path, script: Script | None = None) -> None:
        self.folder = folder
        self.boxes: dict[BoxId, FakeBox] = {}
        self.script: Script = script or native
        self.tasks = Tasks()
        self.dials = 0
        self.start_seconds = 0.0  # how long a start takes
        self.fail_start: list[RingfenceError] = []  # raised by the next starts

    def box(self, box: BoxId) -> FakeBox:
        if box not in self.boxes:
            raise NotFound(f"no such box: {box!r}")
        return self.boxes[box]

    async def close(self) -> None:
        for box in self.boxes.values():
            await self.kill_box(box.id)
        await self.tasks.close()

    # --- what befalls it -----------------------------------------------------------------------------------------

    def lose_wire(self, box: BoxId) -> None:
        link = self.box(box).link
        if link is not None and link.alive:
            link.end()
            self.tasks.go(link.host.link_lost(box))

    async def kill_box(self, box: BoxId) -> None:
        """PID 1 killed: nothing of the box stays alive."""
        found = self.box(box)
        found.running = False
        commands, found.commands = list(found.commands.values()), {}
        loops, found.loops = list(found.loops.values()), {}
        found.reports.clear()
        for command in commands:
            command.kill("box_lost")
        for loop in loops:
            assert loop.task is not None
            loop.task.cancel()
        self.lose_wire(box)
        await asyncio.gather(*(command.ended for command in commands))

    async def kill_loop(self, box: BoxId, run: RunId) -> None:
        loop = self.box(box).loops[run]
        assert loop.task is not None
        loop.task.cancel()
        await asyncio.gather(loop.task, return_exceptions=True)

    async def drive(self, loop: Loop) -> None:
        code: int | None = 0
        number: int | None = None
        try:
            await self.script(loop)
        except asyncio.CancelledError:
            code, number = None, 9
        except RingfenceError:
            code = 1
        if loop.box.loops.get(loop.run) is loop:
            del loop.box.loops[loop.run]
            await self.report(loop.box, loop.run, code, number)

    async def report(self, box: FakeBox, run: RunId, code: int | None, number: int | None) -> None:
        if box.link is not None and box.link.alive:
            await box.link.host.loop_ended(box.id, run, code, number)
        else:
            box.reports.append((run, code, number))


class FakeLink:
    """ports.Link."""

    def __init__(self, world: World, box: FakeBox, host: LoopHost) -> None:
        self.world, self.box, self.host = world, box, host
        self.ended = asyncio.Event()
        self.hello = GuestHello(
            digest="d1",
            guest=box.guest,
            landlock=6,
            runs={run: loop.start["token"] for run, loop in box.loops.items()},
            commands={key: "ended" if c.ended.done() else "running" for key, c in box.commands.items()},
            orphans=(),
        )

    @property
    def alive(self) -> bool:
        return not self.ended.is_set()

    def end(self) -> None:
        self.ended.set()
        if self.box.link is self:
            self.box.link = None

    def _check(self) -> None:
        if not self.alive:
            raise BoxLost(f"the wire of box {self.box.id} has ended")

    async def spawn(self, key: str, spec: CommandSpec) -> FakeCommand:
        self._check()
        known = self.box.commands.get(key)
        if known is not None:
            return FakeCommand(self.box, key, known, attached=True)
        cwd = self.box.folder if spec.cwd == "/home/user" else Path(spec.cwd)
        self.box.spawned.append(key)
        process = await asyncio.create_subprocess_exec(
            *spec.argv,
            env={name: os.fsdecode(value) for name, value in spec.env.items()},
            cwd=cwd,
            stdin=asyncio.subprocess.PIPE if spec.stdin == "pipe" else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        command = self.box.commands[key] = GuestCommand(spec, process)
        self.world.tasks.go(command.watch())
        return FakeCommand(self.box, key, command, attached=False)

    async def start_run(self, start: Mapping[str, Any]) -> int:
        self._check()
        shape = dict(start)
        shape["messages"] = [wire.ThreadMessage(**message) for message in shape["messages"]]
        wire.RunStart(**shape)  # exactly its fields
        loop = Loop(self.box, start)
        if loop.run in self.box.loops:
            raise Conflict("that run has a loop")
        self.box.loops[loop.run] = loop
        loop.task = self.world.tasks.go(self.world.drive(loop))
        return 42

    async def cancel_run(self, run: RunId, grace: float) -> None:
        self._check()
        if self.box.mute:
            await self.ended.wait()
            self._check()
        loop = self.box.loops.get(run)
        if loop is None:
            raise NotFound(f"no such run: {run!r}")
        assert loop.task is not None
        loop.task.cancel()

    async def close(self) -> None:
        self.end()


class FakeBroker:
    """ports.Broker."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def attach(self, box: BoxId, sock_fd: int, host: LoopHost) -> FakeLink:
        os.close(sock_fd)
        found = self._world.box(box)
        if not found.running or found.deaf:
            raise BoxLost(f"box {box} did not say hello")
        if found.hung:
            while found.running:
                await asyncio.sleep(0.005)
            raise BoxLost(f"box {box} ended")
        if found.link is not None:
            found.link.end()
        link = found.link = FakeLink(self._world, found, host)
        reports, found.reports = found.reports, []
        for run, code, number in reports:
            self._world.tasks.go(host.loop_ended(box, run, code, number))
        if found.brittle is not None:
            asyncio.get_running_loop().call_later(found.brittle, self._world.lose_wire, box)
        found.news.set()  # loops ask again at once, before anybody has looked at the hello
        return link


class FakeDriver:
    """ports.Driver."""

    name = "fake"

    def __init__(self, world: World, digest: str = "d1", weak: tuple[str, ...] = ()) -> None:
        self._world, self._digest, self._weak = world, digest, weak

    async def facts(self) -> dict[str, Any]:
        return {"mode": "shared", "weak": list(self._weak), "guest_digest": self._digest, "installation": "i"}

    async def provision(self, box: BoxId, kind: BoxKind) -> int:
        if box not in self._world.boxes:
            folder = self._world.folder / box
            folder.mkdir(parents=True)
            self._world.boxes[box] = FakeBox(box, folder, 5000 + 8 * len(self._world.boxes))
        return self._world.boxes[box].uid

    async def start(self, box: BoxId, limits: Limits) -> dict[str, Any]:
        found = self._world.box(box)
        await asyncio.sleep(self._world.start_seconds)
        if self._world.fail_start:
            raise self._world.fail_start.pop(0)
        if not found.running:
            found.running, found.starts, found.oom_kills = True, found.starts + 1, 0
            found.guest, found.limits = f"{box}-{found.starts}", limits
        return found.identity

    async def stop(self, box: BoxId) -> None:
        await self._world.kill_box(box)

    async def observe(self, box: BoxId) -> Sight:
        found = self._world.box(box)
        return Sight(
            state=Observed.RUNNING if found.running else Observed.STOPPED,
            identity=found.identity if found.running else None,
            uid=found.uid,
            pids=1 + len(found.commands) if found.running else 0,
            memory_bytes=1 << 20,
            memory_peak_bytes=900 << 20,
            memory_limit_bytes=found.limits.memory,
            oom_kills=found.oom_kills,
        )

    async def set_limits(self, box: BoxId, limits: Limits) -> None:
        self._world.box(box).limits = limits

    async def remove(self, box: BoxId) -> None:
        await self._world.kill_box(box)
        shutil.rmtree(self._world.boxes.pop(box).folder)

    async def running(self) -> list[BoxId]:
        return [box.id for box in self._world.boxes.values() if box.running]

    async def dial(self, box: BoxId, identity: Mapping[str, Any]) -> int:
        self._world.dials += 1
        found = self._world.box(box)
        if not found.running or dict(identity) != found.identity:
            raise BoxLost(f"box {box} is gone")
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    @asynccontextmanager
    async def files(self, box: BoxId) -> AsyncIterator[FolderFiles]:
        yield FolderFiles(self._world.box(box).folder)


class FolderFiles:
    """ports.BoxFiles over a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, path: bytes) -> Path:
        found = self._folder / os.fsdecode(path)
        if not found.exists():
            raise NotFound(f"no such file: {path!r}")
        return found

    def _info(self, path: Path) -> FileInfo:
        seen = path.lstat()
        kind: Literal["file", "directory"] = "directory" if path.is_dir() else "file"
        return FileInfo(os.fsencode(path.name), kind, seen.st_size, seen.st_mode & 0o777, seen.st_mtime_ns, None)

    async def stat(self, path: bytes) -> FileInfo:
        return self._info(self._path(path))

    async def list(self, path: bytes, after: bytes | None, limit: int) -> list[FileInfo]:
        found = sorted((self._info(one) for one in self._path(path).iterdir()), key=lambda info: info.name)
        return [info for info in found if after is None or info.name > after][:limit]

    async def get(self, path: bytes) -> AsyncIterator[bytes]:
        yield self._path(path).read_bytes()

    @asynccontextmanager
    async def fetch(self, path: bytes) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        yield self._info(self._path(path)), self.get(path)

    async def put(self, path: bytes, data: AsyncIterator[bytes], mode: int) -> FileInfo:
        target = self._folder / os.fsdecode(path)
        target.write_bytes(b"".join([chunk async for chunk in data]))
        target.chmod(mode)
        return self._info(target)

    async def remove(self, path: bytes, recursive: bool) -> None:
        self._path(path).unlink()

    async def usage(self) -> tuple[int, int]:
        found = list(self._folder.iterdir())
        return sum(one.stat().st_size for one in found), len(found)


# --- loops -----------------------------------------------------------------------------------------------------------


async def native(loop: Loop) -> None:
    """What the native loop does: model, tools, checkpoints, finish. Its messages are its state."""
    token = loop.start["token"]
    if loop.start["checkpoint"] is not None:
        state = json.loads(loop.start["checkpoint"])
    else:
        spoken = [{"role": _ROLES[m["role"]], "text": m["text"]} for m in loop.start["messages"]]
        state = {"messages": [{"role": "system", "text": loop.start["posture"]}, *spoken], "n": 0}
    while True:
        await loop.ask("checkpoint.save", wire.CheckpointSave(token, "before_model", state["n"], json.dumps(state)))
        chat = [_chat(message) for message in state["messages"]]
        said = await loop.ask("model.generate", wire.ModelGenerate(token, "scripted", chat, ["shell", "read", "write"]))
        wire.Generated(**said)
        if not said["tool_calls"]:
            await loop.ask("run.finish", wire.RunFinish(token, said["text"]))
            return
        state["messages"].append({"role": "assistant", "text": "", "tool_calls": said["tool_calls"]})
        for call in said["tool_calls"]:
            state["n"] += 1
            result = await _step(loop, token, state["n"], call)
            state["messages"].append({"role": "tool", "text": json.dumps(result), "tool_call_id": call["id"]})


_ROLES = {"user": "user", "agent": "assistant"}


def _chat(message: Mapping[str, Any]) -> wire.ChatMessage:
    calls = [wire.ToolCall(**call) for call in message.get("tool_calls", ())]
    return wire.ChatMessage(message["role"], message["text"], calls, message.get("tool_call_id"))


async def _step(loop: Loop, token: str, n: int, call: Mapping[str, Any]) -> Any:
    effect: Literal["local", "idempotent"] = "local" if call["name"] == "shell" else "idempotent"
    begun = await loop.ask("step.begin", wire.StepBegin(token, n, call["name"], call["arguments"], effect))
    wire.StepBegun(**begun)
    if begun["decision"] == "done":
        return begun["result"]
    path = loop.box.folder / call["arguments"]["path"]
    if call["name"] == "write":
        path.write_text(call["arguments"]["text"])
        result = {"ok": True}
    else:
        result = {"ok": True, "text": path.read_text()}
    await loop.ask("step.end", wire.StepEnd(token, n, result))
    return result
