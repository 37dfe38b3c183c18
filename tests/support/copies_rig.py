"""What the tests of copies share: the files wire of pack and unpack from the kernel's side, trees to pack, and what a tree is."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import socket
import stat
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringfence.spawner import protocol
from ringfence.spawner.protocol import FILES_ABORT, FILES_CHUNK, Limits
from tests.support.disk_rig import MIB
from tests.support.spawner_rig import Rig

BOX = "d" * 16
ROOMY = Limits(disk=64 * MIB, inodes=4096)
LENGTH = struct.Struct(">I")


class Broken(Exception):
    """The error that came instead of an answer: its code and text."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(f"{error['code']}: {error['text']}")
        self.code, self.text = error["code"], error["text"]


def _exactly(wire: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = wire.recv(count - len(data))
        assert piece, "the child has gone without a word"
        data += piece
    return data


def answer(wire: socket.socket) -> dict[str, Any]:
    found = json.loads(_exactly(wire, *LENGTH.unpack(_exactly(wire, 4))))
    if "error" in found:
        raise Broken(found["error"])
    said: dict[str, Any] = found["ok"]
    return said


def open_socket(rig: Rig, request: protocol.Request) -> socket.socket:
    _, fds = rig.ask_fds(request)
    wire = socket.socket(fileno=fds[0])
    wire.settimeout(120)
    return wire


def pack(rig: Rig, box: str = BOX) -> tuple[bytes, dict[str, Any]]:
    """The archive, and what was said of it. Raises Refusal, Broken."""
    with open_socket(rig, protocol.Pack(box)) as wire:
        data: list[bytes] = []
        while True:
            (length,) = LENGTH.unpack(_exactly(wire, 4))
            if length in (0, FILES_ABORT):
                return b"".join(data), answer(wire)
            assert length <= FILES_CHUNK
            data.append(_exactly(wire, length))


def unpack(rig: Rig, data: bytes, box: str = BOX, limits: Limits = ROOMY) -> dict[str, Any]:
    """Beside the box's tree. Raises Refusal, Broken."""
    with open_socket(rig, protocol.Unpack(box, limits)) as wire:
        send(wire, data)
        return answer(wire)


def send(wire: socket.socket, data: bytes, *, end: bool = True) -> None:
    for at in range(0, len(data), FILES_CHUNK):
        chunk = data[at : at + FILES_CHUNK]
        wire.sendall(LENGTH.pack(len(chunk)) + chunk)
    if end:
        wire.sendall(LENGTH.pack(0))


def settle(rig: Rig, box: str = BOX, limits: Limits = ROOMY, *, whole: bool = True) -> None:
    rig.ask(protocol.Settle(box, limits, whole))


def tree_of(rig: Rig, box: str = BOX) -> Path:
    return rig.home / "boxes" / box / "tree"


def as_box(uid: int, work: Callable[[], object]) -> None:
    """In a child with the box's id, as one of its processes would."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o022)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def described(tree: Path, parts: tuple[str, ...] = ("home", "workspace")) -> dict[bytes, tuple[object, ...]]:
    """Every entry by name: kind, permission bits, time, content, how many names it has and how much of it is there."""
    found: dict[bytes, tuple[object, ...]] = {}
    for part in parts:
        top = os.fsencode(tree / part)
        for folder, folders, files in os.walk(top):
            for path in [folder, *(os.path.join(folder, name) for name in (*folders, *files))]:
                found[os.path.relpath(path, os.fsencode(tree))] = _entry(path)
    return found


def _entry(path: bytes) -> tuple[object, ...]:
    seen = os.lstat(path)
    kind, mode = stat.S_IFMT(seen.st_mode), stat.S_IMODE(seen.st_mode)
    if kind == stat.S_IFLNK:
        return kind, os.readlink(path), seen.st_mtime_ns
    if kind != stat.S_IFREG:
        return kind, mode, seen.st_mtime_ns, seen.st_uid
    digest = _content(path, seen.st_size)
    return kind, mode, seen.st_mtime_ns, seen.st_uid, seen.st_nlink, seen.st_size, digest


def _content(path: bytes, size: int) -> str:
    """A hash of what is not zero in it, which a hole of 10 GiB has nothing of."""
    found = hashlib.sha256()
    fd, at = os.open(path, os.O_RDONLY), 0
    try:
        while at < size:
            at = os.lseek(fd, at, os.SEEK_DATA)
            data = os.pread(fd, 4096 - at % 4096, at)
            if data.strip(b"\0"):
                found.update(b"%d:%s" % (at, data))
            at += len(data)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    finally:
        os.close(fd)
    return found.hexdigest()


def hash_of(tree: Path) -> str:
    return hashlib.sha256(repr(sorted(described(tree).items())).encode()).hexdigest()


def fill(tree: Path, uid: int) -> None:
    """What a box may make, the odd things among it, all of which an archive keeps."""

    def work() -> None:
        os.chdir(tree / "home")
        Path("plain").write_bytes(b"content\n")
        os.utime("plain", ns=(1, 1_234_567_890_123_456_789))
        os.mkdir("closed")
        Path("closed/inside").write_bytes(b"hidden")
        os.chmod("closed/inside", 0)
        os.utime("closed", ns=(0, -1_500_000_000))
        os.chmod("closed", 0)
        os.link("plain", "second name")
        os.symlink("/etc/passwd", "out")
        os.symlink("../../../../etc", "up")
        Path(os.fsdecode(b"not utf-8 \xff\xfe")).write_bytes(b"x")
        Path("line\nfeed").write_bytes(b"y")
        fd = os.open("sparse", os.O_WRONLY | os.O_CREAT, 0o640)
        os.pwrite(fd, b"begin", 0)
        os.pwrite(fd, b"middle", 1 << 30)
        os.ftruncate(fd, (10 << 30) + 1)
        os.close(fd)
        os.truncate(os.open("hole", os.O_WRONLY | os.O_CREAT, 0o600), 1 << 20)
        os.chdir(tree / "workspace")
        for name in ("deep" * 60,) * 15:
            os.mkdir(name)
            os.chdir(name)
        Path("n" * 255).write_bytes(b"far")

    as_box(uid, work)


def made(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive by tarfile, which writes whatever it is told."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as archive:
        for each in entries:
            info, data = each if isinstance(each, tuple) else (each, b"")
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def file(name: str, data: bytes = b"data", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = entry(name, mode=mode)
    info.size = len(data)
    return info, data


def folder(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE, mode=mode)
