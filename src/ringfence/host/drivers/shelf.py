"""Files of copies of trees: `snapshots/` of the server's state, 0700, `<id>.tar.zst`, or `.tar.gz` where the host has no zstd.

A file is written under another name, synced, and then has its own; what is found under another one at a start was never whole. It is
read only when it is, byte for byte, what was kept. Whatever blocks is done in threads, a piece at a time, and no file is closed
under one: its number would be the next file's. Must never follow a link, or trust what comes out of a decompressor: whoever takes it
bounds it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import stat
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from ringfence.host.kernel.errors import DiskFull, Failed, NotFound
from ringfence.host.kernel.life.copies import Kept

ZSTD = "/usr/bin/zstd"
ANOTHER = "take another copy: ringfence box snapshots U"
PIECE = 256 << 10
HASHED = 4 << 20  # bytes at once: 10 ms, for which who is cancelled waits
RESERVE = 1 << 30  # bytes of the volume that no copy may take; 1/20 of a small one
# Bytes between two looks at what is left of the volume: half of it, as others write there too, but not less or more than these.
LOOK_LEAST, LOOK_MOST = 256 << 10, 64 << 20
MAKE_ROOM = "make room on the volume of the state directory (df -h), or remove copies: ringfence box snapshot-rm U S"
UNUSABLE = "the folder of copies (snapshots, of the state directory) cannot be used"
FOLDER = "mount the volume that has it, or have it made anew: ringfence init, then restart the server"
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_NAME = re.compile(r"([a-z]{1,8}_[a-z2-7]{20})\.tar\.(zst|gz)\Z")
_NEW = re.compile(r"\.[a-z]{1,8}_[a-z2-7]{20}\.tar\.(zst|gz)\.new\Z")


class FileShelf:
    """kernel.life.copies.Shelf."""

    def __init__(self, home: Path, zstd: str = ZSTD) -> None:
        """`home`: the server's state directory, which its account may not write: `ringfence init` makes the folder."""
        self._folder = home / "snapshots"
        self._zstd = zstd if os.access(zstd, os.X_OK) else ""

    async def ready(self) -> None:
        """Failed."""
        await _thread(self._usable)

    def _usable(self) -> None:
        try:
            os.close(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        except OSError as error:
            _told(error, UNUSABLE, FOLDER)
        if not os.access(self._folder, os.W_OK | os.X_OK):
            raise Failed(f"{UNUSABLE}: it may not be written", remedy=FOLDER)

    async def keep(self, copy: str, data: AsyncIterator[bytes]) -> Kept:
        name = f"{copy}.tar.{'zst' if self._zstd else 'gz'}"
        if _NAME.match(name) is None:
            raise Failed(f"no id of a copy: {copy!r}")
        await _thread(self._room)
        new = self._folder / f".{name}.new"
        try:
            async with _opened(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as fd:
                async with aclosing(self._bounded(data)) as bounded:
                    await (self._by_zstd(fd, bounded) if self._zstd else _by_zlib(fd, bounded))
                await _thread(os.fsync, fd)
                kept = Kept(os.fstat(fd).st_size, await _digest(fd))
                await _thread(self._named, new, name)
                return kept
        except OSError as error:
            await _thread(self._nothing_of, new, name)
            _told(error, "a copy cannot be written")
        except BaseException:
            await _thread(self._nothing_of, new, name)
            raise

    async def _bounded(self, data: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """DiskFull, before what is kept back is taken. Packed, it is no more than this."""
        left = 0
        async for piece in data:
            left -= len(piece)
            if left <= 0:
                left = min(max(await _thread(self._room) // 2, LOOK_LEAST), LOOK_MOST)
            yield piece

    def _room(self) -> int:
        """Bytes that copies may still take. DiskFull. Failed."""
        try:
            seen = os.statvfs(self._folder)
        except OSError as error:
            _told(error, UNUSABLE, FOLDER)
        free, least = seen.f_bavail * seen.f_frsize, min(RESERVE, seen.f_blocks * seen.f_frsize // 20)
        if free < least:
            raise DiskFull(
                f"no room for a copy: {free >> 20} MiB are free where they lie, and {least >> 20} MiB are kept back",
                remedy=MAKE_ROOM,
            )
        return free - least

    def _named(self, new: Path, name: str) -> None:
        new.rename(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _nothing_of(self, new: Path, name: str) -> None:
        for path in (new, self._folder / name):
            with suppress(OSError):
                path.unlink()

    async def _by_zstd(self, fd: int, data: AsyncIterator[bytes]) -> None:
        process = await asyncio.create_subprocess_exec(
            self._zstd, "-q", "-c", stdin=asyncio.subprocess.PIPE, stdout=fd, stderr=asyncio.subprocess.PIPE, env={}
        )
        try:
            assert process.stdin is not None and process.stderr is not None
            with suppress(BrokenPipeError, ConnectionResetError):  # its status and words say why
                async for piece in data:
                    process.stdin.write(piece)
                    await process.stdin.drain()
                process.stdin.close()
            said = (await process.stderr.read(2000)).decode(errors="replace").strip()
            if await process.wait() != 0:
                full = any(os.strerror(number) in said for number in (errno.ENOSPC, errno.EDQUOT))
                raise OSError(errno.ENOSPC if full else errno.EIO, said or "zstd failed")
        finally:
            await _ended(process)

    async def read(self, copy: str, digest: str) -> AsyncGenerator[bytes, None]:
        async with self._held(copy, digest) as (fd, packed_by):
            os.lseek(fd, 0, os.SEEK_SET)
            async with aclosing(self._from_zstd(fd) if packed_by == "zst" else _from_zlib(fd)) as pieces:
                async for piece in pieces:
                    yield piece

    async def check(self, copy: str, digest: str) -> None:
        async with self._held(copy, digest):
            pass

    @asynccontextmanager
    async def _held(self, copy: str, digest: str) -> AsyncIterator[tuple[int, str]]:
        """Its file, open, which is what was kept; and how it is packed."""
        path, packed_by = await _thread(self._find, copy)
        try:
            async with _opened(
                path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            ) as fd:  # a FIFO would wait for a writer
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise Failed(
                        f"the file of copy {copy} is no regular file",
                        remedy=ANOTHER,
                    )
                if await _digest(fd) != digest:
                    raise Failed(
                        f"the file of copy {copy} is not what was kept: its digest is another",
                        remedy=ANOTHER,
                    )
                yield fd, packed_by
        except OSError as error:
            _told(error, f"the file of copy {copy} cannot be read")

    async def _from_zstd(self, fd: int) -> AsyncGenerator[bytes, None]:
        if not self._zstd:
            raise Failed("zstd is missing, and the copy was made with it", remedy="apt-get install -y zstd")
        process = await asyncio.create_subprocess_exec(
            self._zstd,
            "-d",
            "-q",
            "-c",
            stdin=fd,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
        )
        try:
            assert process.stdout is not None
            while piece := await process.stdout.read(PIECE):
                yield piece
            if await process.wait() != 0:
                raise Failed("the file of a copy cannot be unpacked: zstd failed", remedy=ANOTHER)
        finally:
            await _ended(process)

    def _find(self, copy: str) -> tuple[Path, str]:
        for suffix in ("zst", "gz"):
            path = self._folder / f"{copy}.tar.{suffix}"
            if _NAME.match(path.name) is not None and os.path.lexists(path):
                return path, suffix
        self._usable()  # one that is not mounted has lost nothing
        raise NotFound(f"the file of copy {copy} is not there", remedy=ANOTHER)

    async def drop(self, copy: str) -> None:
        await _thread(self._drop, copy)

    def _drop(self, copy: str) -> None:
        for suffix in ("zst", "gz"):
            name = f"{copy}.tar.{suffix}"
            if _NAME.match(name) is not None:
                self._gone(name)

    def _gone(self, name: str) -> None:
        """Failed."""
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            _told(error, f"the file {name} cannot be removed")

    async def ids(self) -> set[str]:
        names = await _thread(self._names)
        return {match[1] for match in map(_NAME.match, names) if match}

    async def tidy(self) -> None:
        for name in await _thread(self._names):
            if _NEW.match(name):
                await _thread(self._gone, name)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except OSError as error:
            _told(error, UNUSABLE, FOLDER)


async def _thread(work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """The work in a thread, over when this returns, however often who waits for it is cancelled; that is raised behind it."""
    future, cut = asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs)), False
    while not future.done():
        try:
            await asyncio.shield(asyncio.wait([future]))
        except asyncio.CancelledError:
            cut = True
    if cut:
        future.exception()  # taken
        raise asyncio.CancelledError
    return future.result()


@asynccontextmanager
async def _opened(path: Path, flags: int) -> AsyncIterator[int]:
    """For who works with it by `_thread` alone."""
    held: list[int] = []
    try:
        await _thread(lambda: held.append(os.open(path, flags, 0o600)))
        yield held[0]
    finally:
        for fd in held:
            os.close(fd)


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _by_zlib(fd: int, data: AsyncIterator[bytes]) -> None:
    packer = zlib.compressobj(wbits=31)  # with gzip's header

    async for piece in data:
        await _thread(_write_all, fd, packer.compress, piece)
    await _thread(_write_all, fd, lambda _: packer.flush(), b"")


def _write_all(fd: int, packed: Callable[[bytes], bytes], piece: bytes) -> None:
    view = memoryview(packed(piece))
    while view:
        view = view[os.write(fd, view) :]


async def _from_zlib(fd: int) -> AsyncGenerator[bytes, None]:
    unpacker = zlib.decompressobj(wbits=31)
    while data := await _thread(os.read, fd, PIECE):
        while data:
            try:
                piece = await _thread(unpacker.decompress, data, PIECE)
            except zlib.error as error:
                raise Failed(f"the file of a copy cannot be unpacked: {error}", remedy=ANOTHER) from error
            data = unpacker.unconsumed_tail
            if piece:
                yield piece
    if not unpacker.eof:
        raise Failed("the file of a copy cannot be unpacked: it ends too early", remedy=ANOTHER)


async def _digest(fd: int) -> str:
    found, at = hashlib.sha256(), 0

    def more() -> int:
        data = os.pread(fd, HASHED, at)
        found.update(data)
        return len(data)

    while read := await _thread(more):
        at += read
    return found.hexdigest()


def _told(error: OSError, what: str, remedy: str = "ringfence doctor") -> NoReturn:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(f"{what}: {error.strerror}", remedy=MAKE_ROOM) from error
    raise Failed(f"{what}: {error.strerror or error}", remedy=remedy) from error
