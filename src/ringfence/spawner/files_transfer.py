"""What the files helper moves: a file out, a file in, an entry away.

A file comes in under a name of its own in a folder of its own (files_staging.py) and is renamed into the target's folder by
its fd, so it is there whole or not at all, and a folder that is swapped meanwhile keeps it. It must never open what is no
regular file for reading or writing (a FIFO would hang, a device would act), and never write through a link.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import Any, NoReturn

from ringfence.spawner.deletion import empty, remove_entry
from ringfence.spawner.files_listing import describe_fd, open_path, split_top
from ringfence.spawner.files_protocol import Answered, FilesError, Wire, error_of
from ringfence.spawner.files_staging import Staged, staged
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.protocol import FILES_CHUNK
from ringfence.spawner.walk import open_directory

TRIES = 64  # of a folder that others make and remove under our hands


def get(wire: Wire, tree_fd: int, path: bytes) -> None:
    """Sends the entry, then exactly its size in bytes: what is appended meanwhile is not sent, and a file that shrinks
    is an abort. Holes are sent as zeros."""
    fd = _open_regular(tree_fd, path)
    try:
        info = describe_fd(fd, path.rpartition(b"/")[2])
        wire.answer({"ok": info})
        left, buffer = info["size"], memoryview(bytearray(FILES_CHUNK))
        while left:
            try:
                count = os.readv(fd, [buffer[: min(left, FILES_CHUNK)]])
            except OSError as error:
                return wire.abort(error_of(error))
            if not count:
                return wire.abort(FilesError("failed", f"the file shrank while it was read: {left} bytes are missing"))
            wire.chunk(buffer[:count])
            left -= count
        return wire.end()
    finally:
        os.close(fd)


def _open_regular(tree_fd: int, path: bytes) -> int:
    """Looked at by O_PATH first, which touches nothing; then opened, without blocking, and looked at again."""
    looked_at = open_path(tree_fd, path, os.O_PATH)
    try:
        _only_regular(looked_at)
    finally:
        os.close(looked_at)
    fd = open_path(tree_fd, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _only_regular(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _only_regular(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise FilesError("is_directory", "a folder, not a file")
    if not stat.S_ISREG(mode):
        raise FilesError("refused", "not a regular file")


def put(wire: Wire, tree_fd: int, path: bytes, mode: int) -> None:
    """Takes a file in. Missing folders are made, 0755; a link in the file's place is replaced, not written through."""
    parent, name = _open_parent(tree_fd, path, make=True)
    try:
        if _kind(parent, name) == stat.S_IFDIR:
            raise FilesError("is_directory", "a folder has that name")
        with staged(tree_fd, parent) as one:
            if not os.access(b".", os.W_OK | os.X_OK, dir_fd=parent):  # told now, and not after the last byte
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            wire.answer({"ready": {}})
            failure = _receive(wire, one.fd)
            info = _settle(one, parent, name, mode) if failure is None else {}
        if failure is not None:  # what had come is gone by now: the room is there again
            _refuse_rest(wire, failure)
        wire.answer({"ok": info})
    finally:
        os.close(parent)


def _receive(wire: Wire, fd: int) -> OSError | None:
    """Writes the chunks; the reason why it could not."""
    for chunk in wire.chunks():
        try:
            _write(fd, chunk)
        except OSError as error:
            return error
    return None


def _refuse_rest(wire: Wire, failure: OSError) -> NoReturn:
    """Tells the error at once and throws away what the peer still sends."""
    wire.answer_error(error_of(failure))
    with contextlib.suppress(FilesError):
        for _ in wire.chunks():
            pass
    raise Answered


def _write(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _settle(one: Staged, parent: int, name: bytes, mode: int) -> dict[str, Any]:
    """Makes the temporary file the file; on disk before it is answered."""
    os.fchmod(one.fd, mode)
    os.fsync(one.fd)
    os.rename(one.name, name, src_dir_fd=one.folder, dst_dir_fd=parent)
    with contextlib.suppress(PermissionError):  # a folder that its owner may not read: the rename stands
        readable = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fsync(readable)
        finally:
            os.close(readable)
    return describe_fd(one.fd, name)


def remove(tree_fd: int, path: bytes, recursive: bool, stop: Callable[[], bool]) -> None:
    """Removes an entry; of a link the link. A folder that is not empty only when `recursive`."""
    parent, name = _open_parent(tree_fd, path.rstrip(b"/"), make=False)
    try:
        for _ in range(TRIES):
            error = remove_entry(parent, name)
            if error is None:
                return
            if error.errno in (errno.EISDIR, errno.ENOTDIR):  # swapped meanwhile
                continue
            if not recursive or error.errno in (errno.ENOENT, errno.EBUSY) or _kind(parent, name) != stat.S_IFDIR:
                raise error
            fd = open_directory(parent, name, mend=True)
            try:
                empty(fd, stop=stop)
            finally:
                os.close(fd)
        raise FilesError("not_empty", "entries keep appearing in the folder")
    finally:
        os.close(parent)


def _kind(dir_fd: int, name: bytes) -> int:
    """S_IFMT of an entry, 0 when there is none."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return 0


def _open_parent(tree_fd: int, path: bytes, *, make: bool) -> tuple[int, bytes]:
    """(O_PATH fd of the folder that holds the entry, the entry's name)"""
    top, rest = split_top(path)
    folder, _, name = rest.rpartition(b"/")
    if name in (b"", b".", b".."):
        raise FilesError("is_directory" if rest else "refused", "the path names a folder of the box")
    top_fd = open_beneath(tree_fd, top, os.O_PATH | os.O_DIRECTORY)
    try:
        return (_make_folders(top_fd, folder) if make else _folder(top_fd, folder)), name
    finally:
        os.close(top_fd)


def _folder(top_fd: int, folder: bytes) -> int:
    return open_beneath(top_fd, folder or b".", os.O_PATH | os.O_DIRECTORY, symlinks=True)


def _make_folders(top_fd: int, folder: bytes) -> int:
    """The folder, made with all above it where they are missing; others may make them at the same time."""
    try:
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError):
                return _folder(top_fd, folder)
            parts = [part for part in folder.split(b"/") if part]
            for depth in range(len(parts)):
                _make_one(top_fd, b"/".join(parts[:depth]), parts[depth])
        return _folder(top_fd, folder)
    except NotADirectoryError:
        raise FilesError("exists", "a file is where a folder of the path should be") from None


def _make_one(top_fd: int, above: bytes, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):  # removed by somebody: the caller tries again
        fd = _folder(top_fd, above)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)
        finally:
            os.close(fd)
