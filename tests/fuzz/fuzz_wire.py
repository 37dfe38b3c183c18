"""Fuzz target: whatever bytes a greeted guest sends, the link goes on or ends once, and what it says stays sayable.

    python -m tests.fuzz.fuzz_wire [libFuzzer options]      with atheris, which is not a dependency of the project
    python -m tests.fuzz.fuzz_wire --seeded SEED COUNT      without it: mutations of valid frames

An input is cut by its own first bytes into pieces, so that frames arrive in any splitting. The link has no socket: a
transport in memory stands for it, and everything above the socket is the real thing.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

from ringfence.host.broker.bounds import Bounds
from ringfence.host.broker.link import Parts, WireLink
from ringfence.host.broker.rate import Pace
from ringfence.host.broker.record import BoxRecord
from ringfence.host.broker.tasks import Tasks
from ringfence.host.broker.validation import Shapes
from ringfence.host.broker.violations import Violations
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.wire.framing import MAX_FRAME, decode, encode, unwrap_run, wrap_run
from tests.support.broker_rig import spec
from tests.support.scripted_guest import BOX, ENDED, KEPT, RecordingHost

_SHAPES = Shapes()
_HELLO = {
    "generation": 1,
    "digest": "d",
    "guest": "g",
    "landlock": 6,
    "seccomp": 1,
    "runs": [{"run": "run_a", "token": "tok"}],
    "commands": [{"key": "x/1", "state": "running"}],
    "orphans": [],
}
_NAME = "a" * 64
ASKS: list[tuple[str, dict[str, Any]]] = [
    ("run.finish", {"text": "x", "seen": 1}),
    ("checkpoint.save", {"boundary": "final", "step": 1, "state": "s", "blobs": [_NAME]}),
    ("run.event", {"text": "at work"}),
    ("thread.read", {"before": 9, "limit": 200}),
    ("thread.summarise", {"cursor": 3, "text": "so far"}),
    ("blob.put", {"blob": _NAME, "n": 0, "size": 2, "data_b64": "aGk="}),
    ("blob.get", {"blob": _NAME, "n": 63}),
    ("model.generate", {"model": "m", "call": 1, "messages": [], "blob": _NAME, "tools": []}),
]
SEEDS = [
    encode({"m": "cmd.output", "p": {"key": "x/1", "stream": 1, "data_b64": "aGk="}}),
    encode({"m": "cmd.credit", "p": {"key": "x/1", "bytes": 100}}),
    encode({"m": "cmd.ended", "seq": 1, "p": {**ENDED, "key": "x/1"}}),
    encode({"m": "cmd.ended", "seq": 2, "p": {**ENDED, "key": "s/run_a/1", "stdout": KEPT, "stderr": KEPT}}),
    encode({"m": "loop.ended", "seq": 3, "p": {"run": "run_a", "code": 0, "signal": None}}),
    encode({"re": 2, "ok": {"pid": 7, "attached": False}}),
    encode({"re": 2, "err": {"code": "invalid", "message": "no"}}),
    *(wrap_run("run_a", encode({"id": n, "m": m, "p": {"token": "tok", **p}})) for n, (m, p) in enumerate(ASKS, 1)),
    wrap_run("run_b", encode({"id": 1, "m": "run.fail", "p": {"token": "tok", "code": "c", "message": "m"}})),
]


class MemoryTransport(asyncio.Transport):
    """Takes everything at once."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.ended = False
        self._protocol = protocol

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)


class Stage:
    """One greeted link with a command that starts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.told: list[str] = []
        self.ends = 0
        self.host = RecordingHost()
        self.tasks = Tasks()
        parts = Parts(_SHAPES, self.tasks, Violations(self._tell, loop.time), loop, Bounds())
        self.record = BoxRecord(BOX, "g", Pace(0, time.monotonic))
        self.link = WireLink(BOX, self.host, parts, lambda link, hello: self.record, self._ended)
        self.channel = self.link.exchange.channel
        self.transport = MemoryTransport(self.channel)
        self.channel.connection_made(self.transport)

    def _tell(self, box: BoxId, kind: str, details: Mapping[str, Any]) -> None:
        self.told.append(kind)

    def _ended(self, link: WireLink, record: BoxRecord) -> None:
        self.ends += 1


def pieces(data: bytes) -> list[bytes]:
    """The input, cut at places that its first bytes say."""
    cuts, rest = data[:4], data[4:]
    out = []
    for cut in cuts:
        out.append(rest[: cut + 1])
        rest = rest[cut + 1 :]
    return [*out, rest]


async def one_input(data: bytes) -> bool:
    """True when the link goes on afterwards. AssertionError, or any other error: a bug."""
    stage = Stage(asyncio.get_running_loop())
    greeting = asyncio.ensure_future(stage.link.greet("k"))
    await asyncio.sleep(0)
    stage.channel.data_received(encode({"re": 1, "ok": _HELLO}))
    await greeting
    starting = asyncio.ensure_future(stage.link.spawn("x/1", spec()))
    await asyncio.sleep(0)
    for piece in pieces(data):
        if not stage.transport.ended:
            stage.channel.data_received(piece)
        for _ in range(3):
            await asyncio.sleep(0)
    alive = stage.link.alive
    assert alive is not stage.transport.ended
    assert stage.ends == (0 if alive else 1)
    assert len(stage.told) <= 1
    assert alive or stage.told
    stage.channel.connection_lost(None)
    assert stage.ends == 1
    stage.record.lose("the end")
    try:
        command = await asyncio.wait_for(starting, 1)
        assert (await asyncio.wait_for(command.outcome(), 1)) is not None
    except RingfenceError:
        pass  # the spawn was refused, or lost
    await stage.tasks.close()
    for line in b"".join(stage.transport.written).split(b"\n")[:-1]:
        assert len(line) <= MAX_FRAME
        wrapped = unwrap_run(line)
        decode(wrapped[1] if wrapped else line)
    return alive


def mutated(chance: random.Random) -> bytes:
    """A few valid frames, some of them damaged."""
    data = bytearray(b"".join(chance.choice(SEEDS) for _ in range(chance.randint(1, 6))))
    for _ in range(chance.choice((0, 0, 1, 2, 8))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 4)))
        elif kind == 1:
            del data[at : at + chance.randint(1, 8)]
        elif kind == 2:
            data[at:at] = chance.choice((b"null", b"-1", b"1e999", b"[[[", b"{}", b'"', b"\n", b"NaN", b"9" * 30))
        else:
            data[at:at] = data[at : at + chance.randint(1, 80)]
    return bytes(chance.randrange(256) for _ in range(4)) + bytes(data)


async def seeded(seed: int, count: int) -> tuple[int, int]:
    """(links that went on, links that ended) over `count` inputs of this seed."""
    chance = random.Random(seed)
    alive = 0
    for _ in range(count):
        alive += await one_input(mutated(chance))
    return alive, count - alive


def main(arguments: list[str]) -> None:
    if arguments[1:2] == ["--seeded"]:
        print(asyncio.run(seeded(int(arguments[2]), int(arguments[3]))))
        return
    atheris = importlib.import_module("atheris")

    loop = asyncio.new_event_loop()
    atheris.Setup(arguments, lambda data: loop.run_until_complete(one_input(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
