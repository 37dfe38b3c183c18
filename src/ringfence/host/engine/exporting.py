"""A user's own data as one .tar.gz, made while it is sent; and what `user rm` would take, without doing it.

Flat in memory: a page of rows, a MiB of lines or a piece of a file at a time. The last member says that it is whole. It must
never read anything on behalf of the user that the user could not read: all of it is asked for by the user's own id.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew
from ringfence.host.engine.disk import DiskMeter
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.files import in_place
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.life.ahead import Ahead
from ringfence.host.engine.life.shelving import begun
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.boxes import Box, Observed
from ringfence.host.kernel.errors import Conflict, NotFound, Refused
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.life.exporting import PAGE, STEPS, Place, Removal
from ringfence.host.kernel.life.tar_members import END, header, member, padding
from ringfence.host.kernel.life.usage import MOST_ROWS, NAMES
from ringfence.host.kernel.outward.credentials import Owner
from ringfence.host.kernel.people import Actor, User
from ringfence.host.kernel.ports import BoxFiles, FileInfo

QUARANTINED = "the box is in quarantine: an operator may have its files"
FORMAT = 1  # of the archive: manifest.json says it
PART = 1 << 20  # bytes of lines in one member
ROOTS = ((b".", b"/home/user"), (b"/workspace", b"/workspace"))  # as files are asked for, and as a command sees them
MOST_TOLD = 1000  # names of files that were left out; the rest is counted
_ENTRIES = 64  # of a folder at a time: a path has 2,048 folders at most (PATH_MAX), of each of which so many are held
_AHEAD = 16  # pieces that are made before somebody takes them, of a MiB at the most
_LEVEL = 1  # of gzip: what is in boxes is code and archives; a higher level takes three times as long for a tenth
_OFF_LOOP = 64 * 1024  # bytes that are packed in a thread: fewer take less than a ms

Rows = AsyncIterator[list[dict[str, Any]]]


@dataclass(slots=True)
class _Told:
    """What manifest.json says."""

    counts: dict[str, int] = field(default_factory=dict)
    file_bytes: int = 0
    left_out: list[dict[str, str]] = field(default_factory=list)
    more_left_out: int = 0

    def leave_out(self, path: bytes, why: str) -> None:
        if len(self.left_out) < MOST_TOLD:
            self.left_out.append({"path": path.decode(errors="backslashreplace"), "why": why})
        else:
            self.more_left_out += 1


class Exports:
    def __init__(self, parts: Parts, crew: Crew, doors: Doors, bringup: BringUp, meter: DiskMeter) -> None:
        self._parts, self._crew, self._doors, self._bringup, self._meter = parts, crew, doors, bringup, meter

    # --- what a removal would take ----------------------------------------------------------------------------------

    async def removal(self, actor: Actor, tenant: str, user: str) -> Removal:
        """Changes nothing. Refused, NotFound."""
        target = await self._doors.user(Action.USER_REMOVAL, actor, tenant, user)
        found = await self._parts.store.exporting.removal(target.id)
        box = await home_of(self._parts, target)
        use = await self._meter.of(box) if box.uid else None
        return replace(
            found,
            box={
                "box": box.id,
                "observed": box.observed.value,
                "disk_bytes": use.used if use is not None else 0,
                "inodes": use.inodes if use is not None else 0,
            },
        )

    # --- the archive ------------------------------------------------------------------------------------------------

    def open(self, actor: Actor, tenant: str, user: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Bytes of a .tar.gz. Whoever may not is told before there is a byte; what fails later cuts it off."""
        return self._open(actor, tenant, user)

    @asynccontextmanager
    async def _open(self, actor: Actor, tenant: str, user: str) -> AsyncIterator[AsyncIterator[bytes]]:
        target = await self._doors.user(Action.USER_EXPORT, actor, tenant, user)
        home = await home_of(self._parts, target)
        # What is held of the box is let go of when nobody takes the bytes any more, by whoever makes them.
        async with aclosing(Ahead(self._crew, "export", parts=_AHEAD).of(self._made(actor, target, home))) as stream:
            yield await begun(stream)

    async def _made(self, actor: Actor, target: User, home: Box) -> AsyncGenerator[bytes, None]:
        async with AsyncExitStack() as stack:
            closed = home.quarantined_at is not None and not actor.operator
            if not closed:
                place = in_place(self._parts, self._bringup, home, operator=actor.operator)
                home = await stack.enter_async_context(place)
            members = self._members(target, home, QUARANTINED if closed else "")
            async for piece in await stack.enter_async_context(aclosing(_packed(members))):
                yield piece

    async def _members(self, user: User, box: Box, closed: str) -> AsyncGenerator[bytes, None]:
        """`closed`: why there are no files."""
        told, at = _Told(), self._parts.clock.now()
        mtime = int(at.timestamp())
        async for piece in self._rows(user, told, mtime):
            yield piece
        if closed:
            told.leave_out(b"/", closed)
        else:
            async for piece in self._files(box, told, mtime):
                yield piece
        yield member(b"export/manifest.json", _document(self._manifest(user, told, at)), mtime)
        yield END

    def _manifest(self, user: User, told: _Told, at: datetime) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "whole": True,
            "tenant": user.tenant_name,
            "user": user.name,
            "begun_at": at.astimezone(UTC).isoformat(),
            "installation": self._parts.config.installation,
            "release": self._parts.config.version,
            "counts": told.counts,
            "file_bytes": told.file_bytes,
            "left_out": told.left_out,
            "more_left_out": told.more_left_out,
        }

    # --- rows -------------------------------------------------------------------------------------------------------

    async def _rows(self, user: User, told: _Told, mtime: int) -> AsyncIterator[bytes]:
        yield member(b"export/user.json", _document(_person(user)), mtime)
        places = await self._parts.store.exporting.places(user.id)
        sources: dict[str, Callable[[], Rows]] = {
            "threads": lambda: _once([place.facts for place in places]),
            "messages": lambda: self._messages(user, places),
            "runs": lambda: self._runs(user),
            "steps": lambda: self._steps(user),
            "gates": lambda: self._gates(user),
            "usage": lambda: self._usage(user),
            "credentials": lambda: self._credentials(user),
            "tokens": lambda: self._tokens(user),
        }
        for name, pages in sources.items():
            told.counts[name] = 0
            async for part in _parts(pages(), name, told.counts, mtime):
                yield part

    async def _messages(self, user: User, places: list[Place]) -> Rows:
        exporting = self._parts.store.exporting
        for place in places:
            async for page in _paged(partial(exporting.messages, place, user.id), 0, PAGE, "cursor"):
                yield page

    def _runs(self, user: User) -> Rows:
        return _paged(partial(self._parts.store.exporting.runs, user.id), "", PAGE, "id")

    async def _steps(self, user: User) -> Rows:
        exporting = self._parts.store.exporting
        async for some in self._runs(user):
            for run in some:
                async for page in _paged(partial(exporting.steps, RunId(run["id"]), user.id), 0, STEPS, "n"):
                    yield page

    async def _gates(self, user: User) -> Rows:
        async for some in self._runs(user):
            for run in some:
                yield await self._parts.store.exporting.gates(RunId(run["id"]), user.id)

    async def _usage(self, user: User) -> Rows:
        rows = await self._parts.store.usage.days(user.tenant, user.id, "0001-01-01", "9999-12-31", MOST_ROWS)
        yield [
            {"day": row.day, "starts": row.starts, "pauses": row.pauses, "model_tokens": row.tokens}
            | {name: getattr(row.amount, name) for name in NAMES}
            for row in rows
        ]

    async def _credentials(self, user: User) -> Rows:
        """Names. Whoever wants a value back has it where it came from: the vault gives none to people."""
        visible = await self._parts.store.credentials.visible(user.id)
        yield [
            {"name": each.name, "own": each.owner is not Owner.TENANT and each.user == user.id, "version": each.version}
            for each in visible
        ]

    async def _tokens(self, user: User) -> Rows:
        yield [
            {
                "id": each.id,
                "scopes": sorted(each.scopes),
                "note": each.note,
                "created_at": each.created_at.isoformat(),
                "expires_at": None if each.expires_at is None else each.expires_at.isoformat(),
            }
            for each in await self._parts.store.tokens.all(user.id)
        ]

    # --- files ------------------------------------------------------------------------------------------------------

    async def _files(self, box: Box, told: _Told, mtime: int) -> AsyncIterator[bytes]:
        told.counts["files"] = 0
        if box.observed is Observed.ABSENT:
            return
        async with self._parts.driver.files(box.id) as files:
            with self._bringup.slot(box.id).cuttable(files.cut):
                for root, shown in ROOTS:
                    yield header(b"export/files" + shown, "directory", mode=0o700, mtime=mtime)
                    async for piece in _tree(files, root, shown, told):
                        yield piece


@dataclass(slots=True)
class _Level:
    """A folder on the way to where we are: what of it is still to come."""

    folder: bytes  # from the root on, with a slash before it
    entries: list[FileInfo] = field(default_factory=list)  # the next one last
    after: bytes | None = None
    more: bool = True


async def _tree(files: BoxFiles, root: bytes, shown: bytes, told: _Told) -> AsyncIterator[bytes]:
    """All that is below, in depth, as what is `shown`: of each folder on the way a page is held, however many folders there are
    beside it. A box that works goes on: what goes meanwhile is left out, and said to be."""
    way = [_Level(b"")]
    while way:
        level = way[-1]
        if not level.entries:
            if not level.more or not await _page(files, root, shown, level, told):
                way.pop()
            continue
        entry = level.entries.pop()
        path = level.folder + b"/" + entry.name
        if entry.kind == "directory":
            yield _entry(shown + path, entry, "directory")
            way.append(_Level(path))
            continue
        async for piece in _leaf(files, root + path, shown + path, entry, told):
            yield piece


async def _page(files: BoxFiles, root: bytes, shown: bytes, level: _Level, told: _Told) -> bool:
    """Whether there is another one."""
    try:
        found = await files.list(root + level.folder, level.after, _ENTRIES)
    except (NotFound, Refused, Conflict) as error:  # a helper that has ended is no reason to go on
        told.leave_out(shown + level.folder, error.message)
        return False
    level.more = len(found) == _ENTRIES
    if found:
        level.after = found[-1].name
    level.entries = found[::-1]
    return bool(found)


async def _leaf(files: BoxFiles, source: bytes, path: bytes, entry: FileInfo, told: _Told) -> AsyncIterator[bytes]:
    if entry.kind == "other":
        told.leave_out(path, "no regular file")
        return
    if entry.kind == "symlink":
        told.counts["files"] += 1
        yield _entry(path, entry, "symlink")
        return
    try:
        async with files.fetch(source) as (info, data):
            yield _entry(path, info, "file")
            left = info.size
            async for piece in data:
                yield piece[:left]
                left -= len(piece[:left])
            if left:  # the head has promised them
                told.leave_out(path, f"it shrank while it was read: its last {left} bytes are zeros")
                async for piece in _zeros(left):
                    yield piece
            yield padding(info.size)
            told.counts["files"] += 1
            told.file_bytes += info.size
    except (NotFound, Refused, Conflict) as error:  # it went, or is something else by now
        told.leave_out(path, error.message)


async def _zeros(count: int) -> AsyncIterator[bytes]:
    while count:
        yield bytes(min(count, PART))
        count -= min(count, PART)


def _entry(path: bytes, info: FileInfo, kind: Literal["file", "directory", "symlink"]) -> bytes:
    return header(
        b"export/files" + path,
        kind,
        size=info.size,
        mode=info.mode,
        mtime=info.mtime_ns // 10**9,
        target=info.target or b"",
    )


def _person(user: User) -> dict[str, Any]:
    return {
        "tenant": user.tenant_name,
        "user": user.name,
        "id": user.id,
        "kind": user.kind.value,
        "created_at": user.created_at.isoformat(),
    }


def _document(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, indent=2).encode() + b"\n"


async def _paged(ask: Callable[[Any], Awaitable[list[dict[str, Any]]]], first: Any, size: int, key: str) -> Rows:
    """`ask`: the rows behind a key; fewer than `size` are the last."""
    page = await ask(first)
    while page:
        yield page
        page = await ask(page[-1][key]) if len(page) == size else []


async def _once(rows: list[dict[str, Any]]) -> Rows:
    yield rows


async def _parts(pages: Rows, name: str, counts: dict[str, int], mtime: int) -> AsyncIterator[bytes]:
    """JSON lines in members of a MiB or a page, whatever is more. None at all: one that is empty."""
    number, lines, size = 0, [], 0
    async for page in pages:
        counts[name] += len(page)
        lines += [json.dumps(row).encode() + b"\n" for row in page]
        size = sum(map(len, lines))
        if size >= PART:
            number += 1
            yield member(f"export/{name}/{number:06d}.jsonl".encode(), b"".join(lines), mtime)
            lines = []
    if lines or not number:
        yield member(f"export/{name}/{number + 1:06d}.jsonl".encode(), b"".join(lines), mtime)


async def _packed(members: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """gzip. Large pieces are packed in a thread: nobody else is to wait for them."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    try:
        async for piece in members:
            packed = (
                await asyncio.to_thread(packer.compress, piece) if len(piece) >= _OFF_LOOP else packer.compress(piece)
            )
            if packed:
                yield packed
        yield packer.flush()
    finally:
        await members.aclose()
