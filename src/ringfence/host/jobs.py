"""Processes of the kernel's account that are no server: what the spawner runs in the kernel's place while a backup of the whole is
made or put back, or an installation is taken away, and no server works.

The second composition root, beside app.py, for what app.py does not do: each joins a driver, the store's verbs and a stream to who
asked, and ends. Its standard output is that stream, both ways; its one answer is at the end of it. Must never serve anybody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ringfence.host import app
from ringfence.host.drivers.bubblewrap import Bubblewrap
from ringfence.host.drivers.files import FilesClient
from ringfence.host.drivers.spawner_client import SpawnerClient
from ringfence.host.engine.life.backups import Maker, still_alone
from ringfence.host.from_settings import signer_of
from ringfence.host.kernel.errors import DiskFull, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.backup_tar import Part, Reading, bad
from ringfence.host.kernel.life.backups import (
    BOXES,
    DATABASE,
    MOST_SMALL,
    SETTINGS,
    Held,
    Wish,
    box_of,
    check_item,
    held_of,
    snapshot_of,
    vault_of,
)
from ringfence.host.kernel.life.states import freezes
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_text import as_toml
from ringfence.host.kernel.version import VERSION
from ringfence.host.store import verbs
from ringfence.host.store.failures import no_room
from ringfence.host.store.whole_state import WholeState, dumped_apart, put_small, write_new
from ringfence.host.vault.opening import restored

# Runs `database_verb backup FD` from the same copy as this process, without what its memory holds.
_DUMP = [
    sys.executable, "-I", "-S", "-B", "-c",
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    "from ringfence.host.app import database_verb; database_verb(sys.argv[1:])", "backup",
]  # fmt: skip


def whole_of(settings: Settings, text: str | None = None) -> WholeState:
    """`text`: of the settings' file, where who started this could read it."""
    asked = {"settings": settings.to_json(), "options": {"whole": True}, "by": "", "alone": False}
    said = as_toml(settings) if text is None else text
    return WholeState(Path(settings.home), frozenset({0, os.geteuid()}), dumped_apart(_DUMP, asked), lambda: said)


@dataclass(frozen=True, slots=True)
class Job:
    settings: Settings
    options: Mapping[str, Any]
    stream: socket.socket
    driver: Bubblewrap
    facts: Mapping[str, Any]  # the driver's


def main(fd: int, path: str) -> int:
    """`fd`: of the spawner's socket. `path`: {"job", "settings", "options"}. The exit status."""
    os.umask(0o077)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    stream = socket.socket(fileno=os.dup(1))
    os.dup2(2, 1)
    asked = json.loads(Path(path).read_text())
    works = {"backup": _backup, "restore": _restore, "stop": _stop, "clear": _clear}
    try:
        asyncio.run(_run(fd, stream, asked, works[asked["job"]]))
    except RingfenceError as error:
        _answer(stream, {"error": error.as_json(), "exit_code": error.exit_code})
        return error.exit_code
    except OSError as error:
        kind = DiskFull if no_room(error) else Unavailable
        told = kind(f"{error.filename or 'the state'}: {error.strerror}", remedy="df -h; ringfence doctor")
        _answer(stream, {"error": told.as_json(), "exit_code": told.exit_code})
        return told.exit_code
    return 0


def _answer(stream: socket.socket, answer: Mapping[str, Any]) -> None:
    try:
        stream.sendall(json.dumps(answer).encode() + b"\n")
    except OSError:  # who asked has gone
        logging.getLogger("ringfence.jobs").error("%s", answer)


async def _run(fd: int, stream: socket.socket, asked: Mapping[str, Any], work: Any) -> None:
    settings = Settings.from_json(asked["settings"])
    client = SpawnerClient(fd)
    try:
        driver = Bubblewrap(Path(settings.home), client, FilesClient)
        facts = await work(Job(settings, asked["options"], stream, driver, await driver.facts()))
    finally:
        client.close()
    if facts is not None:
        _answer(stream, {"facts": facts})


# --- backup ----------------------------------------------------------------------------------------------------------


async def _backup(job: Job) -> None:
    """The stream is the file."""
    options = job.options
    wish = Wish(options["with_key"], options["snapshots"], options["force"])
    facts = {"release": VERSION, "installation": job.settings.installation, "mode": job.settings.mode}
    can = freezes(job.facts)
    maker = Maker(
        whole_of(job.settings, options["settings_text"]),
        lambda box: still_alone(job.driver, box, freezes=can, force=wish.force),
        facts,
        wish,
        app.SystemClock().now,
    )
    async with aclosing(maker.stream()) as parts:
        async for part in parts:
            await asyncio.to_thread(job.stream.sendall, part)


# --- restore ---------------------------------------------------------------------------------------------------------


async def _restore(job: Job) -> dict[str, Any]:
    """Trees and files first, the rows last: a database of a server's is changed once everything else is there."""
    with job.stream.makefile("rb") as source, tempfile.TemporaryFile(dir=Path(job.settings.home) / "run") as rows:
        reading = await asyncio.to_thread(Reading, source)
        putting = _Putting(job, rows)
        await putting.all(Flow(reading.parts()))
        await asyncio.to_thread(rows.seek, 0)
        facts = await verbs.run(_verb(job), "restore", job.options, rows)
        here = {"uids": putting.uids, "archived": putting.archived, "kept": sorted(putting.kept)}
        settled = await verbs.run(_verb(job), "settle", here, None)
        await restored(job.settings, facts["generation"])
    return {**facts, **settled, "boxes": len(putting.uids), "with_key": putting.key, "gone": reading.index["gone"]}


def _verb(job: Job) -> verbs.Job:
    ids = app.SystemIds()
    return verbs.Job(
        url=job.settings.database,
        installation=job.settings.installation,
        release=VERSION,
        clock=app.SystemClock(),
        ids=ids,
        signer=signer_of(job.settings, ids.new("krn")),
        by=str(job.options["by"]),
        alone=True,
    )


class Flow:
    """Parts of a backup, item by item. Each is read in a thread."""

    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts
        self._next: Part | None = None

    async def item(self) -> str | None:
        """The name of the next one; None: that was all, and it was whole. The one before must have been read."""
        if self._next is None:
            self._next = await asyncio.to_thread(next, self._parts, None)
        return None if self._next is None else self._next.item

    async def content(self, item: str) -> AsyncGenerator[bytes, None]:
        while await self.item() == item:
            assert self._next is not None
            part, self._next = self._next, None
            yield part.data

    async def small(self, item: str) -> bytes:
        found = bytearray()
        async for data in self.content(item):
            found += data
            if len(found) > MOST_SMALL:
                raise bad(f"{item} is larger than {MOST_SMALL} bytes")
        return bytes(found)


class _Putting:
    """Each item in its place."""

    def __init__(self, job: Job, rows: IO[bytes]) -> None:
        self._job, self._rows = job, rows
        self._home = Path(job.settings.home)
        self._listed: dict[BoxId, Held] = {}
        self.uids: dict[str, int] = {}  # of each box that is here
        self.archived: list[str] = []  # those of them whose tree is in their archive
        self.kept: set[str] = set()  # ids of copies whose file is here
        self.key = False  # of the vault

    async def all(self, flow: Flow) -> None:
        while (item := await flow.item()) is not None:
            check_item(item)
            if item == DATABASE:
                async for data in flow.content(item):
                    await asyncio.to_thread(self._rows.write, data)
            elif item == BOXES:
                await self._boxes(await flow.small(item))
            elif (box := box_of(item)) is not None:
                await self._tree(box, flow.content(item))
            elif (name := snapshot_of(item)) is not None:
                await self._copy(name, flow.content(item))
            else:
                await self._small(item, await flow.small(item))
        for held in self._listed.values():
            if held.archive in self.kept and held.id not in self.uids:  # its place; its next start puts its tree there
                self.uids[held.id] = await self._job.driver.provision(held.id, held.kind, held.limits)
                self.archived.append(held.id)

    async def _small(self, item: str, data: bytes) -> None:
        name = vault_of(item)
        if item == SETTINGS or name is None:  # the settings were put in their place by who asked
            return
        try:
            await asyncio.to_thread(put_small, self._home / "vault", name, data)
        except (ValueError, AttributeError) as error:
            raise bad(f"{item}: {error}") from error
        self.key = self.key or name == "master.key"

    async def _boxes(self, text: bytes) -> None:
        for line in text.splitlines():
            try:
                box = held_of(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise bad("what it says of a box is no JSON") from error
            self._listed[box.id] = box

    async def _tree(self, id_: BoxId, data: AsyncGenerator[bytes, None]) -> None:
        box = self._listed.get(id_)
        if box is None or id_ in self.uids:
            raise bad(f"it has a tree of a box that it does not name: {id_}")
        uid = await self._job.driver.provision(box.id, box.kind, box.limits)
        async with aclosing(data), self._job.driver.unpack(box.id, box.limits) as put:
            await put(data)
        self.uids[box.id] = uid

    async def _copy(self, name: str, data: AsyncIterator[bytes]) -> None:
        path = self._home / "snapshots" / name
        await asyncio.to_thread(write_new, path, b"")
        with await asyncio.to_thread(path.open, "ab") as file:
            async for piece in data:
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(_settled, file)
        self.kept.add(name.split(".")[0])


def _settled(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


# --- stop, clear -----------------------------------------------------------------------------------------------------


async def _stop(job: Job) -> dict[str, Any]:
    """Every box of the installation, whatever the database has."""
    stopped, left = [], []
    for box in await job.driver.running():
        try:
            await job.driver.stop(box)
            stopped.append(box)
        except RingfenceError as error:
            left.append(f"box {box}: {error.message}")
    if left:
        raise Unavailable(
            f"{len(stopped)} boxes were stopped, and {len(left)} not: {left[0]}", remedy="try again", left=left[:100]
        )
    return {"stopped": stopped}


async def _clear(job: Job) -> dict[str, Any]:
    """Takes every box away, with its tree. What cannot be is named, and keeps no other from it."""
    removed, left = [], []
    for box in await job.driver.boxes():
        try:
            await job.driver.remove(box)
            removed.append(box)
        except RingfenceError as error:
            left.append(f"box {box}: {error.message}")
    return {"removed": removed, "left": left}
