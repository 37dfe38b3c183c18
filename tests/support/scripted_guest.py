"""A guest that does what a test tells it: bytes in, bytes out over a socket pair, with the real framing.

It stands where PID 1 stands and keeps to nothing by itself, so a test can break any rule of the wire with it.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ringfence.host.kernel.ids import BoxId, RunId
from ringfence.wire.framing import decode, encode, unwrap_run, wrap_run

BOX = BoxId("abcdefghijklmnop")
SECONDS = 30.0  # patience: no single step of these tests takes 50 ms on an idle machine


class ScriptedGuest:
    def __init__(self) -> None:
        self.host_end, self._sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._held = b""

    def take_fd(self) -> int:
        """The host's end, for `Broker.attach`."""
        return self.host_end.detach()

    @property
    def sock(self) -> socket.socket:
        return self._sock

    def close(self) -> None:
        self._sock.close()

    async def send(self, data: bytes) -> None:
        await asyncio.wait_for(asyncio.get_running_loop().sock_sendall(self._sock, data), SECONDS)

    async def push(self, data: bytes) -> bool:
        """Sends; False when the host has ended the wire meanwhile."""
        try:
            await self.send(data)
        except ConnectionError:
            return False
        return True

    async def say(self, **body: Any) -> None:
        await self.send(encode(body))

    async def loop_says(self, run: str, **body: Any) -> None:
        await self.send(wrap_run(run, encode(body)))

    async def line(self) -> bytes:
        """The next line of the host; b"" at the end of the wire."""
        while b"\n" not in self._held:
            try:
                data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 1 << 16), SECONDS)
            except ConnectionResetError:
                return b""
            if not data:
                return b""
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line

    async def hear(self, method: str) -> dict[str, Any]:
        """The next frame of that method; others before it are an error."""
        frame = decode(await self.line())
        assert frame.get("m") == method, frame
        return frame

    async def loop_hears(self) -> tuple[str, dict[str, Any]]:
        wrapped = unwrap_run(await self.line())
        assert wrapped is not None
        return wrapped[0], decode(wrapped[1])

    async def ended(self) -> bool:
        """True when the host ends the wire, whatever it says before."""
        while await self.line():
            pass
        return True

    async def greet(
        self,
        guest: str = "guest-1",
        runs: Mapping[str, str] | None = None,
        commands: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> dict[str, Any]:
        """Hears hello and answers it."""
        hello = await self.hear("hello")
        reply = {
            "generation": 1,
            "digest": "d" * 64,
            "guest": guest,
            "landlock": 6,
            "seccomp": 1,
            "runs": [{"run": run, "token": token} for run, token in (runs or {}).items()],
            "commands": [{"key": key, "state": state} for key, state in (commands or {}).items()],
            "orphans": [],
        }
        await self.say(re=hello["id"], ok={**reply, **changes})
        return hello

    async def spawned(self, pid: int = 7, attached: bool = False) -> dict[str, Any]:
        """Hears cmd.spawn and answers it; its parameters."""
        spawn = await self.hear("cmd.spawn")
        await self.say(re=spawn["id"], ok={"pid": pid, "attached": attached})
        params: dict[str, Any] = spawn["p"]
        return params

    async def output(self, key: str, data: bytes, stream: int = 1) -> None:
        await self.say(m="cmd.output", p={"key": key, "stream": stream, "data_b64": base64.b64encode(data).decode()})

    async def end(self, key: str, seq: int, **changes: Any) -> None:
        await self.say(m="cmd.ended", seq=seq, p={**ENDED, "key": key, **changes})


ENDED: dict[str, Any] = {
    "code": 0,
    "signal": None,
    "reason": "exit",
    "message": "",
    "left": [],
    "duration_ms": 3,
    "stdout": None,
    "stderr": None,
}
ANSWERS: dict[str, Any] = {  # of the engine, where the empty one is none
    "run.finish": {"steers": []},
    "step.begin": {"decision": "run", "result": None, "reason": ""},
    "model.generate": {"text": "hello", "tool_calls": [], "stop": "end", "usage": None},
    "thread.read": {"messages": [], "more": False},
    "blob.get": {"data_b64": "aGk=", "size": 2},
}
KEPT: dict[str, Any] = {"head_b64": "aGk=", "tail_b64": "", "total": 2, "dropped": 0}


class RecordingHost:
    """ports.LoopHost: answers from a table and remembers what it was told."""

    def __init__(self) -> None:
        self.asked: list[tuple[RunId, str, Any]] = []
        self.ended: list[tuple[RunId, int | None, int | None]] = []
        self.lost: list[BoxId] = []
        self.answers: dict[str, Any] = {}
        self.redials = False
        self.gave_up = asyncio.Event()  # when it dials again: that it has ended doing so
        self.held = asyncio.Event()
        self.held.set()

    async def ask(self, box: BoxId, run: RunId, method: str, params: Any) -> Any:
        self.asked.append((run, method, params))
        await self.held.wait()
        answer = self.answers.get(method, ANSWERS.get(method, {}))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def loop_ended(self, box: BoxId, run: RunId, code: int | None, signal: int | None) -> None:
        await self.held.wait()
        self.ended.append((run, code, signal))

    async def link_lost(self, box: BoxId) -> None:
        self.lost.append(box)
        if self.redials:
            await self.gave_up.wait()


class AuditLog:
    """violations.Tell."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __call__(self, box: BoxId, kind: str, details: Mapping[str, Any]) -> None:
        self.lines.append((kind, str(details["reason"])))

    @property
    def kinds(self) -> Sequence[str]:
        return [kind for kind, _ in self.lines]
