"""Packs a tree: one process with the box's uid, locked into the tree, that writes its archive to a socket.

The box stands still or has no process meanwhile. Read is by open directories, one at a time, without following a link or
crossing a mount; content of regular files only, a FIFO or a device is never opened. What no archive is to have (sockets,
FIFOs, devices, set-id bits, names beyond a path's length) is left out and counted. A folder or file that its owner may not
read is made readable for the moment, and then as it was. Must never write to the tree otherwise, nor take more memory than MEMORY,
whatever is in it.

Standard library only. Every module it needs is loaded before the fork.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import stat
from collections import Counter
from typing import NoReturn

from ringfence.spawner import archive, drop
from ringfence.spawner.archive import MAX_PATH, Entry
from ringfence.spawner.files_protocol import Broken, FilesError, Wire, error_of
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.protocol import FILES_CHUNK
from ringfence.spawner.walk import Descent, change_mode, open_directory

STALL_SECONDS = 600.0  # the other end compresses and writes to a disk that may be busy
# Of who packs or unpacks: a folder takes some 300 bytes until it gets its mode at the end, or is gone down into, and a file of several
# names 200 and its path: 500,000 of either 150 MB. What wants more than this ends its own packing.
MEMORY = 1 << 30
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_ODD = {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def serve(sock: socket.socket, tree_fd: int, parts: tuple[str, ...]) -> NoReturn:
    """Chunks of the archive until length 0, then `{"ok": {"entries", "bytes", "left_out"}}`; or FILES_ABORT and an error."""
    code = 1
    try:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        drop.limit(resource.RLIMIT_DATA, MEMORY, MEMORY)
        sock.settimeout(STALL_SECONDS)
        wire = Wire(sock)
        error = _packed(wire, tree_fd, parts)
        if error is None:
            code = 0
        else:
            wire.abort(error)
    except Broken:
        pass
    finally:
        os._exit(code)  # no exit handler, buffer or destructor of the spawner that we are a fork of


def _packed(wire: Wire, tree_fd: int, parts: tuple[str, ...]) -> FilesError | None:
    """Said when it is done; else why not."""
    try:
        done = pack(wire, tree_fd, parts)
        wire.end()
        wire.answer({"ok": done})
        return None
    except FilesError as error:
        return error
    except MemoryError:
        return FilesError(
            "too_large", "the tree has more folders in one, or files of several names, than can be packed"
        )
    except OSError as error:
        return error_of(error)


def pack(wire: Wire, tree_fd: int, parts: tuple[str, ...]) -> dict[str, object]:
    packing = _Packing(wire)
    for part in parts:
        root = open_directory(tree_fd, part.encode())
        try:
            packing.folder(part.encode(), os.fstat(root))
            packing.walk(root, part.encode())
        finally:
            os.close(root)
    packing.write(archive.END)
    packing.flush()
    return {"entries": packing.entries, "bytes": packing.bytes, "left_out": dict(packing.left_out)}


class _Packing:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._buffer = bytearray()
        self._links: dict[tuple[int, int], bytes] = {}  # of files with several names: the first one
        self._modes: list[int] = []  # of the folders on the way down, as they were
        self.entries = 0
        self.bytes = 0
        self.left_out: Counter[str] = Counter()

    def write(self, data: bytes | memoryview) -> None:
        self._buffer += data
        while len(self._buffer) >= FILES_CHUNK:
            self._wire.chunk(memoryview(self._buffer)[:FILES_CHUNK])
            self._buffer = self._buffer[FILES_CHUNK:]

    def flush(self) -> None:
        if self._buffer:
            self._wire.chunk(bytes(self._buffer))
            self._buffer = bytearray()

    def walk(self, root: int, part: bytes) -> None:
        """Below the root, each folder before what is in it, its files before its folders."""
        with Descent(root) as at:
            try:
                self._walk(at, [part])
            finally:
                with contextlib.suppress(OSError):
                    self._leave(at)

    def _walk(self, at: Descent, path: list[bytes]) -> None:
        self._scan(at.fd, at.level.todo, b"/".join(path))
        while True:
            if at.level.todo:
                name = at.level.todo.pop()
                if self._down(at, name, b"/".join([*path, name])):
                    path.append(name)
                continue
            if len(at.levels) == 1:
                return
            if not self._up(at):
                raise FilesError("failed", "the tree changed while it was packed")
            path.pop()

    def _up(self, at: Descent) -> bool:
        left = at.up()
        if left is not None:
            _restore(at.fd, left, self._modes.pop())
        return left is not None

    def _leave(self, at: Descent) -> None:
        """What was made readable on the way down is as it was, whatever has ended the walk."""
        while self._modes and self._up(at):
            pass

    def _down(self, at: Descent, name: bytes, path: bytes) -> bool:
        """False: left out. What its owner may not read is made readable until it is left."""
        seen = os.stat(name, dir_fd=at.fd, follow_symlinks=False)
        if len(path) > MAX_PATH:
            self.left_out["too_deep"] += 1
            return False
        mode = stat.S_IMODE(seen.st_mode)
        if mode & 0o500 != 0o500:
            change_mode(at.fd, name, mode | 0o700)
        try:
            at.down(name)
        except OSError as error:
            _restore(at.fd, name, mode)
            if error.errno != errno.EXDEV:
                raise
            self.left_out["mount"] += 1  # what is mounted in it is no part of the tree
            return False
        self._modes.append(mode)
        self.folder(path, seen)
        self._scan(at.fd, at.level.todo, path)
        return True

    def _scan(self, folder: int, todo: list[bytes], above: bytes) -> None:
        with os.scandir(folder) as found:
            for one in found:
                name = os.fsencode(one.name)
                if one.is_dir(follow_symlinks=False):
                    todo.append(name)
                else:
                    self._entry(folder, name, b"%s/%s" % (above, name))

    def folder(self, path: bytes, seen: os.stat_result) -> None:
        self._head(Entry(path, "directory", self._mode(seen), seen.st_mtime_ns))

    def _entry(self, folder: int, name: bytes, path: bytes) -> None:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = stat.S_IFMT(seen.st_mode)
        if kind in _ODD or len(path) > MAX_PATH:
            self.left_out[_ODD.get(kind, "too_deep")] += 1
            return
        first = self._links.get((seen.st_dev, seen.st_ino))
        if first is not None:
            self._head(Entry(path, "hardlink", seen.st_mode & 0o777, seen.st_mtime_ns, target=first))
            return
        if seen.st_nlink > 1:
            self._links[seen.st_dev, seen.st_ino] = path
        if kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=folder)
            self._head(Entry(path, "symlink", 0o777, seen.st_mtime_ns, target=target))
        else:
            self._file(folder, name, path, seen)

    def _file(self, folder: int, name: bytes, path: bytes, seen: os.stat_result) -> None:
        fd = _open(folder, name, stat.S_IMODE(seen.st_mode))
        try:
            held = os.fstat(fd)
            if not stat.S_ISREG(held.st_mode) or held.st_ino != seen.st_ino:
                raise FilesError("failed", "the tree changed while it was packed")
            stretches = archive.stretches(fd, held.st_size) if held.st_blocks * 512 < held.st_size else None
            entry = Entry(path, "file", self._mode(seen), held.st_mtime_ns, held.st_size, stretches=stretches)
            self._head(entry)
            for offset, length in ((0, held.st_size),) if stretches is None else stretches:
                self._copy(fd, offset, length, path)
            self.write(archive.padding(archive.stored(entry)))
            self.bytes += archive.stored(entry)
        finally:
            os.close(fd)

    def _copy(self, fd: int, offset: int, length: int, path: bytes) -> None:
        while length:
            data = os.pread(fd, min(length, FILES_CHUNK), offset)
            if not data:
                raise FilesError("failed", f"{archive.shown(path)} shrank while it was packed")
            self.write(data)
            offset, length = offset + len(data), length - len(data)

    def _head(self, entry: Entry) -> None:
        self.entries += 1
        self.write(archive.head(entry))

    def _mode(self, seen: os.stat_result) -> int:
        mode = stat.S_IMODE(seen.st_mode)
        if mode & ~0o777:
            self.left_out["special_bits"] += 1
        return mode & 0o777


def _open(folder: int, name: bytes, mode: int) -> int:
    """A regular file, for reading; its owner may have taken that from himself."""
    try:
        return open_beneath(folder, name, _READ, one_mount=True)
    except PermissionError:
        change_mode(folder, name, mode | 0o400)
        try:
            return open_beneath(folder, name, _READ, one_mount=True)
        finally:
            _restore(folder, name, mode)


def _restore(folder: int, name: bytes, mode: int) -> None:
    if stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode) != mode:
        change_mode(folder, name, mode)
