"""A backup of the whole while boxes are archived, started, at work and waited for: every content is in it once, and no box is held by
who does not read."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import random
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from ringfence.host.drivers.shelf import FileShelf
from ringfence.host.engine import exporting
from ringfence.host.engine.life import backups, copies
from ringfence.host.engine.life.ahead import Ahead
from ringfence.host.kernel.boxes import Observed, Rest
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.backup_tar import PART, Reading
from ringfence.host.kernel.life.backups import Wish, box_of, snapshot_of
from ringfence.host.kernel.life.copies import How, Packing
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.ports import Sight
from ringfence.host.store import verbs
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.whole_state import WholeState
from tests.support.databases import address
from tests.support.engine_rig import CONFIG, OPERATOR, Numbers, RealClock, Rig, eventually, rig
from tests.support.store_work import KEYS

NEVER = Rests(0, 0, 0, 0, 0)
PEOPLE = ("alice", "bob", "carol")
ANOTHER = Wish()


class Gate:
    """Something that is held on its way until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def pass_by(self) -> None:
        self.reached.set()
        await self.open.wait()


def whole_of(folder: Path) -> WholeState:
    for name in ("run", "snapshots", "vault"):
        (folder / name).mkdir(exist_ok=True)

    async def dump(file: IO[bytes]) -> dict[str, Any]:
        signer = Signer("krn", KEYS)
        job = verbs.Job(address(folder), CONFIG.installation, "1", RealClock(), Numbers(), signer, "", alone=False)
        return await verbs.run(job, "backup", {"whole": True}, file)

    return WholeState(folder, frozenset({0}), dump, lambda: "")


@asynccontextmanager
async def backing_up(folder: Path) -> AsyncIterator[Rig]:
    """Each has one file, with their name in it."""
    parts = {"shelf": FileShelf(folder), "whole": whole_of(folder)}
    async with rig(folder, PEOPLE, parts=parts, rests=NEVER, rest_seconds=3600.0) as r:
        for name in PEOPLE:
            assert (await r.exec(name, f"echo {name} > who")).code == 0
        yield r


async def said(r: Rig, user: str) -> bytes:
    """What the box finds in its file."""
    outcome = await r.exec(user, "cat who")
    return outcome.stdout.head if outcome.stdout is not None else b""


def held_before(r: Rig, user: str) -> Gate:
    """The next reading of that user's tree."""
    gate, pack = Gate(), r.driver.pack

    @asynccontextmanager
    async def held(box: BoxId) -> AsyncIterator[Packing]:
        if box == r.box(user).id and not gate.open.is_set():
            await gate.pass_by()
        async with pack(box) as packing:
            yield packing

    r.driver.pack = held  # type: ignore[method-assign,assignment]
    return gate


def large(r: Rig) -> None:
    """What reading any tree gives is longer than what is made ahead."""

    class Many:
        copied = None

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(8):
                yield bytes(PART)

    @asynccontextmanager
    async def pack(box: BoxId) -> AsyncIterator[Many]:
        yield Many()

    r.driver.pack = pack  # type: ignore[method-assign,assignment]


async def made(r: Rig, wish: Wish = ANOTHER) -> bytes:
    async with aclosing(await r.engine.backups.create(OPERATOR, wish)) as parts:
        return b"".join([part async for part in parts])


class Content:
    """Of a backup that is whole. `trees`: by user, the files of each; `archives`: by user, which have their archive in it."""

    def __init__(self, r: Rig, file: bytes) -> None:
        items: dict[str, bytes] = {}
        reading = Reading(io.BytesIO(file))
        for part in reading.parts():
            items[part.item] = items.get(part.item, b"") + part.data
        self.index = reading.index
        users = {r.box(name).id: name for name in PEOPLE}
        held = [json.loads(line) for line in items["boxes.json"].splitlines()]
        self.trees = {users[box]: _files(data) for item, data in items.items() if (box := box_of(item)) in users}
        files = [name.split(".")[0] for item in items if (name := snapshot_of(item)) is not None]
        self.archives = [users[each["id"]] for each in held if each["archive"] in files]
        self.copies = len(files)


def _files(data: bytes) -> dict[str, str]:
    return {name: bytes.fromhex(text).decode() for name, text in json.loads(data).items()}


async def archive(r: Rig, user: str) -> None:
    await r.engine.copies.archive(OPERATOR, "default", user, How())


# --- where the content lies ------------------------------------------------------------------------------------------


async def test_archived_and_started_meanwhile_everything_is_in_it_once(tmp_path: Path) -> None:
    """The rows say of bob that he has a tree, and of carol that she has none: by the time that theirs are read it is the reverse."""
    async with backing_up(tmp_path) as r:
        await archive(r, "carol")
        gate = held_before(r, "alice")
        making = asyncio.create_task(made(r))
        await gate.reached.wait()
        await archive(r, "bob")
        assert await said(r, "carol") == b"carol\n"
        gate.open.set()
        found = Content(r, await making)
        assert found.trees == {name: {"who": f"{name}\n"} for name in PEOPLE}
        assert (found.archives, found.copies, found.index["lacks"], found.index["gone"]) == ([], 0, [], [])


async def test_archived_anew_meanwhile_is_what_it_is_now(tmp_path: Path) -> None:
    """Another archive, of which the rows in the backup know nothing."""
    async with backing_up(tmp_path) as r:
        await archive(r, "carol")
        gate = held_before(r, "alice")
        making = asyncio.create_task(made(r))
        await gate.reached.wait()
        await r.exec("carol", "echo later > who")
        await archive(r, "carol")
        gate.open.set()
        found = Content(r, await making)
        assert found.trees["carol"] == {"who": "later\n"}
        assert found.copies == 0


async def test_what_is_archived_is_in_it_as_that(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        await archive(r, "carol")
        await r.engine.copies.snapshot(OPERATOR, "default", "alice", "hers")
        found = Content(r, await made(r))
        assert (sorted(found.trees), found.archives, found.copies) == (["alice", "bob"], ["carol"], 1)
        assert Content(r, await made(r, Wish(snapshots=True))).copies == 2


async def test_an_archive_that_is_lost_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        for name in ("bob", "carol"):
            await archive(r, name)
        copy = await r.store.snapshots.archive(r.box("bob").id)
        assert copy is not None
        await r.store.snapshots.remove(copy.id)
        for file in (tmp_path / "snapshots").iterdir():
            file.unlink()
        found = Content(r, await made(r))
        assert sorted(found.trees) == ["alice"]
        assert len(found.index["lacks"]) == 2


async def test_who_starts_an_archived_box_does_not_wait_for_its_reader(tmp_path: Path) -> None:
    """Its file is taken away by the start, and is read to its end all the same."""
    async with backing_up(tmp_path) as r:
        await archive(r, "carol")
        state = r.engine._parts.whole
        assert state is not None
        gate, snapshot = Gate(), state.snapshot

        async def slow(name: str) -> AsyncGenerator[bytes, None]:
            async with aclosing(snapshot(name)) as pieces:
                yield await anext(pieces)
                await gate.pass_by()
                async for piece in pieces:
                    yield piece

        state.snapshot = slow  # type: ignore[method-assign]
        making = asyncio.create_task(made(r))
        await gate.reached.wait()
        assert await said(r, "carol") == b"carol\n"
        assert not list((tmp_path / "snapshots").iterdir())
        gate.open.set()
        assert Content(r, await making).archives == ["carol"]


# --- work -----------------------------------------------------------------------------------------------------------


def cannot_freeze(r: Rig) -> None:
    r.engine._parts.facts["weak"] = ["no-freezer"]
    r.world.fail_freeze = [Unavailable("no freezer")] * 9


async def at_work_meanwhile(r: Rig, wish: Wish) -> tuple[asyncio.Task[bytes], Callable[[], Any], asyncio.Task[Any]]:
    """A backup on a host that cannot freeze, and a command that bob's box began after it was looked at, which ends when told."""
    cannot_freeze(r)
    gate = held_before(r, "alice")
    making = asyncio.create_task(made(r, wish))
    await gate.reached.wait()
    go = r.box("bob").folder / "go"
    script = "until [ -e go ]; do sleep 0.05; done; echo done > who"
    command = asyncio.create_task(r.exec("bob", script))
    await eventually(lambda: r.box("bob").commands, "the command")
    gate.open.set()
    return making, go.touch, command


async def test_who_began_work_meanwhile_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = asyncio.Event()
    async with backing_up(tmp_path) as r:
        check = r.engine._standing.check_idle

        def looked(slot: Any, waited: float = 0.0) -> None:
            try:
                check(slot, waited)
            except Conflict:
                waits.set()
                raise

        monkeypatch.setattr(r.engine._standing, "check_idle", looked)
        making, end, command = await at_work_meanwhile(r, Wish())
        await waits.wait()
        assert r.box("bob").running
        end()
        assert (await command).code == 0
        assert Content(r, await making).trees["bob"]["who"] == "done\n"


async def test_who_is_at_work_for_too_long_ends_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not touched; the file says why. Another backup is refused before its first byte."""
    monkeypatch.setattr(backups, "BUSY_SECONDS", 0.0)
    async with backing_up(tmp_path) as r:
        making, end, command = await at_work_meanwhile(r, Wish())
        with pytest.raises(Conflict, match="at work: a command"):
            await making
        with pytest.raises(Conflict, match="1 boxes are at work"):
            await made(r)
        end()
        assert (await command).code == 0
        assert Content(r, await made(r)).trees["bob"]["who"] == "done\n"


async def test_forced_it_is_stopped(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        making, _, command = await at_work_meanwhile(r, Wish(force=True))
        assert Content(r, await making).trees["bob"]["who"] == "bob\n"
        assert (await command).reason == "box_lost"


async def test_a_freeze_that_the_host_refuses_after_all(tmp_path: Path) -> None:
    """By what it says of itself it freezes: an idle box is stopped then, and none is lost."""
    async with backing_up(tmp_path) as r:
        r.world.fail_freeze = [Unavailable("no freezer")] * 3
        assert sorted(Content(r, await made(r)).trees) == list(PEOPLE)
        assert not r.box("alice").running


# --- readers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not taken in a moment is taken for gone."""
    for module in (backups, copies):
        monkeypatch.setattr(module, "Ahead", partial(Ahead, stall=0.2))


async def until_still(r: Rig, parts: AsyncIterator[bytes]) -> bytes:
    """What was taken until alice's box stood still."""
    taken = b""
    while r.box("alice").awake.is_set():
        taken += await anext(parts)
    return taken


@pytest.mark.usefixtures("impatient")
async def test_a_reader_who_stalls_holds_neither_the_box_nor_the_next_backup(tmp_path: Path) -> None:
    """Whoever reads on then is told why it has no end."""
    async with backing_up(tmp_path) as r:
        large(r)
        parts = await r.engine.backups.create(OPERATOR, Wish())
        taken = await until_still(r, parts)
        with pytest.raises(Conflict, match="a backup is being made"):
            await made(r)
        await eventually(r.box("alice").awake.is_set, "the box goes on")
        await eventually(lambda: not r.engine.backups._one.locked(), "the next may begin")
        assert await said(r, "alice") == b"alice\n"
        another = await r.engine.backups.create(OPERATOR, Wish())
        assert (await anext(another))[:13] == b"manifest.json"
        await another.aclose()
        with pytest.raises(Failed, match="nobody took a part of the backup"):
            while True:
                taken += await anext(parts)
        with pytest.raises(Invalid, match="not made whole: nobody took a part"):
            list(Reading(io.BytesIO(taken)).parts())


async def test_a_reader_who_leaves_lets_go_at_once(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        large(r)
        parts = await r.engine.backups.create(OPERATOR, Wish())
        await until_still(r, parts)
        await parts.aclose()
        await eventually(r.box("alice").awake.is_set, "the box goes on")
        await eventually(lambda: not r.engine.backups._one.locked(), "the next may begin")


async def test_a_reader_who_leaves_while_a_box_is_waited_for(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        await r.store.boxes.begin(r.box("alice").id, "restore", 3600.0)
        parts = await r.engine.backups.create(OPERATOR, Wish())
        taking = asyncio.create_task(_all(parts))
        await eventually(r.engine.backups._one.locked, "it has begun")
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await parts.aclose()
        await eventually(lambda: not r.engine.backups._one.locked(), "the next may begin")
        assert (await r.store.boxes.get(r.box("alice").id)).verb == "restore"


async def _all(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


@pytest.mark.usefixtures("impatient")
async def test_a_reader_of_an_export_who_stalls_holds_no_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "AHEAD", 1)
    async with backing_up(tmp_path) as r:
        large(r)
        async with r.engine.copies.export(OPERATOR, "default", "alice") as parts:
            await until_still(r, parts)
            await eventually(r.box("alice").awake.is_set, "the box goes on")
            with pytest.raises(Failed, match="nobody took a part of the export"):
                await _all(parts)
            assert (await r.store.boxes.get(r.box("alice").id)).verb == ""
            assert await said(r, "alice") == b"alice\n"


async def test_what_keeps_an_export_from_beginning_is_told_before_a_byte(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        await r.store.boxes.begin(r.box("alice").id, "restore", 3600.0)
        with pytest.raises(Conflict, match="restore is under way"):
            async with r.engine.copies.export(OPERATOR, "default", "alice"):
                pass


async def test_a_users_export_that_nobody_reads_keeps_no_tree_from_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are let go of, so that the box can be archived; the archive that was begun has no end."""
    monkeypatch.setattr(exporting, "Ahead", partial(Ahead, stall=0.2))
    async with backing_up(tmp_path) as r:
        (r.box("alice").folder / "noise").write_bytes(_noise(40 << 20))
        async with r.engine.exports.open(r.actors["alice"], "default", "alice") as parts:
            begun = await anext(parts)
            await eventually(lambda: not r.engine._bringup.slot(r.box("alice").id).using_files, "the files are free")
            await archive(r, "alice")
            with pytest.raises(Failed, match="nobody took a part of the export"):
                begun += await _all(parts)
        with pytest.raises(EOFError), tarfile.open(fileobj=io.BytesIO(gzip.decompress(begun))):
            pass
        assert (await r.store.boxes.get(r.box("alice").id)).rest is Rest.ARCHIVED


def _noise(size: int) -> bytes:
    """What does not pack."""
    return random.Random(7).randbytes(size)


# --- the stream by itself -------------------------------------------------------------------------------------------


class Held:
    """Something that is held while parts are made."""

    def __init__(self) -> None:
        self.free = asyncio.Event()

    async def parts(self, count: int) -> AsyncGenerator[bytes, None]:
        try:
            for n in range(count):
                yield b"%d" % n
        finally:
            self.free.set()


async def test_a_reader_who_takes_too_little_is_cut_off(tmp_path: Path) -> None:
    """Each part in time, but all of them too slowly: patience is used up. Control: without a least rate it is not."""
    async with rig(tmp_path, ()) as r:
        for least, over in ((1 << 30, True), (0, False)):
            held = Held()
            ahead = Ahead(r.engine._crew, "stream", stall=30.0, least=least)
            ahead._waited = 29.9999  # seconds, so far
            stream = ahead.of(held.parts(5))
            assert await anext(stream) == b"0"
            if over:
                await held.free.wait()
                with pytest.raises(Failed):
                    await _all(stream)
            else:
                assert await _all(stream) == b"1234"


async def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    async with rig(tmp_path, ()) as r:
        held = Held()
        stream = Ahead(r.engine._crew, "stream").of(held.parts(50))
        assert await anext(stream) == b"0"
        await r.engine.stop()
        assert held.free.is_set()
        with pytest.raises(Unavailable, match="stopping"):
            await _all(stream)


async def test_a_box_without_its_directory_keeps_no_other_out_of_the_backup(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        observe, gone = r.driver.observe, r.box("alice").id

        async def observed(box: BoxId) -> Sight:
            seen = await observe(box)
            return replace(seen, state=Observed.ABSENT) if box == gone else seen

        def missing(
            box: BoxId,
        ) -> AbstractAsyncContextManager[Packing]:  # as the driver says it of a directory that is away
            if box == gone:
                raise Unavailable("the directory of the box is missing")
            return pack(box)

        pack, r.driver.pack, r.driver.observe = r.driver.pack, missing, observed  # type: ignore[method-assign, assignment]
        found = Content(r, await made(r))
        assert (set(found.trees), found.index["gone"]) == ({"bob", "carol"}, [gone])


async def test_boxes_go_on_when_the_server_stops_amid_a_backup(tmp_path: Path) -> None:
    async with backing_up(tmp_path) as r:

        class Large:
            copied = None

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for _ in range(8):
                    await asyncio.sleep(0.1)
                    yield bytes(PART)

        @asynccontextmanager
        async def pack(box: BoxId) -> AsyncIterator[Any]:
            yield Large()

        r.driver.pack = pack  # type: ignore[method-assign]
        stream = await r.engine.backups.create(OPERATOR, Wish())
        async for _ in stream:
            if not r.box("alice").awake.is_set():
                break
        assert not r.box("alice").awake.is_set()
        await stream.aclose()
        await r.engine.stop()
        assert r.box("alice").awake.is_set()
