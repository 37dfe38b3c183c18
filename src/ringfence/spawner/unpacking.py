"""Unpacks an archive into an empty tree: one process with the box's uid, locked into that tree, that reads a socket.

Everything is made new: what is there already is never opened for writing, replaced or followed, so that an entry cannot go
through a link that an earlier one has made. Counted while it is written, before the disk is asked: entries, content, the
length of one file. Must never make a device, a FIFO, or anything with set-id bits.

Standard library only. Every module it needs is loaded before the fork.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

from ringfence.spawner import drop
from ringfence.spawner.archive import Entry, refused, shown, stored
from ringfence.spawner.archive_reader import Reader
from ringfence.spawner.files_protocol import Broken, FilesError, Wire, error_of
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.packing import MEMORY, STALL_SECONDS
from ringfence.spawner.protocol import Limits

PAGE = 4096  # of the disk: what the least content takes
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_LIBC = ctypes.CDLL(None, use_errno=True)


def serve(sock: socket.socket, tree_fd: int, parts: tuple[str, ...], limits: Limits) -> NoReturn:
    """Takes the archive in chunks until length 0, then answers `{"ok": {"entries", "bytes", "left_out"}}`, on disk by then; or,
    at once, an error. What still comes after that is thrown away."""
    code = 1
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        drop.limit(resource.RLIMIT_DATA, MEMORY, MEMORY)
        os.umask(0o077)
        sock.settimeout(STALL_SECONDS)
        wire = Wire(sock)
        chunks = wire.chunks()
        error = _unpacked(wire, chunks, tree_fd, parts, limits)
        if error is None:
            code = 0
        else:
            wire.answer_error(error)
            for _ in chunks:
                pass
    except (Broken, FilesError):
        pass
    finally:
        os._exit(code)  # no exit handler, buffer or destructor of the spawner that we are a fork of


def _unpacked(
    wire: Wire, chunks: Iterator[memoryview], tree_fd: int, parts: tuple[str, ...], limits: Limits
) -> FilesError | None:
    """Answered when it is done; else why not."""
    try:
        wire.answer({"ok": unpack(Reader(chunks, parts), tree_fd, limits)})
        return None
    except FilesError as error:
        return error
    except MemoryError:
        return FilesError("too_large", "the archive has more folders than can be unpacked")
    except OSError as error:
        return error_of(error)


def unpack(reader: Reader, tree_fd: int, limits: Limits) -> dict[str, object]:
    unpacking = _Unpacking(tree_fd, limits)
    try:
        while (entry := reader.next()) is not None:
            unpacking.add(entry, reader)
        unpacking.settle()
    finally:
        unpacking.close()
    return {"entries": unpacking.entries, "bytes": unpacking.bytes, "left_out": dict(unpacking.left_out)}


class _Unpacking:
    def __init__(self, tree_fd: int, limits: Limits) -> None:
        self._tree, self._limits = tree_fd, limits
        self._above = (b"", -1)  # the folder of the last entry, open
        self._folders: list[tuple[bytes, int, int]] = []  # path, mode, mtime: set at the end, the inner ones first
        self._room = limits.disk
        self.entries = 0
        self.bytes = 0
        self.left_out: Counter[str] = Counter()

    def add(self, entry: Entry, reader: Reader) -> None:
        self.entries += 1
        if self.entries > self._limits.inodes:
            raise FilesError("disk_full", f"more entries than the box may have: {self._limits.inodes}")
        if entry.mode & ~0o777:
            self.left_out["special_bits"] += 1
        try:
            self._made(entry, reader)
        except FileExistsError:
            raise refused(entry.path, "named twice") from None
        except (FileNotFoundError, NotADirectoryError):
            raise refused(entry.path, "its folder, or what it is a name of, does not come before it") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise refused(entry.path, "a name that goes through a link") from None
            found = error_of(error)
            raise FilesError(found.code, f"{shown(entry.path)}: {found.text}") from error

    def _made(self, entry: Entry, reader: Reader) -> None:
        if entry.kind == "file":
            self._file(entry, reader)
            return
        above, _, name = entry.path.rpartition(b"/")
        if entry.kind == "directory":
            if above:
                os.mkdir(name, 0o700, dir_fd=self._folder(above))
            self._folders.append((entry.path, entry.mode & 0o777, entry.mtime_ns))
        elif entry.kind == "symlink":
            folder = self._folder(above)
            os.symlink(entry.target, name, dir_fd=folder)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
        else:
            self._link(entry, self._folder(above), name)

    def _folder(self, path: bytes) -> int:
        """Kept open for the next entry, which most often is in the same one."""
        if not path:
            raise refused(b"/", "no entry may be the tree's own part")
        if path != self._above[0]:
            self.close()
            self._above = (path, open_beneath(self._tree, path, os.O_PATH | os.O_DIRECTORY, one_mount=True))
        return self._above[1]

    def _link(self, entry: Entry, folder: int, name: bytes) -> None:
        above, _, target = entry.target.rpartition(b"/")
        if not above:
            raise refused(entry.path, "a second name of a folder")
        source = open_beneath(self._tree, above, os.O_PATH | os.O_DIRECTORY, one_mount=True)
        try:
            os.link(target, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)

    def _file(self, entry: Entry, reader: Reader) -> None:
        self._count(entry)
        above, _, name = entry.path.rpartition(b"/")
        fd = os.open(name, _MAKE | os.O_CLOEXEC, 0o600, dir_fd=self._folder(above))
        try:
            content = reader.content()
            if entry.stretches is None:
                for chunk in content:
                    _write(fd, chunk)
            else:
                _write_sparse(fd, entry, reader)
            os.fchmod(fd, entry.mode & 0o777)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)

    def _count(self, entry: Entry) -> None:
        """Before a byte of it is written."""
        if entry.size > self._limits.fsize:
            raise FilesError(
                "too_large", f"{shown(entry.path)}: {entry.size} bytes, a file may have {self._limits.fsize}"
            )
        kept = stored(entry)
        self._room -= -(-kept // PAGE) * PAGE
        self.bytes += kept
        if self._room < 0:
            raise FilesError("disk_full", f"more content than the disk of the box holds: {self._limits.disk} bytes")

    def settle(self) -> None:
        """Modes and times of folders, whatever was made in them meanwhile; then all of it on disk."""
        self.close()
        for path, mode, mtime in reversed(self._folders):
            fd = open_beneath(self._tree, path, os.O_RDONLY | os.O_DIRECTORY, one_mount=True)
            try:
                os.utime(fd, ns=(mtime, mtime))
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
        fd = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._tree)
        try:
            if _LIBC.syncfs(fd) != 0:
                raise OSError(ctypes.get_errno(), "syncfs")
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._above[1] >= 0:
            os.close(self._above[1])
        self._above = (b"", -1)


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _write_sparse(fd: int, entry: Entry, reader: Reader) -> None:
    """What is stored fills one stretch after the other; the rest stays a hole."""
    left = iter(entry.stretches or ())
    offset = length = 0
    for chunk in reader.content():
        data = chunk
        while data:
            while not length:
                offset, length = next(left)
            written = os.pwrite(fd, data[:length], offset)
            data, offset, length = data[written:], offset + written, length - written
    os.ftruncate(fd, entry.size)
