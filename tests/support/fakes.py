"""A broker and guests without walls, for tests of the engine: they behave, and commands are real processes.

A `World` is what lives outside the kernel process: boxes with their commands and loops. It outlives an engine, so that a
second engine over the same world and store is a restarted server. A wire can be lost, a box killed, a loop killed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.errors import BoxLost, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.host.kernel.life.debris import Left
from ringfence.host.kernel.life.logs import Said
from ringfence.host.kernel.ports import CommandSpec, GuestHello, LoopHost
from ringfence.wire import messages as wire
from tests.support.fake_commands import FakeCommand, GuestCommand, Tasks


@dataclass(eq=False)
class Loop:
    """An agent loop in a box."""

    box: FakeBox
    start: Mapping[str, Any]
    task: asyncio.Task[Any] | None = None
    news: list[Mapping[str, Any]] = field(default_factory=list)  # steers that it has not read
    wound: int | None = None  # seconds that it was told it has
    winds: int = 0  # how often

    def said(self) -> list[Mapping[str, Any]]:
        """What has been said to it since it last looked."""
        news, self.news = self.news, []
        return news

    @property
    def run(self) -> RunId:
        return RunId(self.start["run"])

    async def stop(self) -> None:
        """Not before its first step: a task that is cancelled earlier runs nothing of itself and reports no end."""
        await asyncio.sleep(0)
        assert self.task is not None
        self.task.cancel()

    async def ask(self, method: str, params: Any) -> Any:
        """Over the present wire; when it ends before the answer, again over the next one."""
        while True:
            link = await self.box.linked()
            await self.box.awake.wait()
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


async def parked(loop: Loop) -> None:
    """A loop that does nothing of itself: a test asks in its name."""
    await asyncio.get_running_loop().create_future()


@dataclass(eq=False)
class FakeBox:
    id: BoxId
    folder: Path
    uid: int
    running: bool = False
    kind: BoxKind = BoxKind.HOME
    starts: int = 0
    guest: str = ""
    limits: Limits = field(default_factory=Limits)
    image: str = ""  # that it was started with last
    oom_kills: int = 0
    awake: asyncio.Event = field(default_factory=asyncio.Event)  # not set: every process of it stands still
    pardoned: bool = False  # its wire owes no answer
    pauses: dict[str, float] = field(default_factory=dict)  # that PID 1 was told of, in order: seconds
    freezes: int = 0
    deaf: bool = False  # runs and does not say hello
    brittle: float | None = None  # seconds from a wire's hello to its end
    hung: bool = False  # takes a wire and says nothing at all
    mute: bool = False  # says hello and never answers an order to end or steer a loop
    cancels: int = 0  # orders to end a loop
    lost_steers: int = 0  # of the next ones
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
        self.digest = "d1"  # of the guest tree that boxes run
        self.images: dict[str, str] = {}  # name -> id, of those that are on the host
        self.broken_images: set[str] = set()  # ids on which no box comes up
        self.start_seconds = 0.0  # how long a start takes
        self.fail_start: list[RingfenceError] = []  # raised by the next starts
        self.fail_freeze: list[RingfenceError] = []
        self.said: list[Said] = []  # by boxes' PID 1
        self.left: list[Left] = []  # behind on the host, and taken away
        self.cleared: list[Left] = []

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
        found.awake.set()
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
        await loop.stop()
        assert loop.task is not None
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
            digest=world.digest,
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

    async def _awake(self) -> None:
        """What stands still answers nothing."""
        self._check()
        await self.box.awake.wait()
        self._check()

    async def spawn(self, key: str, spec: CommandSpec) -> FakeCommand:
        await self._awake()
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
        await self._awake()
        shape = dict(start)
        for name in ("messages", "steers"):
            shape[name] = [thread_message(message) for message in shape[name]]
        if shape["summary"] is not None:
            shape["summary"] = wire.Summary(**shape["summary"])
        shape["tools"] = [wire.ToolSpec(**tool) for tool in shape["tools"]]
        wire.RunStart(**shape)  # exactly its fields
        assert len(json.dumps(start)) < 1 << 20, "more than a frame"
        loop = Loop(self.box, start)
        if loop.run in self.box.loops:  # as PID 1 does: the newest token counts
            former = self.box.loops.pop(loop.run)
            assert former.task is not None
            former.task.cancel()
        self.box.loops[loop.run] = loop
        loop.task = self.world.tasks.go(self.world.drive(loop))
        return 42

    async def cancel_run(self, run: RunId, grace: float) -> None:
        self._check()
        self.box.cancels += 1
        if self.box.mute:
            await self.ended.wait()
            self._check()
        loop = self.box.loops.get(run)
        if loop is None:
            raise NotFound(f"no such run: {run!r}")
        await loop.stop()

    async def steer_run(self, run: RunId, message: Mapping[str, Any]) -> None:
        self._check()
        if self.box.mute:
            await self.ended.wait()
            self._check()
        if self.box.lost_steers:
            self.box.lost_steers -= 1
            raise BoxLost("this one is lost")
        thread_message(message)
        loop = self.box.loops.get(run)
        if loop is not None:
            loop.news.append(message)

    async def wind_down(self, run: RunId, seconds: int) -> None:
        self._check()
        loop = self.box.loops.get(run)
        if loop is not None:
            loop.wound = seconds
            loop.winds += 1

    def paused(self) -> None:
        self.box.pardoned = True

    async def resumed(self, pause: str, seconds: float) -> None:
        self._check()
        self.box.pardoned = False
        self.box.pauses[pause] = max(seconds, self.box.pauses.get(pause, 0.0))
        await self._awake()

    async def close(self) -> None:
        self.end()


def thread_message(fields: Mapping[str, Any]) -> wire.ThreadMessage:
    """Exactly its fields."""
    return wire.ThreadMessage(**{**fields, "attachments": [wire.Attachment(**one) for one in fields["attachments"]]})


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


# --- loops -----------------------------------------------------------------------------------------------------------


TOOLS = [wire.ToolSpec(name, "", {"type": "object"}) for name in ("shell", "read", "write")]


async def native(loop: Loop) -> None:
    """What the native loop does: model, tools, checkpoints, steers, finish. Its messages are its state, and a step is
    begun only when a checkpoint has the call: an attempt that asks its model anew has nothing in the journal for it."""
    state = _fresh(loop.start) if loop.start["checkpoint"] is None else json.loads(loop.start["checkpoint"])
    steers = list(loop.start["steers"])
    while True:
        for call in _pending(state):
            state["n"] += 1
            result = await _step(loop, state["n"], call)
            state["messages"].append({"role": "tool", "text": json.dumps(result), "tool_call_id": call["id"]})
        _take_up(state, [*steers, *loop.said()])
        state["wound"] = state["wound"] or loop.wound is not None
        await _save(loop, "before_model", state)
        said = await _think(loop, state)
        if said["tool_calls"]:
            await _save(loop, "before_effect", state)
            continue
        finish = wire.RunFinish(loop.start["token"], said["text"], state["seen"])
        steers = (await loop.ask("run.finish", finish))["steers"]
        if not steers:
            return


async def _save(loop: Loop, boundary: Literal["before_model", "before_effect"], state: dict[str, Any]) -> None:
    token = loop.start["token"]
    await loop.ask("checkpoint.save", wire.CheckpointSave(token, boundary, state["n"], json.dumps(state), []))


async def _think(loop: Loop, state: dict[str, Any]) -> Any:
    state["calls"] += 1
    chat = [_chat(message) for message in state["messages"]]
    tools = [] if state["wound"] else [*TOOLS, *(wire.ToolSpec(**tool) for tool in loop.start["tools"])]
    asks = wire.ModelGenerate(loop.start["token"], "scripted", state["calls"], chat, None, tools)
    try:
        said = await loop.ask("model.generate", asks)
    except Unavailable:
        if state["wound"] or loop.wound is None:
            raise
        state["wound"] = True  # its time was over while it waited
        return await _think(loop, state)
    _generated(said)
    state["messages"].append({"role": "assistant", "text": said["text"], "tool_calls": said["tool_calls"]})
    return said


def _pending(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls of the last answer without a result."""
    calls = [message for message in state["messages"] if message["role"] == "assistant" and message.get("tool_calls")]
    done = {message.get("tool_call_id") for message in state["messages"] if message["role"] == "tool"}
    return [call for call in calls[-1]["tool_calls"] if call["id"] not in done] if calls else []


_ROLES = {"user": "user", "agent": "assistant"}


def _fresh(start: Mapping[str, Any]) -> dict[str, Any]:
    spoken = [{"role": _ROLES[m["role"]], "text": m["text"]} for m in start["messages"]]
    system = {"role": "system", "text": start["posture"]}
    seen = start["messages"][-1]["cursor"]
    return {"messages": [system, *spoken], "n": 0, "calls": 0, "seen": seen, "wound": False}


def _take_up(state: dict[str, Any], steers: list[Mapping[str, Any]]) -> None:
    for message in steers:
        if message["cursor"] > state["seen"]:
            state["messages"].append({"role": "user", "text": message["text"]})
            state["seen"] = message["cursor"]


def _chat(message: Mapping[str, Any]) -> wire.ChatMessage:
    calls = [wire.ToolCall(**call) for call in message.get("tool_calls", ())]
    return wire.ChatMessage(message["role"], message["text"], calls, message.get("tool_call_id"))


def _generated(said: Mapping[str, Any]) -> None:
    """Exactly the fields of the answer."""
    shape = dict(said)
    if shape["usage"] is not None:
        shape["usage"] = wire.Usage(**shape["usage"])
    wire.Generated(**shape)


_CLASSES: Mapping[str, Literal["local", "pure", "idempotent"]] = {
    "shell": "local",
    "read": "pure",
    "write": "idempotent",
}


async def _step(loop: Loop, n: int, call: Mapping[str, Any]) -> Any:
    token = loop.start["token"]
    effect: Literal["local", "pure", "idempotent", "host"] = _CLASSES.get(call["name"], "idempotent")
    if call["name"] in {tool["name"] for tool in loop.start["tools"]}:
        effect = "host"
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
