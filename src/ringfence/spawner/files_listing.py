"""What the files helper tells about a tree: one entry, a folder's entries, what the whole uses.

It must never follow the last link of a path, and never hold a folder's names in memory: a box can have millions.
Standard library only.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from ringfence.spawner.files_protocol import FilesError, pack_bytes
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.protocol import FILES_FRAME
from ringfence.spawner.walk import Descent

TOPS = (b"home", b"workspace", b"tmp")  # of a tree; bound into the box one by one
# An entry is at most 255 bytes of name and 4095 of link target, 5.9 KB in base64 and JSON: stopping at half a frame
# leaves room for the last one.
REPLY_BYTES = FILES_FRAME // 2


def open_path(tree_fd: int, path: bytes, flags: int) -> int:
    """`path` (`home/...`) opened beneath its own top folder: in the box that folder is a mount, so a link that climbs
    from home/ into workspace/ means something else there. Raises OSError, FilesError."""
    top, rest = split_top(path)
    top_fd = open_beneath(tree_fd, top, os.O_PATH | os.O_DIRECTORY)
    try:
        return open_beneath(top_fd, rest or b".", flags, symlinks=True)
    finally:
        os.close(top_fd)


def split_top(path: bytes) -> tuple[bytes, bytes]:
    """(`home`, the rest without leading slashes, possibly empty)"""
    top, _, rest = path.partition(b"/")
    if top not in TOPS or b"\0" in path:
        raise FilesError("refused", "a path is below home/, workspace/ or tmp/")
    return top, rest.lstrip(b"/")


def stat_path(tree_fd: int, path: bytes) -> dict[str, Any]:
    """The entry itself, not what a link in its place leads to."""
    fd = open_path(tree_fd, path, os.O_PATH | os.O_NOFOLLOW)
    try:
        return describe_fd(fd, path.rstrip(b"/").rpartition(b"/")[2])
    finally:
        os.close(fd)


def list_folder(tree_fd: int, path: bytes, after: bytes | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """(at most `limit` entries after the name `after`, sorted by raw name; whether there may be more). Memory is for
    `limit` names, however many there are; entries that vanish meanwhile are left out."""
    fd = open_path(tree_fd, path, os.O_PATH)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise FilesError("refused", "not a folder")
        readable = open_beneath(fd, b".", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(fd)
    try:
        names = heapq.nsmallest(limit, (name for name in _names(readable) if after is None or name > after))
        entries, size = [], 0
        for name in names:
            entry = _describe(readable, name)
            if entry is not None:
                entries.append(entry)
                size += 200 + len(entry["name_b64"]) + len(entry["target_b64"] or "")
            if size > REPLY_BYTES:
                return entries, True
        return entries, len(names) == limit
    finally:
        os.close(readable)


def _names(fd: int) -> Iterator[bytes]:
    with os.scandir(fd) as entries:
        for entry in entries:
            yield os.fsencode(entry.name)


def _describe(dir_fd: int, name: bytes) -> dict[str, Any] | None:
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    try:
        return describe_fd(fd, name)
    finally:
        os.close(fd)


def describe_fd(fd: int, name: bytes) -> dict[str, Any]:
    """FileInfo of the wire. `fd` may be O_PATH, of a link too."""
    seen = os.fstat(fd)
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}.get(stat.S_IFMT(seen.st_mode))
    target = os.readlink(b"", dir_fd=fd) if kind == "symlink" else None
    return {
        "name_b64": pack_bytes(name),
        "kind": kind or "other",
        "size": seen.st_size,
        "mode": stat.S_IMODE(seen.st_mode),
        "mtime_ns": seen.st_mtime_ns,
        "target_b64": None if target is None else pack_bytes(target),
    }


def usage(tree_fd: int, stop: Callable[[], bool]) -> tuple[int, int]:
    """(bytes by blocks, inodes) of everything below the tree. A file with n links counts as 1/n at each of them, which
    needs no memory of the inodes seen. Folders that may not be read count as empty. ECANCELED by `stop`."""
    size, inodes = 0.0, 0.0
    with Descent(tree_fd) as at:
        fresh = True
        while True:
            if fresh:
                if stop():
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                more_size, more_inodes, at.level.todo = _count(at.fd)
                size, inodes = size + more_size, inodes + more_inodes
            fresh = _next(at)
            if not fresh and len(at.levels) == 1 and not at.level.todo:
                return round(size), round(inodes)


def _next(at: Descent) -> bool:
    """Moves on; whether the folder is a new one."""
    while at.level.todo:
        try:
            at.down(at.level.todo.pop())
            return True
        except OSError:
            continue
    if len(at.levels) > 1:
        at.up()
    return False


def _count(fd: int) -> tuple[float, float, list[bytes]]:
    size, inodes, folders = 0.0, 0.0, []
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(seen.st_mode):
                folders.append(os.fsencode(entry.name))
            links = 1 if stat.S_ISDIR(seen.st_mode) else max(seen.st_nlink, 1)
            size += seen.st_blocks * 512 / links  # st_blocks counts units of 512 bytes, whatever the file system
            inodes += 1 / links
    return size, inodes, folders
