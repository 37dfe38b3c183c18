"""Nothing that was acknowledged is lost with a box's tree being packed, unpacked or replaced; and what is packed by itself, when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ringfence.host.engine.life import archives
from ringfence.host.kernel.boxes import Box, Rest
from ringfence.host.kernel.errors import Conflict, Failed
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import CopyKind, How, Snapshot
from ringfence.host.kernel.life.rests import Rests
from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR, Rig, eventually
from tests.support.life_rig import NEVER, Gate, HeldShelf, got, put, scene

ARCHIVED_AFTER = Rests(0, 0, archive_after=100)


@asynccontextmanager
async def archiving(folder: Path, rests: Rests = NEVER) -> AsyncIterator[tuple[Rig, HeldShelf]]:
    async with scene(folder, rests=rests, rest_seconds=3600.0) as made:
        yield made


async def archived(r: Rig) -> None:
    await r.engine.copies.archive(OPERATOR, "default", "alice", How())


async def begun(r: Rig, shelf: HeldShelf, name: str = "kept") -> tuple[Gate, asyncio.Task[None]]:
    """The archiving of a box with one file, held when it has read the tree and before anything of it is written."""
    await put(r, name, b"hers")
    gate = shelf.gate = Gate()
    packing = asyncio.create_task(archived(r))
    await gate.reached.wait()
    return gate, packing


# --- the look at copies -----------------------------------------------------------------------------------------------


async def test_a_look_leaves_a_copy_that_became_whole_meanwhile(tmp_path: Path) -> None:
    """It has read the row as one that is being made. Control: a row that nobody makes is taken away by the same look."""
    async with archiving(tmp_path) as (r, shelf):
        await put(r, "other", b"his", "bob")
        gate, packing = await begun(r, shelf)
        box = await r.store.boxes.get(r.box("bob").id)
        abandoned = await r.store.snapshots.begin(r.ids.new("snp"), box, CopyKind.BEFORE, "")
        here, looking = r.store.snapshots.here, Gate()

        async def slow() -> list[Snapshot]:
            found = await here()
            await looking.pass_by()
            return found

        r.store.snapshots.here = slow  # type: ignore[method-assign]
        look = asyncio.create_task(r.engine._shelving.look())
        await looking.reached.wait()
        r.store.snapshots.here = here  # type: ignore[method-assign]
        assert [row.whole for row in await here()] == [False, False]
        gate.open.set()
        await packing
        looking.open.set()
        await look
        assert [row.id == abandoned.id for row in await here()] == [False]
        assert await got(r, "kept") == b"hers"


# --- files meanwhile --------------------------------------------------------------------------------------------------


async def test_what_is_put_while_a_box_is_archived_is_refused_or_kept(tmp_path: Path) -> None:
    """At each of the places where it would vanish: while the tree is read, and before it is emptied."""
    async with archiving(tmp_path) as (r, shelf):
        reset, emptying = r.driver.reset, Gate()
        r.driver.reset = emptying.before(reset)  # type: ignore[method-assign, assignment]
        packing_held, packing = await begun(r, shelf)
        with pytest.raises(Conflict, match="put away, or replaced"):
            await put(r, "meanwhile", b"new")
        with pytest.raises(Conflict, match="put away, or replaced"):
            async with r.engine.exports.open(r.actors["alice"], "default", "alice"):
                pass
        packing_held.open.set()
        await emptying.reached.wait()
        late = asyncio.create_task(put(r, "late", b"new"))  # its row says archived: it waits, and unpacks
        emptying.open.set()
        await packing
        await late
        assert (await got(r, "kept"), await got(r, "late")) == (b"hers", b"new")


async def test_who_came_before_is_waited_for(tmp_path: Path) -> None:
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        sending = Gate()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"begun, "
            await sending.pass_by()
            yield b"ended"

        alice = r.actors["alice"]
        putting = asyncio.create_task(r.engine.files.put(alice, "default", "alice", b"slow", slowly(), 0o600))
        await sending.reached.wait()
        packing = asyncio.create_task(archived(r))
        slot = r.engine._links.slot(r.box("alice").id)
        await eventually(lambda: slot.replacing or packing.done(), "it waits for who has files")
        sending.open.set()
        await asyncio.gather(putting, packing)
        assert (await r.store.boxes.get(slot.box)).rest is Rest.ARCHIVED
        assert (await got(r, "kept"), await got(r, "slow")) == (b"hers", b"begun, ended")


async def test_a_row_that_was_read_before_the_tree_was_put_away(tmp_path: Path) -> None:
    """The files are asked for between the two: the tree is unpacked first."""
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        provisioned, asked = r.engine._bringup.provisioned, Gate()

        async def slow(box: Box) -> Box:
            found = await provisioned(box)
            if not asked.reached.is_set():
                await asked.pass_by()
            return found

        r.engine._bringup.provisioned = slow  # type: ignore[method-assign]
        late = asyncio.create_task(put(r, "late", b"new"))
        await asked.reached.wait()
        await archived(r)
        asked.open.set()
        await late
        assert (await got(r, "kept"), await got(r, "late")) == (b"hers", b"new")


@pytest.mark.parametrize("verb", ["reset", "restore", "clone"])
async def test_nothing_is_put_into_a_tree_that_is_being_replaced(tmp_path: Path, verb: str) -> None:
    async with archiving(tmp_path) as (r, shelf):
        await put(r, "other", b"his", "bob")
        await put(r, "kept", b"hers")
        copies = r.engine.copies
        taken = await copies.snapshot(OPERATOR, "default", "alice", "before")
        verbs = {
            "reset": lambda: copies.reset(OPERATOR, "default", "alice", How()),
            "restore": lambda: copies.restore(OPERATOR, "default", "alice", taken.snapshot.id, How()),
            "clone": lambda: copies.clone(OPERATOR, "default", "bob", "alice", None, How()),
        }
        gate = shelf.gate = Gate()  # of the copy of before
        replacing = asyncio.create_task(verbs[verb]())
        await gate.reached.wait()
        with pytest.raises(Conflict, match="put away, or replaced"):
            await put(r, "meanwhile", b"new")
        gate.open.set()
        await replacing
        await put(r, "after", b"new")
        assert await got(r, "after") == b"new"
        listed = await r.engine.files.list(r.actors["alice"], "default", "alice", b".", None, 10)
        assert {one.name for one in listed} == {
            "reset": {b"after"},
            "restore": {b"after", b"kept"},
            "clone": {b"after", b"other"},
        }[verb]


async def test_files_that_are_never_done_hold_no_verb_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "FILES_SECONDS", 0.05)
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        alice = r.actors["alice"]
        async with r.engine.files.get(alice, "default", "alice", b"kept") as (_, pieces):
            with pytest.raises(Conflict, match="files of the box are being sent") as refused:
                await archived(r)
            assert "try again" in refused.value.remedy
            await put(r, "more", b"hers too")  # and nothing stays refused
            assert b"".join([piece async for piece in pieces]) == b"hers"
        await archived(r)
        assert await got(r, "more") == b"hers too"


async def test_no_tree_is_emptied_whose_archive_is_gone(tmp_path: Path) -> None:
    """As after an emptying that failed: asked again, the tree is all that there is."""
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        await archived(r)
        file = r.box("alice").folder / "kept"
        file.write_bytes(b"hers")
        await archived(r)
        assert not file.exists()  # control
        [archive] = await r.store.snapshots.here()
        await r.store.snapshots.remove(archive.id)
        file.write_bytes(b"hers")
        with pytest.raises(Failed, match="its archive is gone"):
            await archived(r)
        assert file.read_bytes() == b"hers"


# --- by itself --------------------------------------------------------------------------------------------------------


async def test_archived_so_long_after_it_stopped_and_its_files_were_last_used(tmp_path: Path) -> None:
    async with archiving(tmp_path, ARCHIVED_AFTER) as (r, _):
        clock = await by_hand(r)
        await stopped(r)
        clock.pass_seconds(60)
        await put(r, "file", b"hers")
        clock.pass_seconds(60)
        await r.engine._idle.put_away()
        assert await rest(r) is Rest.NONE
        clock.pass_seconds(39)
        await r.engine._activity.write()
        await r.engine._idle.put_away()
        assert await rest(r) is Rest.NONE
        clock.pass_seconds(1)
        await r.engine._idle.put_away()
        assert await rest(r) is Rest.ARCHIVED
        assert await got(r, "file") == b"hers"


async def test_a_box_that_stopped_under_a_release_that_did_not_note_when(tmp_path: Path) -> None:
    async with archiving(tmp_path, ARCHIVED_AFTER) as (r, _):
        clock = await by_hand(r)
        await stopped(r)
        await r.engine._activity.write()
        outside(tmp_path, "UPDATE boxes SET rested_at = NULL")
        await r.engine._idle.put_away()
        assert await rest(r) is Rest.NONE
        await r.restart()
        clock.jump(timedelta(seconds=101))
        await r.engine._idle.put_away()
        assert await rest(r) is Rest.ARCHIVED


async def test_a_box_that_is_used_while_another_one_is_packed_is_left(tmp_path: Path) -> None:
    async with archiving(tmp_path, ARCHIVED_AFTER) as (r, shelf):
        clock = await by_hand(r)
        await stopped(r)
        await stopped(r, "bob")
        clock.pass_seconds(101)
        gate = shelf.gate = Gate()
        packing = asyncio.create_task(r.engine._idle.put_away())
        await gate.reached.wait()
        await put(r, "file", b"his", "bob")
        gate.open.set()
        await packing
        assert (await rest(r), await rest(r, "bob")) == (Rest.ARCHIVED, Rest.NONE)


async def test_what_else_is_due_does_not_wait_for_a_tree_to_be_packed(tmp_path: Path) -> None:
    async with archiving(tmp_path, Rests(pause_after=50, stop_after=0, archive_after=100)) as (r, shelf):
        clock = await by_hand(r)
        await stopped(r)
        await r.exec("bob", "true")
        clock.pass_seconds(101)
        gate = shelf.gate = Gate()
        await r.engine._idle.look()
        await gate.reached.wait()
        assert await rest(r, "bob") is Rest.PAUSED
        await r.exec("bob", "true")
        clock.pass_seconds(101)
        await r.engine._idle.look()
        assert (await rest(r), await rest(r, "bob")) == (Rest.NONE, Rest.PAUSED)
        gate.open.set()
        while await rest(r) is not Rest.ARCHIVED:
            await asyncio.sleep(0.005)


async def test_what_was_due_is_looked_at_again_before_it_is_done(tmp_path: Path) -> None:
    """A box that was out of its time, and was started anew while others were brought to rest, is no longer."""
    async with archiving(tmp_path, Rests(0, 0, 0, time_to_live=100)) as (r, _):
        clock = await by_hand(r)
        await r.exec("alice", "true")
        clock.pass_seconds(101)
        get, reading = r.store.boxes.get, Gate()

        async def slow(box: BoxId) -> Box:
            if not reading.reached.is_set():
                await reading.pass_by()
            return await get(box)

        r.store.boxes.get = slow  # type: ignore[method-assign]
        look = asyncio.create_task(r.engine._idle.look())
        await reading.reached.wait()
        await r.engine.boxes.stop(OPERATOR, "default", "alice")
        await r.exec("alice", "true")
        reading.open.set()
        await look
        assert (r.box("alice").running, r.box("alice").starts) == (True, 2)
        clock.pass_seconds(101)
        await r.engine._idle.look()
        assert not r.box("alice").running


async def test_memory_that_cannot_be_relieved_ends_no_look(tmp_path: Path) -> None:
    async with archiving(tmp_path, Rests(pause_after=50, stop_after=0)) as (r, _):
        clock = await by_hand(r)
        await r.exec("alice", "true")
        clock.pass_seconds(51)

        async def fails() -> None:
            raise Failed("it cannot be stopped")

        r.engine._bringup.admission.relieve = fails  # type: ignore[method-assign]
        await r.engine._idle.look()
        assert await rest(r) is Rest.PAUSED


async def by_hand(r: Rig) -> HandClock:
    clock = r.with_parts["clock"] = HandClock()
    clock.jump(datetime.now(UTC) - clock.now())  # rows are of the store's
    await r.restart()
    return clock


async def stopped(r: Rig, name: str = "alice") -> None:
    await r.exec(name, "true")
    await r.engine.boxes.stop(OPERATOR, "default", name)


async def rest(r: Rig, name: str = "alice") -> Rest:
    return (await r.store.boxes.get(r.box(name).id)).rest
