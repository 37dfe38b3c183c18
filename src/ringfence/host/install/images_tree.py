"""Copies the part of a system that an image is, /usr and little of /etc, and names it by all that was copied.

What is said of a file is what was read of it, so the id is that of the copy whatever happens to the original; an original that
changes meanwhile is an error. Owners become the builder's, nobody else may write, set-user-id bits and capabilities are left out
(boxes are nosuid anyway), links are kept as they are, for it is in a box that they are followed. Must never follow one itself, open
what is no plain file, or hold more of a tree than one folder's names.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass, field

from ringfence.host.kernel.errors import Conflict, DiskFull, Invalid
from ringfence.host.kernel.images import Listing

PIECE = 1 << 20
RESERVE = 512 << 20  # bytes of the volume that a build leaves free
DEEPEST = 100  # folders in one another: each has two descriptors here, of the usual 1,024; Debian's /usr has some 15
WIDEST = 200_000  # names in one folder, some 20 MiB of them; Debian's widest has some 5,000
LINKED = (
    65_536  # files with several names whose first one is remembered, the latest; Debian's perl and git have some 150
)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Of /etc, with whether it is a folder: as spawner/etc_files.py, which a test holds to this.
OF_ETC = {"alternatives": True, "ld.so.cache": False, "ld.so.conf": False, "ld.so.conf.d": True}


@dataclass(slots=True)
class Copied:
    entries: int = 0
    bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)  # kind -> how many

    def leave_out(self, kind: str) -> None:
        self.left_out[kind] = self.left_out.get(kind, 0) + 1


@dataclass(frozen=True, slots=True)
class _First:
    """Of a file with several names, the first that was copied."""

    path: bytes
    digest: bytes
    seen: tuple[int, int, int]


class Copier:
    """One build: `source`, a system's root, to `target`, which is empty and stays the caller's."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._listing = Listing()
        self._linked: OrderedDict[tuple[int, int], _First] = OrderedDict()
        self.copied = Copied()

    def run(self) -> str:
        """The id, once everything is on disk. Invalid: no system with a merged /usr. Conflict: it changes. DiskFull."""
        self._check()
        try:
            self._folder(self._source, self._target, b"usr", 0)
            self._etc()
        except OSError as error:
            raise _told(error) from error
        synced(self._target)
        return self._listing.id

    def _check(self) -> None:
        try:
            kind = os.stat("usr", dir_fd=self._source, follow_symlinks=False)
        except OSError as error:
            raise Invalid("it has no usr", remedy="name the root of a system, the folder that usr is in") from error
        if not stat.S_ISDIR(kind.st_mode):
            raise Invalid("its usr is no folder", remedy="name the root of a system, the folder that usr is in")
        for name in ("bin", "lib", "sbin"):
            try:
                found = os.stat(name, dir_fd=self._source, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(found.st_mode):
                raise Invalid(
                    f"its /{name} is not in its /usr", remedy="merge it: apt-get install usrmerge, in that system"
                )

    def _etc(self) -> None:
        """Each part is there afterwards, empty where the system has none."""
        os.mkdir("etc", 0o755, dir_fd=self._target)
        here = os.open("etc", _FOLDER, dir_fd=self._target)
        try:
            there = os.open("etc", _FOLDER, dir_fd=self._source)
        except FileNotFoundError:
            there = -1
        try:
            for name, folder in sorted(OF_ETC.items()):
                self._part(there, here, name, folder)
        finally:
            os.close(here)
            if there >= 0:
                os.close(there)

    def _part(self, there: int, here: int, name: str, folder: bool) -> None:
        try:
            kind = os.stat(name, dir_fd=there, follow_symlinks=False).st_mode if there >= 0 else 0
        except FileNotFoundError:
            kind = 0
        path = f"etc/{name}".encode()
        if folder and stat.S_ISDIR(kind):
            self._folder(there, here, path, 1)
        elif folder:
            os.mkdir(name, 0o755, dir_fd=here)
            self._said(path, "d", 0o755, 0)
        elif stat.S_ISREG(kind):
            self._file(there, here, path)
        else:
            os.close(os.open(name, _NEW, 0o644, dir_fd=here))
            self._said(path, "f", 0o644, 0, hashlib.sha256().digest())

    def _said(self, path: bytes, kind: str, mode: int, size: int, rest: bytes = b"") -> None:
        self._listing.add(path, kind, mode, size, rest)
        self.copied.entries += 1
        self.copied.bytes += size if kind == "f" else 0

    def _folder(self, there: int, here: int, path: bytes, depth: int) -> None:
        name = path.rpartition(b"/")[2]
        if depth > DEEPEST:
            raise Invalid(f"{_shown(path)} lies more than {DEEPEST} folders deep", remedy="take it out")
        source = os.open(name, _FOLDER, dir_fd=there)
        try:
            before = os.fstat(source)
            mode = stat.S_IMODE(before.st_mode) & 0o755 | 0o700
            os.mkdir(name, 0o700, dir_fd=here)
            target = os.open(name, _FOLDER, dir_fd=here)
            try:
                self._said(path, "d", mode, 0)
                for each in _names(source, path):
                    self._entry(source, target, path + b"/" + each, depth + 1)
                os.fchmod(target, mode)
                os.utime(target, ns=(before.st_mtime_ns, before.st_mtime_ns))
            finally:
                os.close(target)
            if _seen(os.fstat(source)) != _seen(before):
                raise _changes(path)
        finally:
            os.close(source)

    def _entry(self, there: int, here: int, path: bytes, depth: int) -> None:
        name = path.rpartition(b"/")[2]
        kind = os.stat(name, dir_fd=there, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind):
            self._folder(there, here, path, depth)
        elif stat.S_ISREG(kind):
            self._file(there, here, path)
        elif stat.S_ISLNK(kind):
            to = os.readlink(name, dir_fd=there)
            os.symlink(to, name, dir_fd=here)
            self._said(path, "l", 0o777, len(to), to)
        else:
            self.copied.leave_out("devices" if stat.S_ISCHR(kind) or stat.S_ISBLK(kind) else "sockets and pipes")

    def _file(self, there: int, here: int, path: bytes) -> None:
        name = path.rpartition(b"/")[2]
        source = os.open(name, _FILE, dir_fd=there)
        try:
            before = os.fstat(source)
            if not stat.S_ISREG(before.st_mode):
                raise _changes(path)
            mode = stat.S_IMODE(before.st_mode) & 0o755
            if before.st_mode & (stat.S_ISUID | stat.S_ISGID):
                self.copied.leave_out("set-user-id and set-group-id bits")
            several, inode = before.st_nlink > 1, (before.st_dev, before.st_ino)
            first = self._linked.get(inode) if several else None
            if first is None or first.seen != _seen(before) or not self._link(first.path, here, name):
                first = _First(path, self._content(source, here, name, before, mode), _seen(before))
                if _seen(os.fstat(source)) != first.seen:
                    raise _changes(path)
            if several:
                self._linked[inode] = first
                self._linked.move_to_end(inode)
                if len(self._linked) > LINKED:
                    self._linked.popitem(last=False)
            self._said(path, "f", mode, before.st_size, first.digest)
        finally:
            os.close(source)

    def _link(self, first: bytes, here: int, name: bytes) -> bool:
        """False: it needs a copy of its own. linkat(2): EMLINK at 65,000 names on ext4, and a path has 4,095 bytes at most."""
        try:
            os.link(first, name, src_dir_fd=self._target, dst_dir_fd=here, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.ENAMETOOLONG):
                return False
            raise
        return True

    def _content(self, source: int, here: int, name: bytes, before: os.stat_result, mode: int) -> bytes:
        """As many bytes as it had when it was opened: one that grows meanwhile is found by its times."""
        digest, left = hashlib.sha256(), before.st_size
        room = os.fstatvfs(here)
        if left + RESERVE > room.f_bavail * room.f_frsize:
            raise DiskFull(
                f"no room: {left >> 20} MiB more, of {room.f_bavail * room.f_frsize >> 20} MiB that are free",
                remedy=f"df -h; a build leaves {RESERVE >> 20} MiB",
            )
        target = os.open(name, _NEW, 0o600, dir_fd=here)
        try:
            while left and (data := os.read(source, min(PIECE, left))):
                digest.update(data)
                left -= len(data)
                _write(target, data)
            os.fchmod(target, mode)
            os.utime(
                target, ns=(before.st_mtime_ns, before.st_mtime_ns)
            )  # which .pyc files beside it are compared with
        finally:
            os.close(target)
        if left:
            raise _changes(name)
        return digest.digest()


def synced(fd: int) -> None:
    """syncfs(2): a rename after it must not become durable before the files."""
    if ctypes.CDLL(None, use_errno=True).syncfs(fd):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _names(fd: int, path: bytes) -> list[bytes]:
    names = []
    with os.scandir(fd) as entries:
        for entry in entries:
            names.append(os.fsencode(entry.name))
            if len(names) > WIDEST:
                raise Invalid(f"{_shown(path)} has more than {WIDEST} names in it", remedy="take some out")
    return sorted(names)


def _seen(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _changes(path: bytes) -> Conflict:
    return Conflict(
        f"{_shown(path)} changed while it was read: nothing was kept", remedy="build again, once nothing writes there"
    )


def _told(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no room for the image: {error.strerror}", remedy="df -h; df -i")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return _changes(os.fsencode(error.filename) if isinstance(error.filename, str | bytes) else b"it")
    return error


def _shown(path: bytes) -> str:
    return ascii(path.decode(errors="replace"))[1:-1][-200:]
