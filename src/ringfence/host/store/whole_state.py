"""What of an installation is in no tree: rows, settings, keys, what was seen outside the database, files of copies. Read for a
backup of the whole, written when one is put back.

The rows are dumped by a process of its own where a server works: reading a whole database is nothing for the server's. Must never
follow a link, nor give the vault's own key to who did not ask for it by name.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ringfence.host.kernel.errors import DiskFull, Failed, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.life.backup_tar import PART
from ringfence.host.kernel.life.backups import SEEN, SETTINGS, SUFFIXES, VAULT, Dumped, is_snapshot_file
from ringfence.host.store.failures import no_room

_KEY = re.compile(r"(audit|master)\.key(\.[A-Za-z0-9_-]{1,48})?")
_SEEN = re.compile(r"(crd|roll)_[a-z0-9]{1,64}")
_MOST = 1 << 20  # bytes of the settings; keys have 32, what was seen of a credential 100
Dump = Callable[[IO[bytes]], Coroutine[Any, Any, dict[str, Any]]]


class WholeState:
    """kernel.life.backups.State. `dump`: writes the rows to a file and gives the facts; `settings`: the text of those in force, for
    where the file may not be read."""

    def __init__(self, home: Path, owners: frozenset[int], dump: Dump, settings: Callable[[], str]) -> None:
        self._home, self._owners, self._dump, self._settings = home, owners, dump, settings

    @property
    def owners(self) -> frozenset[int]:
        return self._owners

    async def dump(self) -> Dumped:
        try:
            file = await asyncio.to_thread(_temporary, self._home / "run")
        except OSError as error:
            raise _of(error) from error
        try:
            facts = await self._dump(file)
            seen = facts.pop("seen")
            await asyncio.to_thread(file.seek, 0)
            return Dumped(file, facts, seen)
        except BaseException:
            file.close()
            raise

    async def small(self, with_key: bool) -> list[tuple[str, bytes]]:
        return await asyncio.to_thread(self._small, with_key)

    def _small(self, with_key: bool) -> list[tuple[str, bytes]]:
        found = []
        vault = self._home / "vault"
        try:
            if (text := self._text()) is not None:
                found.append((SETTINGS, text))
            for name in sorted(os.listdir(vault)):
                match = _KEY.fullmatch(name)
                if match is not None and (match[1] == "audit" or with_key):
                    found.append((VAULT + name, read_plain(vault / name)))
            found.append((VAULT + SEEN, json.dumps(_noted(vault / "seen")).encode()))
        except OSError as error:
            raise _of(error) from error
        return found

    def _text(self) -> bytes | None:
        path = self._home / SETTINGS
        try:
            return read_plain(path)
        except FileNotFoundError:
            return None
        except PermissionError:  # whoever started the server may read it, and this account may not
            return self._settings().encode()

    async def file_of(self, snapshot: str) -> str | None:
        folder = self._home / "snapshots"
        names = [f"{snapshot}{suffix}" for suffix in SUFFIXES]
        return await asyncio.to_thread(lambda: next((name for name in names if (folder / name).is_file()), None))

    async def snapshot(self, name: str) -> AsyncGenerator[bytes, None]:
        if not is_snapshot_file(name):
            raise Failed(f"no name of a copy: {name!r:.100}")
        try:
            file = await asyncio.to_thread(_opened, self._home / "snapshots" / name)
        except FileNotFoundError as error:
            raise NotFound(f"the file of a copy is not there: snapshots/{name}") from error
        except OSError as error:
            raise _of(error) from error
        with file:
            while data := await asyncio.to_thread(file.read, PART):
                yield data


def dumped_apart(command: list[str], asked: Mapping[str, Any]) -> Dump:
    """`command`: runs a verb of the database with the number of a descriptor behind it; `asked`: what it is told on its stdin."""

    async def dump(file: IO[bytes]) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(file.fileno()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(file.fileno(),),
        )
        try:
            out, said = await process.communicate(json.dumps(asked).encode())
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        return _answered(out, said)

    return dump


def _answered(out: bytes, said: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(out)
    except ValueError as error:
        last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise Failed(f"the database could not be read: {last:.500}", remedy="please report it") from error
    if "facts" in answer:
        facts: dict[str, Any] = answer["facts"]
        return facts
    told = answer["error"]
    kind = DiskFull if told["code"] == DiskFull.code else Unavailable
    raise kind(told["message"], remedy=told["remedy"])


def read_plain(path: Path) -> bytes:
    """OSError."""
    with _opened(path) as file:
        return file.read(_MOST)


def _opened(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def _noted(folder: Path) -> dict[str, str]:
    """Of the vault: which versions were seen, and what was revoked. Nothing secret."""
    try:
        names = [name for name in os.listdir(folder) if _SEEN.fullmatch(name)]
    except FileNotFoundError:
        return {}
    return {name: read_plain(folder / name).decode(errors="replace") for name in sorted(names)}


def _temporary(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


def _of(error: OSError) -> RingfenceError:
    if no_room(error):
        return DiskFull("there is no room for the backup's database", remedy="make room where the state lies: df -h")
    return Unavailable(f"{error.filename} cannot be read: {error.strerror}", remedy="ringfence doctor")


# --- put back --------------------------------------------------------------------------------------------------------


def put_small(vault: Path, name: str, data: bytes) -> None:
    """One item below vault/ of a backup. Keys of the audit verify what was written elsewhere, and sign nothing here. OSError,
    ValueError."""
    if name == SEEN:
        folder = vault / "seen"
        folder.mkdir(mode=0o700, exist_ok=True)
        noted = json.loads(data)
        for each, text in noted.items():
            if not _SEEN.fullmatch(each) or not isinstance(text, str):
                raise ValueError("what was seen has another shape")
            write_new(folder / each, text.encode())
        return
    match = _KEY.fullmatch(name)
    if match is None or len(data) != 32:
        raise ValueError(f"{name} is no key of 32 bytes")
    if match[1] == "audit":  # by what it is, so that it is there once however often a backup is made and put back
        name = f"audit.key.{hashlib.sha256(b'audit ' + data).hexdigest()[:16]}"
    with suppress(FileExistsError):
        write_new(vault / name, data)


def write_new(path: Path, data: bytes) -> None:
    """0600, on disk. OSError; FileExistsError: there is one."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
