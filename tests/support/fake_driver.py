"""A driver and files without walls, over the boxes of a `World`."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from ringfence.host.kernel.boxes import BoxKind, Limits, Observed
from ringfence.host.kernel.errors import BoxLost, NotFound
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import FileInfo, Sight
from tests.support.fakes import FakeBox, World


class FakeDriver:
    """ports.Driver."""

    name = "fake"

    def __init__(self, world: World, digest: str = "d1", weak: tuple[str, ...] = ()) -> None:
        self._world, self._digest, self._weak = world, digest, weak

    async def facts(self) -> dict[str, Any]:
        return {"mode": "shared", "weak": list(self._weak), "guest_digest": self._digest, "installation": "i"}

    async def provision(self, box: BoxId, kind: BoxKind, limits: Limits | None = None) -> int:
        if box not in self._world.boxes:
            folder = self._world.folder / box
            folder.mkdir(parents=True)
            self._world.boxes[box] = FakeBox(box, folder, 5000 + 8 * len(self._world.boxes), kind=kind)
        return self._world.boxes[box].uid

    async def start(self, box: BoxId, limits: Limits) -> dict[str, Any]:
        found = self._world.box(box)
        began = time.monotonic()
        while time.monotonic() - began < self._world.start_seconds:  # which a test may end
            await asyncio.sleep(0.005)
        if self._world.fail_start:
            raise self._world.fail_start.pop(0)
        if not found.running:
            found.running, found.starts, found.oom_kills = True, found.starts + 1, 0
            found.guest, found.limits = f"{box}-{found.starts}", limits
        return found.identity

    async def stop(self, box: BoxId) -> None:
        await self._world.kill_box(box)

    async def freeze(self, box: BoxId) -> None:
        self._world.box(box)

    async def thaw(self, box: BoxId) -> None:
        self._world.box(box)

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

    async def jails(self) -> list[BoxId]:
        return [box.id for box in self._world.boxes.values() if box.kind is BoxKind.SKILL]

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
        with self._path(path).open("rb") as file:
            while piece := file.read(64 * 1024):
                yield piece

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
