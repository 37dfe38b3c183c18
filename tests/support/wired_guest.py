"""Boxes without walls behind the real wire: a driver that dials, and a PID 1 whose loops say what a test tells them to.

The guest greets, takes runs and commands, and never judges: what is refused is refused by the host.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import socket
from collections.abc import Mapping
from typing import Any

from ringfence.host.kernel.errors import BoxLost
from ringfence.host.kernel.ids import BoxId
from ringfence.wire.framing import decode, encode, unwrap_run, wrap_run
from tests.support.fake_commands import Tasks
from tests.support.fake_driver import FakeDriver
from tests.support.fakes import World

SECONDS = 30.0


class WiredGuest:
    """PID 1 of one box. `starts`: by run, the parameters of its newest run.start."""

    def __init__(self, name: str, tasks: Tasks, output: bytes) -> None:
        """`output`: what every command of a step writes."""
        self.name, self.output = name, output
        self.starts: dict[str, dict[str, Any]] = {}
        self.claims: list[dict[str, str]] = []  # runs and tokens of the next hello
        self.held: list[dict[str, Any]] = []  # spawned commands of the name `hold`: they run until they are ended
        self.wires = 0
        self._tasks = tasks
        self._writer: asyncio.StreamWriter | None = None
        self._reports = itertools.count(1)
        self._ids: dict[str, int] = {}
        self._waiting: dict[tuple[str, int], asyncio.Future[dict[str, Any]]] = {}
        self._news = asyncio.Event()

    def connect(self) -> int:
        """A new wire; the host's end."""
        self.wires += 1
        host, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._tasks.go(self._serve(own))
        return host.detach()

    def close(self) -> None:
        """The box has ended, and its loops with it."""
        if self._writer is not None:
            self._writer.close()
        self.starts.clear()

    async def started(self, run: str) -> dict[str, Any]:
        """What the loop of the run was told, once it is there."""
        async with asyncio.timeout(SECONDS):
            while run not in self.starts:
                self._news.clear()
                await self._news.wait()
        return self.starts[run]

    async def ask(self, run: str, method: str, token: str, **params: Any) -> dict[str, Any]:
        """The reply to what the loop of a run, or one that calls itself so, asks: with `ok` or `err`."""
        number = self._ids[run] = self._ids.get(run, 0) + 1
        future = self._waiting[run, number] = asyncio.get_running_loop().create_future()
        self._write(wrap_run(run, encode({"id": number, "m": method, "p": {"token": token, **params}})))
        return await asyncio.wait_for(future, SECONDS)

    def end_loop(self, run: str) -> None:
        self.starts.pop(run, None)
        self._ids.pop(run, None)
        self.report("loop.ended", run=run, code=0, signal=None)

    def end_command(self, key: str, output: str, written: bytes) -> None:
        kept = {"head_b64": base64.b64encode(written).decode(), "tail_b64": "", "total": len(written), "dropped": 0}
        streams = {"stdout": kept, "stderr": _NOTHING} if output == "keep" else {}
        self.report("cmd.ended", **{**_ENDED, "key": key, **streams})

    def report(self, method: str, **params: Any) -> None:
        self._write(encode({"m": method, "p": params, "seq": next(self._reports)}))

    def note(self, method: str, **params: Any) -> None:
        self._write(encode({"m": method, "p": params}))

    def drop(self) -> None:
        """The wire breaks; the box and its loops go on."""
        assert self._writer is not None
        self._writer.close()

    def _write(self, frame: bytes) -> None:
        assert self._writer is not None
        self._writer.write(frame)

    async def _serve(self, sock: socket.socket) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=sock, limit=1 << 21)
        writer = self._writer
        try:
            while line := await reader.readline():
                self._hear(line.rstrip(b"\n"))
        except ConnectionError:
            pass  # the host has ended the wire
        finally:
            writer.close()

    def _hear(self, line: bytes) -> None:
        wrapped = unwrap_run(line)
        if wrapped is not None:
            reply = decode(wrapped[1])
            waiting = self._waiting.pop((wrapped[0], reply.get("re", 0)), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(reply)
            return
        frame = decode(line)
        if "id" in frame:
            self._write(encode({"re": frame["id"], "ok": self._done(frame["m"], frame["p"])}))

    def _done(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "hello":
            self._ids.clear()  # each loop's dialogue begins anew
            return {**_HELLO, "guest": self.name, "runs": self.claims}
        if method == "run.start":
            self.starts[params["run"]] = params
            self._news.set()
            return {"pid": 7}
        if method == "run.cancel":
            asyncio.get_running_loop().call_soon(self.end_loop, params["run"])
        if method == "cmd.spawn":
            if base64.b64decode(params["argv_b64"][0]) == b"hold":
                self.held.append(params)
            else:
                written = self.output if params["key"].startswith("s/") else b""
                asyncio.get_running_loop().call_soon(self.end_command, params["key"], params["output"], written)
            return {"pid": 9, "attached": False}
        return {}


_HELLO = {
    "generation": 1,
    "digest": "d1",
    "landlock": 6,
    "seccomp": 1,
    "runs": [],
    "commands": [],
    "orphans": [],
}
_NOTHING = {"head_b64": "", "tail_b64": "", "total": 0, "dropped": 0}
_ENDED: dict[str, Any] = {
    "code": 0,
    "signal": None,
    "reason": "exit",
    "message": "",
    "left": [],
    "duration_ms": 1,
    "stdout": None,
    "stderr": None,
}


class WiredDriver(FakeDriver):
    """ports.Driver whose boxes have a WiredGuest each."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._boxes = world
        self.guests: dict[BoxId, WiredGuest] = {}
        self.output: dict[BoxId, bytes] = {}

    def guest(self, box: BoxId) -> WiredGuest:
        found = self._boxes.box(box)
        if box not in self.guests or self.guests[box].name != found.guest:
            self.guests[box] = WiredGuest(found.guest, self._boxes.tasks, self.output.get(box, b""))
        return self.guests[box]

    async def dial(self, box: BoxId, identity: Mapping[str, Any]) -> int:
        os.close(await super().dial(box, identity))  # its check of the identity
        if not self._boxes.box(box).running:
            raise BoxLost(f"box {box} is gone")
        return self.guest(box).connect()

    async def stop(self, box: BoxId) -> None:
        await super().stop(box)
        if box in self.guests:
            self.guests.pop(box).close()
