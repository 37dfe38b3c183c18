"""Files of the double: below a folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from ringfence.host.kernel.errors import Conflict, NotFound, Refused
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import FileInfo
from tests.support.double.world import World


@dataclass
class Files:
    world: World

    def _path(self, actor: Actor, tenant: str, user: str, path: bytes) -> bytes:
        self.world.user(actor, tenant, user)
        if b"\0" in path or b".." in path.split(b"/"):
            raise Refused("the path leads out of the box")
        return os.path.join(os.fsencode(self.world.home(tenant, user)), path.lstrip(b"/"))

    def _info(self, full: bytes) -> FileInfo:
        try:
            found = os.lstat(full)
        except FileNotFoundError:
            raise NotFound(
                f"no such file: {os.fsdecode(os.path.basename(full))!r}", remedy="ringfence files ls"
            ) from None
        kinds: dict[int, Literal["file", "directory", "symlink", "other"]] = {
            0o10: "file",
            0o4: "directory",
            0o12: "symlink",
        }
        kind: Literal["file", "directory", "symlink", "other"] = kinds.get(found.st_mode >> 12, "other")
        target = os.readlink(full) if kind == "symlink" else None
        return FileInfo(os.path.basename(full), kind, found.st_size, found.st_mode & 0o7777, found.st_mtime_ns, target)

    async def stat(self, actor: Actor, tenant: str, user: str, path: bytes) -> FileInfo:
        return self._info(self._path(actor, tenant, user, path))

    async def list(
        self, actor: Actor, tenant: str, user: str, path: bytes, after: bytes | None, limit: int
    ) -> list[FileInfo]:
        full = self._path(actor, tenant, user, path)
        names = sorted(name for name in os.listdir(full) if after is None or name > after)
        return [self._info(os.path.join(full, name)) for name in names[:limit]]

    @contextlib.asynccontextmanager
    async def get(
        self, actor: Actor, tenant: str, user: str, path: bytes
    ) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        full = self._path(actor, tenant, user, path)
        info = self._info(full)
        if info.kind != "file":
            raise Refused("it is no regular file")
        with open(full, "rb") as opened:

            async def chunks() -> AsyncIterator[bytes]:
                while data := opened.read(64 << 10):
                    yield data

            yield info, chunks()

    async def put(
        self, actor: Actor, tenant: str, user: str, path: bytes, data: AsyncIterator[bytes], mode: int
    ) -> FileInfo:
        full = self._path(actor, tenant, user, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        part = os.path.join(os.path.dirname(full), b".part%d" % next(self.world.counter))
        try:
            with open(part, "xb") as opened:
                async for chunk in data:
                    opened.write(chunk)
            os.chmod(part, mode)
            os.rename(part, full)
        except BaseException:
            os.unlink(part)
            raise
        return self._info(full)

    async def remove(self, actor: Actor, tenant: str, user: str, path: bytes, recursive: bool) -> None:
        full = self._path(actor, tenant, user, path)
        if self._info(full).kind != "directory":
            os.unlink(full)
        elif recursive:
            shutil.rmtree(full)
        else:
            try:
                os.rmdir(full)
            except OSError:
                raise Conflict("the folder is not empty", remedy="ringfence files rm --recursive") from None
