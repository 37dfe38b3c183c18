"""The file of a whole backup as it lies somewhere: written under another name and called a backup only when it is whole; read and
checked before anything is done with it.

What is written is read again on the way, by the same reader that puts it back: an end that says why it was not made whole is an
error here, and leaves no file. Blocks.
"""

from __future__ import annotations

import os
import queue
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ringfence.host.kernel.errors import Conflict, DiskFull, Invalid, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.images import ID
from ringfence.host.kernel.life import backup_tar, backups
from ringfence.host.kernel.life.backup_tar import Reading

_AHEAD = 16  # chunks between who writes and who reads again
_NO_ROOM = (28, 122, 27)  # ENOSPC, EDQUOT, EFBIG


@dataclass(frozen=True, slots=True)
class Looked:
    """What a backup says of itself, and is. `settings`: the text of its ringfence.toml; "": it has none."""

    manifest: Mapping[str, Any]
    index: Mapping[str, Any]
    settings: str
    size: int  # bytes of content
    key: bool  # of the vault

    def facts(self) -> dict[str, Any]:
        said, rows = self.manifest, self.manifest.get("database", {})
        shown = ("release", "installation", "created_at", "mode", "boxes", "snapshots")
        kept = ("dialect", "schema", "generation", "rows")
        return {
            **{name: said.get(name) for name in shown},
            **{name: rows.get(name) for name in kept},
            "with_key": self.key,
            "content_bytes": self.size,
            "gone": self.index.get("gone", []),
            "lacks": self.index.get("lacks", []),
            "images": _images(said.get("images")),
        }


def _images(said: object) -> list[str]:
    """Ids, of a manifest that may say anything, or is of a release that named none."""
    return [each for each in said if isinstance(each, str) and ID.match(each)] if isinstance(said, list) else []


def look(source: backup_tar.Source) -> Looked:
    """Reads all of it. Invalid: it is no whole backup."""
    reading = Reading(source)
    settings = bytearray()
    for part in reading.parts():
        backups.check_item(part.item)
        if part.item == backups.SETTINGS:
            settings += part.data
    items = reading.items
    if backups.DATABASE not in items or backups.BOXES not in items:
        raise backup_tar.bad("it has no rows")
    try:
        text = settings.decode()
    except UnicodeDecodeError as error:
        raise backup_tar.bad("its settings are no text") from error
    size = sum(item.size for item in items.values())
    return Looked(_checked(reading.manifest), reading.index, text, size, "vault/master.key" in items)


def _checked(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    texts = ("release", "installation", "created_at", "mode")
    database = manifest.get("database")
    if not all(isinstance(manifest.get(name), str) for name in texts) or not isinstance(database, dict):
        raise backup_tar.bad("its manifest has another shape")
    if (
        type(manifest.get("spent")) is not int
        or not 0 <= manifest["spent"] < 1 << 32
        or type(manifest.get("boxes")) is not int
    ):
        raise backup_tar.bad("its manifest has another shape")
    if len(manifest["installation"]) != 16 or not set(manifest["installation"]) <= set(
        "abcdefghijklmnopqrstuvwxyz234567"
    ):
        raise backup_tar.bad("it names no installation")
    return manifest


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """NotFound, Invalid."""
    remedy = "name the file that backup create made"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}", remedy=remedy) from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", remedy=remedy) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Invalid(f"{path} is no regular file", remedy=remedy)
    with open(fd, "rb") as file:
        yield file


class _Taken:
    """A source that somebody else writes to."""

    def __init__(self) -> None:
        self.queue: queue.Queue[bytes] = queue.Queue(_AHEAD)
        self._left = memoryview(b"")
        self._over = False

    def read(self, size: int, /) -> bytes:
        if not self._left and not self._over:
            self._left = memoryview(self.queue.get())
            self._over = not self._left
        data, self._left = self._left[:size], self._left[size:]
        return bytes(data)

    def rest(self) -> None:
        """Nobody reads on: who writes must not wait."""
        while not self._over:
            self._over = not self.queue.get()


class Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


class Checked:
    """Writes a stream on and reads it meanwhile. `end` comes last."""

    def __init__(self, out: Sink) -> None:
        self._out = out
        self._source = _Taken()
        self._found: Looked | BaseException | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self.written = 0

    def _look(self) -> None:
        try:
            self._found = look(self._source)
        except BaseException as error:
            self._found = error
        self._source.rest()

    def write(self, data: bytes) -> None:
        """OSError."""
        left = memoryview(data)
        while left:
            left = left[self._out.write(bytes(left)) or 0 :]
        self.written += len(data)
        if data:
            self._source.queue.put(data)

    def end(self) -> Looked:
        """Invalid."""
        self._source.queue.put(b"")
        self._thread.join()
        if isinstance(self._found, RingfenceError):
            raise self._found
        if isinstance(self._found, BaseException):
            raise backup_tar.bad(f"{self._found!r:.200}") from self._found
        assert self._found is not None
        return self._found


class Target:
    """A new file, 0600, on disk, and under its name only when it is whole. Conflict: the name is taken. DiskFull."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        folder = self.path.parent
        self._part = folder / f".{self.path.name}.{secrets.token_hex(4)}.part"
        try:
            if os.path.lexists(self.path):
                raise self._taken()
            fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Invalid(
                f"{path} cannot be written: {error.strerror}", remedy="name a file in a folder of yours"
            ) from error
        self._file = open(fd, "wb", buffering=0)  # noqa: SIM115  closed by `close`
        self._checked = Checked(self._file)

    def _taken(self) -> Conflict:
        return Conflict(f"{self.path} exists: a backup overwrites nothing", remedy="name another file")

    def write(self, data: bytes) -> None:
        try:
            self._checked.write(data)
        except OSError as error:
            raise full(error, str(self.path)) from error

    def keep(self) -> dict[str, Any]:
        """Facts of the file, which has its name now."""
        looked = self._checked.end()
        try:
            os.fsync(self._file.fileno())
            os.link(self._part, self.path)  # fails where the name has been taken meanwhile, which a rename would not
            _sync(self.path.parent)
        except FileExistsError as error:
            raise self._taken() from error
        except OSError as error:
            raise full(error, str(self.path)) from error
        return {"file": str(self.path), "size_bytes": self._checked.written, **looked.facts()}

    def close(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)


def full(error: OSError, path: str) -> RingfenceError:
    kind = DiskFull if error.errno in _NO_ROOM else Unavailable
    return kind(f"{path} cannot be written: {error.strerror}", remedy="take another place for it (df -h)")


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
