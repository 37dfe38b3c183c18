"""Driver `bubblewrap`: boxes on this host, made by the spawner.

Asks the spawner by box id and limits only; the one path that it derives itself is the box's control socket, which only
the spawner's root-owned directories lead to. It must never hand out a connection whose far end is not proven to be
the PID 1 that the spawner started.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from ringfence.host.drivers import identity as identities
from ringfence.host.drivers import trees
from ringfence.host.drivers.spawner_client import Answer, SpawnerClient
from ringfence.host.kernel.boxes import JAIL_LIMITS, BoxKind, DiskUse, Limits, Observed
from ringfence.host.kernel.errors import BoxLost, Failed, NotFound, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.images import HOST
from ringfence.host.kernel.life.copies import Packing, Unpacking
from ringfence.host.kernel.life.debris import MISSING, PUT_IT_BACK, Left, Seen
from ringfence.host.kernel.life.logs import BoxLogs, Quiet, Said, Source
from ringfence.host.kernel.outward.listeners import FIXED_PORTS, Listener
from ringfence.host.kernel.ports import BoxFiles, Sight
from ringfence.spawner import protocol

DIAL_SECONDS = 5.0  # PID 1 listens some 10 ms after its start; a machine under load may need a hundred times that
_FAST_SECONDS, _FAST_STEP, _SLOW_STEP = 0.2, 0.0005, 0.02
_RETRY = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.EAGAIN})  # not listening yet; backlog full
_KINDS: dict[BoxKind, protocol.BoxKind] = {
    BoxKind.HOME: "home",
    BoxKind.RUN: "run",
    BoxKind.SKILL: "skill",
    BoxKind.SCRATCH: "scratch",
    BoxKind.PROBE: "probe",
}
_STATES = {"absent": Observed.ABSENT, "stopped": Observed.STOPPED, "running": Observed.RUNNING}

Shape = TypeVar("Shape")
OpenFiles = Callable[[int], AbstractAsyncContextManager[BoxFiles]]


class Bubblewrap:
    """ports.Driver and outward.ports.Outlets. `open_files` makes a files client of a connected descriptor, which it takes over."""

    name = "bubblewrap"

    def __init__(self, home: Path, client: SpawnerClient, open_files: OpenFiles, logs: BoxLogs | None = None) -> None:
        """`home`: the server's state directory. `logs`: told what becomes of each box."""
        self._boxes = home / "boxes"
        self._client = client
        self._open_files = open_files
        self._logs = logs or Quiet()
        self._up: set[BoxId] = set()  # seen running, and not stopped by anybody here
        self._heard: set[BoxId] = set()  # the spawner hears what their PID 1 says
        self._early: list[Said] = []  # told before anybody asked for it
        self._kills: dict[BoxId, int] = {}  # of the out-of-memory killer, that were told

    async def facts(self) -> dict[str, Any]:
        """Of protocol.Greeting: version, installation, mode, cgroups, boot_id, weak, guest_digest, bwrap, disk and what
        its volume has."""
        answer = await self._client.ask(protocol.Greet(protocol.VERSION))
        return asdict(_shape(protocol.Greeting, answer.body))

    async def provision(self, box: BoxId, kind: BoxKind, limits: Limits | None = None) -> int:
        if kind not in _KINDS:
            raise Refused(f"the bubblewrap driver makes no box of kind {kind.value}")
        usual = JAIL_LIMITS if kind is BoxKind.SKILL else Limits()
        answer = await self._client.ask(protocol.Provision(box, _KINDS[kind], _limits(limits or usual)))
        return _shape(protocol.Provisioned, answer.body).uid

    async def start(self, box: BoxId, limits: Limits, image: str = HOST) -> dict[str, Any]:
        try:
            answer = await self._of(protocol.Start(box, _limits(limits), image))
        except RingfenceError as error:
            self._logs.tell(box, Source.LIFE, f"did not start: {error.message}")
            raise
        identity = asdict(_identity(answer.body.get("identity")))
        if not answer.body.get("already"):
            self._up.add(box)
            self._heard.add(box)
            self._kills[box] = 0
            self._logs.tell(box, Source.LIFE, "started: it has a new PID 1")
        return identity

    async def _of(self, request: protocol.Request) -> Answer:
        """Of a box that was made. Unavailable: its directory is missing, as when the volume that has it is not mounted."""
        try:
            return await self._client.ask(request)
        except NotFound as error:
            raise Unavailable(MISSING, remedy=PUT_IT_BACK) from error

    async def find_image(self, name: str) -> str:
        return _shape(protocol.FoundImage, (await self._client.ask(protocol.FindImage(name))).body).image

    async def stop(self, box: BoxId) -> None:
        was_up = box in self._up
        self._up.discard(box)  # what is seen from here on did not end by itself
        await self._client.ask(protocol.Stop(box))
        self._heard.discard(box)
        if was_up:
            self._logs.tell(box, Source.LIFE, "stopped: every process of it has ended")

    async def freeze(self, box: BoxId) -> None:
        await self._of(protocol.Freeze(box))
        self._logs.tell(box, Source.LIFE, "stands still")

    async def thaw(self, box: BoxId) -> None:
        await self._of(protocol.Thaw(box))
        self._logs.tell(box, Source.LIFE, "goes on")

    async def said(self) -> list[Said]:
        found, self._early = self._early, []
        while await self._hear(found, protocol.Said()):
            pass
        return found

    async def _hear(self, found: list[Said], request: protocol.Said) -> bool:
        """Whether there is more: nothing is told twice."""
        heard = _shape(protocol.Heard, (await self._client.ask(request)).body)
        words = [_shape(protocol.Words, each) for each in heard.said]  # type: ignore[arg-type]
        found += [Said(BoxId(each.box), each.head, each.tail, each.dropped) for each in words]
        return heard.more and bool(words)

    async def _seen(self, box: BoxId, seen: protocol.Observed) -> None:
        """What it has become without anybody's word; what an earlier server started is heard again."""
        if seen.state == "running":
            if box not in self._heard:
                self._heard.add(box)
                self._up.add(box)
                self._kills[box] = seen.oom_kills
                self._logs.tell(box, Source.LIFE, "goes on under another server than started it")
                with suppress(RingfenceError):
                    await self._hear(self._early, protocol.Said(box))
            if seen.oom_kills > self._kills.get(box, 0):
                self._kills[box] = seen.oom_kills
                used = f"{seen.memory_peak} bytes were used at most, the limit is {seen.memory_limit}"
                self._logs.tell(
                    box, Source.LIMIT, f"out of memory: {seen.oom_kills} processes were killed so far; {used}"
                )
        elif box in self._up:
            self._up.discard(box)
            self._heard.discard(box)
            self._logs.tell(box, Source.LIFE, "ended by itself: its PID 1 is gone, and everything with it")

    async def observe(self, box: BoxId) -> Sight:
        answer = await self._client.ask(protocol.Observe(box))
        seen = _shape(protocol.Observed, answer.body)
        if seen.state not in _STATES:
            raise Failed(f"the spawner sees box {box} in a state that is none: {seen.state!r}")
        await self._seen(box, seen)
        return Sight(
            state=_STATES[seen.state],
            identity=None if seen.identity is None else asdict(_identity(seen.identity)),
            uid=seen.uid,
            pids=seen.pids,
            memory_bytes=seen.memory,
            memory_peak_bytes=seen.memory_peak,
            memory_limit_bytes=seen.memory_limit,
            oom_kills=seen.oom_kills,
            disk=DiskUse(
                seen.disk_by,
                seen.disk_used,
                seen.disk_free,
                seen.inodes,
                seen.inode_limit,
                seen.disk_problem,
                seen.disk_holder,
            ),
            frozen=seen.frozen,
            cpu_usec=seen.cpu_usec,
        )

    async def set_limits(self, box: BoxId, limits: Limits) -> None:
        await self._of(protocol.SetLimits(box, _limits(limits)))

    async def remove(self, box: BoxId) -> None:
        self._up.discard(box)
        await self._client.ask(protocol.Remove(box))
        self._heard.discard(box)
        self._kills.pop(box, None)
        await self._logs.forget(box)

    async def running(self) -> list[BoxId]:
        return [BoxId(box) async for page in self._pages() for box in page.running]

    async def boxes(self) -> list[BoxId]:
        """All that are provisioned."""
        return [BoxId(box) async for page in self._pages() for box in page.boxes]

    async def jails(self) -> list[BoxId]:
        return [BoxId(box) async for page in self._pages() for box in page.jails]

    async def debris(self) -> Seen:
        found: list[Left] = []
        boxes: set[BoxId] = set()
        ids: dict[str, int] = {}
        after, more = "", True
        while more:
            page = _shape(protocol.LeftBehind, (await self._client.ask(protocol.Debris(after))).body)
            found += [_left(_shape(protocol.Finding, each)) for each in page.found]  # type: ignore[arg-type]
            boxes |= {BoxId(box) for box in page.boxes}
            ids |= page.ids
            more, after = page.more and page.after > after, page.after
        return Seen(found, frozenset(boxes), ids)

    async def clear(self, box: BoxId | None, kind: str) -> bool:
        if kind not in get_args(protocol.DebrisKind):
            raise Failed(f"the spawner takes away nothing of the kind {kind!r}")
        answer = await self._client.ask(protocol.Clear(box or "", cast("protocol.DebrisKind", kind)))
        return _shape(protocol.Cleared, answer.body).gone

    async def _pages(self) -> AsyncIterator[protocol.Listed]:
        after, more = "", True
        while more:
            page = _shape(protocol.Listed, (await self._client.ask(protocol.ListBoxes(after))).body)
            yield page
            more = page.more and bool(page.boxes)
            after = page.boxes[-1] if page.boxes else after

    def files(self, box: BoxId) -> AbstractAsyncContextManager[BoxFiles]:
        return self._files(box)

    @asynccontextmanager
    async def _files(self, box: BoxId) -> AsyncIterator[BoxFiles]:
        answer = await self._of(protocol.Files(box))
        async with self._open_files(answer.fds[0]) as files:
            yield files

    @asynccontextmanager
    async def pack(self, box: BoxId) -> AsyncIterator[Packing]:
        answer = await self._of(protocol.Pack(box))
        async with trees.packing(answer.fds[0]) as packing:
            yield packing

    @asynccontextmanager
    async def unpack(self, box: BoxId, limits: Limits) -> AsyncIterator[Unpacking]:
        answer = await self._of(protocol.Unpack(box, _limits(limits)))
        try:
            async with trees.unpacking(answer.fds[0]) as unpacking:
                yield unpacking
            if not unpacking.whole:
                raise Failed("nothing was unpacked")
            await self._client.ask(protocol.Settle(box, _limits(limits), True))
        except BaseException:
            with suppress(RingfenceError):
                await asyncio.shield(self.forget_copy(box, limits))
            raise

    async def forget_copy(self, box: BoxId, limits: Limits) -> None:
        await self._client.ask(protocol.Settle(box, _limits(limits), False))

    async def reset(self, box: BoxId, limits: Limits) -> None:
        await self._of(protocol.Reset(box, _limits(limits)))

    async def repair(self, box: BoxId, limits: Limits) -> str:
        answer = await self._of(protocol.Repair(box, _limits(limits)))
        return _shape(protocol.Repaired, answer.body).found

    async def listen(self, box: BoxId, port: int) -> list[Listener]:
        answer = await self._client.ask(protocol.Listen(box, port))
        try:
            kinds = _shape(protocol.Listening, answer.body).kinds
            return [Listener(kind, port or FIXED_PORTS[kind], fd) for kind, fd in zip(kinds, answer.fds, strict=True)]
        except BaseException as error:
            for fd in answer.fds:  # else nobody would have them
                os.close(fd)
            if isinstance(error, RingfenceError):
                raise
            raise Failed("the spawner's reply names other sockets than it sends") from error

    async def worker(self, box: BoxId) -> int:
        return (await self._client.ask(protocol.Worker(box))).fds[0]

    async def end_worker(self, box: BoxId) -> None:
        await self._client.ask(protocol.EndWorker(box))

    async def trust(self, box: BoxId, certificate: str) -> None:
        await self._client.ask(protocol.Trust(box, certificate))

    async def dial(self, box: BoxId, identity: Mapping[str, Any]) -> int:
        """See ports.Driver. BoxLost carries `attempts` and, when somebody else was found, `found`."""
        try:
            expected = identities.from_record(identity)
        except ValueError as error:
            raise BoxLost(f"box {box} has no usable identity: {error}", box=box) from error
        try:
            sock, attempts = await self._connect(box, expected)
        except BoxLost as error:
            self._logs.tell(box, Source.LIFE, f"does not answer: {error.message}")
            raise
        try:
            found = identities.peer(sock)
        except OSError as error:
            sock.close()
            raise BoxLost(f"box {box} ended while it was dialled", box=box, attempts=attempts) from error
        why = identities.mismatch(expected, found)
        if why is not None:
            sock.close()
            raise BoxLost(f"box {box} is not what was started: {why}", box=box, attempts=attempts, found=asdict(found))
        return sock.detach()

    async def _connect(self, box: BoxId, expected: protocol.Identity) -> tuple[socket.socket, int]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        attempts = 0
        while True:
            attempts += 1
            try:
                return _try_connect(self._boxes / box / "ctl", "host.sock"), attempts
            except OSError as error:
                waited = loop.time() - began
                ended = identities.gone(expected)
                if ended or error.errno not in _RETRY or waited >= DIAL_SECONDS:
                    why = "its PID 1 has ended" if ended else os.strerror(error.errno or 0)
                    raise BoxLost(
                        f"box {box} does not listen: {why}", box=box, attempts=attempts, waited_seconds=round(waited, 3)
                    ) from error
            await asyncio.sleep(_FAST_STEP if waited < _FAST_SECONDS else _SLOW_STEP)


def _try_connect(folder: Path, name: str) -> socket.socket:
    """A connected, non-blocking socket, or OSError at once. A unix address holds 107 bytes and a state directory may
    be longer, so the folder is opened and named by its descriptor."""
    where = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{where}/{name}")
    except OSError:
        sock.close()
        raise
    finally:
        with suppress(OSError):
            os.close(where)
    return sock


def _left(found: protocol.Finding) -> Left:
    return Left(found.debris, BoxId(found.box) if found.box else None, found.what, found.why, found.bytes, found.ours)


def _limits(limits: Limits) -> protocol.Limits:
    return protocol.Limits(**asdict(limits))


def _shape(kind: type[Shape], body: Mapping[str, Any]) -> Shape:
    """Failed: the spawner and this driver are not of one version."""
    try:
        return kind(**body)
    except TypeError as error:
        raise Failed(f"the spawner's reply is no {kind.__name__}: {error}") from error


def _identity(body: object) -> protocol.Identity:
    if not isinstance(body, Mapping):
        raise Failed("the spawner's reply names no process")
    try:
        return identities.from_record(body)
    except ValueError as error:
        raise Failed(f"the spawner's reply names no process: {error}") from error
