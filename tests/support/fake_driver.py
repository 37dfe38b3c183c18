"""A driver and files without walls, over the boxes of a `World`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ringfence.host.kernel.boxes import BoxKind, Limits, Observed
from ringfence.host.kernel.errors import BoxLost, DiskFull, Failed, NotFound, Refused, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.images import HOST
from ringfence.host.kernel.life.copies import Copied
from ringfence.host.kernel.life.debris import Seen
from ringfence.host.kernel.life.logs import Said
from ringfence.host.kernel.ports import FileInfo, Sight
from tests.support.fakes import FakeBox, World


class FakeDriver:
    """ports.Driver."""

    name = "fake"

    def __init__(self, world: World, digest: str = "d1", weak: tuple[str, ...] = ()) -> None:
        self._world, self._digest, self._weak = world, digest, weak

    async def facts(self) -> dict[str, Any]:
        return {
            "mode": "shared",
            "weak": list(self._weak),
            "guest_digest": self._digest,
            "installation": "i",
            "image": "host:1",
        }

    async def provision(self, box: BoxId, kind: BoxKind, limits: Limits | None = None) -> int:
        if box not in self._world.boxes:
            folder = self._world.folder / box
            folder.mkdir(parents=True)
            self._world.boxes[box] = FakeBox(box, folder, 5000 + 8 * len(self._world.boxes), kind=kind)
        return self._world.boxes[box].uid

    async def start(self, box: BoxId, limits: Limits, image: str = HOST) -> dict[str, Any]:
        found = self._world.box(box)
        if image != HOST and image not in self._world.images.values():
            raise Unavailable(f"there is no image {image} on this host", remedy="ringfence image build NAME")
        if not found.running and image in self._world.broken_images:
            raise Failed("the box did not start")
        began = time.monotonic()
        while time.monotonic() - began < self._world.start_seconds:  # which a test may end
            await asyncio.sleep(0.005)
        if self._world.fail_start:
            raise self._world.fail_start.pop(0)
        if not found.running:
            found.running, found.starts, found.oom_kills = True, found.starts + 1, 0
            found.guest, found.limits, found.image = f"{box}-{found.starts}", limits, image
            found.awake.set()
        return found.identity

    async def find_image(self, name: str) -> str:
        if name in self._world.images.values():
            return name
        if name not in self._world.images:
            raise NotFound(f"there is no image {name!r}", remedy="ringfence image ls")
        return self._world.images[name]

    async def stop(self, box: BoxId) -> None:
        await self._world.kill_box(box)

    async def freeze(self, box: BoxId) -> None:
        if self._world.fail_freeze:
            raise self._world.fail_freeze.pop(0)
        found = self._running(box)
        found.freezes += found.awake.is_set()
        found.awake.clear()
        self._signal(found, signal.SIGSTOP)

    async def thaw(self, box: BoxId) -> None:
        found = self._running(box)
        found.awake.set()
        self._signal(found, signal.SIGCONT)

    def _signal(self, box: FakeBox, number: int) -> None:
        for command in box.commands.values():
            with suppress(ProcessLookupError):
                os.killpg(command.process.pid, number)

    def _running(self, box: BoxId) -> FakeBox:
        found = self._world.box(box)
        if not found.running:
            raise Refused("the box does not run")
        return found

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
            frozen=found.running and not found.awake.is_set(),
        )

    async def set_limits(self, box: BoxId, limits: Limits) -> None:
        self._world.box(box).limits = limits

    async def remove(self, box: BoxId) -> None:
        await self._world.kill_box(box)
        shutil.rmtree(self._world.boxes.pop(box).folder)

    async def debris(self) -> Seen:
        return Seen(list(self._world.left), frozenset(self._world.boxes))

    async def clear(self, box: BoxId | None, kind: str) -> bool:
        left = [each for each in self._world.left if (each.box, each.kind) == (box, kind)]
        self._world.cleared += left
        self._world.left = [each for each in self._world.left if each not in left]
        return bool(left)

    async def running(self) -> list[BoxId]:
        return [box.id for box in self._world.boxes.values() if box.running]

    async def said(self) -> list[Said]:
        said, self._world.said = self._world.said, []
        return said

    async def jails(self) -> list[BoxId]:
        return [box.id for box in self._world.boxes.values() if box.kind is BoxKind.SKILL]

    async def dial(self, box: BoxId, identity: Mapping[str, Any]) -> int:
        self._world.dials += 1
        found = self._world.box(box)
        if found.running and not found.awake.is_set():
            raise BoxLost(f"box {box} stands still: it does not say hello")
        if not found.running or dict(identity) != found.identity:
            raise BoxLost(f"box {box} is gone")
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    @asynccontextmanager
    async def pack(self, box: BoxId) -> AsyncIterator[FolderPacking]:
        yield FolderPacking(self._world.box(box).folder)

    @asynccontextmanager
    async def unpack(self, box: BoxId, limits: Limits) -> AsyncIterator[FolderUnpacking]:
        self._stopped(box)
        beside = FolderUnpacking(limits)
        yield beside
        await self.reset(box, limits)
        for name, data in beside.files.items():
            (self._world.box(box).folder / name).write_bytes(data)

    async def forget_copy(self, box: BoxId, limits: Limits) -> None:
        self._world.box(box)

    async def reset(self, box: BoxId, limits: Limits) -> None:
        folder = self._stopped(box).folder
        shutil.rmtree(folder)
        folder.mkdir()

    async def repair(self, box: BoxId, limits: Limits) -> str:
        self._stopped(box)
        return "nothing"

    def _stopped(self, box: BoxId) -> FakeBox:
        found = self._world.box(box)
        if found.running:
            raise Refused("the box runs", remedy="stop it first")
        return found

    @asynccontextmanager
    async def files(self, box: BoxId) -> AsyncIterator[FolderFiles]:
        yield FolderFiles(self._world.box(box).folder)


class FolderPacking:
    """copies.Packing of the files that lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self._files = {one.name: one.read_bytes().hex() for one in sorted(folder.iterdir()) if one.is_file()}

    @property
    def copied(self) -> Copied:
        return Copied(len(self._files), sum(len(data) // 2 for data in self._files.values()))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield json.dumps(self._files).encode()


class FolderUnpacking:
    """copies.Unpacking."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.files: dict[str, bytes] = {}

    async def __call__(self, data: AsyncIterator[bytes]) -> Copied:
        found = json.loads(b"".join([piece async for piece in data]))
        self.files = {name: bytes.fromhex(text) for name, text in found.items()}
        size = sum(map(len, self.files.values()))
        if size > self._limits.disk:
            raise DiskFull("more content than the disk of the box holds")
        return Copied(len(self.files), size)


class FolderFiles:
    """ports.BoxFiles over a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._cut = folder, False

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
        with self._path(path).open("rb") as file:
            while piece := file.read(64 * 1024):
                yield piece
                self._whole()

    @asynccontextmanager
    async def fetch(self, path: bytes) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        yield self._info(self._path(path)), self.get(path)

    async def put(self, path: bytes, data: AsyncIterator[bytes], mode: int) -> FileInfo:
        target = self._folder / os.fsdecode(path)
        found = b"".join([chunk async for chunk in data])
        self._whole()
        target.write_bytes(found)
        target.chmod(mode)
        return self._info(target)

    async def remove(self, path: bytes, recursive: bool) -> None:
        self._path(path).unlink()

    async def usage(self) -> tuple[int, int]:
        found = list(self._folder.iterdir())
        return sum(one.stat().st_size for one in found), len(found)

    def cut(self) -> None:
        self._cut = True

    def _whole(self) -> None:
        if self._cut:
            raise Unavailable("the box's files helper has ended or does not answer")
