"""Verbs of a box's life that meet each other, work, or a store that fails. On a driver without walls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import links
from ringfence.host.engine.life import archives, standing
from ringfence.host.kernel.errors import Busy, Conflict, Failed, Invalid, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import How
from ringfence.host.kernel.life.rests import Rests
from ringfence.host.kernel.life.states import State
from ringfence.host.kernel.ports import Sight
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.clocks import HandClock
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.life_rig import NEVER, Gate, at_work, got, put, scene

HOURS = 7200.0


async def verb_of(r: Rig, user: str = "alice") -> str:
    return (await r.store.boxes.get(r.box(user).id)).verb


# --- who waits for a box ----------------------------------------------------------------------------------------------


async def test_who_waits_for_a_box_that_a_sweep_looks_at_meets_the_others(tmp_path: Path) -> None:
    """The place where they meet stays, also when the sweep was the first to make it."""
    async with rig(tmp_path, rests=NEVER) as r:
        alice, observe, looking = r.box("alice").id, r.driver.observe, Gate()

        async def slow(box: BoxId) -> Sight:
            await looking.pass_by()
            return await observe(box)

        r.engine._links._slots.clear()  # as after a start: a stopped box has none yet
        row = await r.store.boxes.get(alice)
        r.driver.observe = slow  # type: ignore[method-assign]
        missing = asyncio.create_task(r.engine.debris._is_missing(row))
        await looking.reached.wait()
        slot = r.engine._links.slot(alice)
        limits = asyncio.create_task(r.engine.boxes.set_limits(OPERATOR, "default", "alice", {"pids": 100}))
        await eventually(lambda: slot.lock._waiters)  # no start, which the place would be kept for
        looking.open.set()
        assert not await missing
        assert r.engine._links.find(alice) is slot
        await limits
        assert (await r.exec("alice", "true")).code == 0
        assert r.box("alice").starts == 1


async def test_who_needs_a_box_that_is_under_a_long_verb_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command, a stop, limits, quarantine."""
    monkeypatch.setattr(links, "HOLD_SECONDS", 0.05)
    async with scene(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        alice, boxes = r.actors["alice"], r.engine.boxes
        gate = shelf.gate = Gate()
        resetting = asyncio.create_task(r.engine.copies.reset(alice, "default", "alice", How()))
        await gate.reached.wait()
        for work in (
            r.exec("alice", "true"),
            boxes.start(alice, "default", "alice"),
            boxes.stop(alice, "default", "alice"),
            boxes.set_limits(OPERATOR, "default", "alice", {"pids": 100}),
            r.engine.life.quarantine(OPERATOR, "default", "alice", "odd"),
        ):
            with pytest.raises(Busy, match="reset is under way") as told:
                await work
            assert "try again" in told.value.remedy
        await r.engine.life.release(OPERATOR, "default", "alice")
        gate.open.set()
        await resetting
        assert (await r.exec("alice", "true")).code == 0


async def test_a_run_waits_for_its_box_and_loses_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is claimed meanwhile. One that is cancelled ends at once."""
    monkeypatch.setattr(links, "HOLD_SECONDS", 0.05)
    async with scene(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        gate = shelf.gate = Gate()
        copying = asyncio.create_task(r.engine.copies.snapshot(OPERATOR, "default", "alice"))
        await gate.reached.wait()
        said, other = await r.say("alice", "work"), await r.say("alice", "more", thread="another")
        for run in (said.run.id, other.run.id):
            await r.until(run, lambda row: row.epoch > 5)
        await r.engine.runs.cancel(r.actors["alice"], other.run.id)
        assert (await r.ended(other.run.id)).state is RunState.CANCELLED
        gate.open.set()
        await copying
        assert (await r.turn(said)).state is TurnState.COMPLETED
        assert (await r.store.runs.get(said.run.id)).attempts == 1


async def test_of_two_rooms_that_wait_for_each_other_neither_does(tmp_path: Path) -> None:
    """Whoever makes room by stopping another box does not wait for one that somebody has under way."""
    async with rig(tmp_path, rests=NEVER) as r:
        await r.exec("alice", "true")
        slot = r.engine._links.slot(r.box("alice").id)
        async with slot.hold("it is held"):
            assert not await asyncio.wait_for(r.engine._bringup.evict(slot.box, "room"), 30)
        assert await r.engine._bringup.evict(slot.box, "room")  # control


# --- drains -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["reset", "archive", "recover", "clone", "upgrade"])
async def test_a_box_that_drains_is_free_for_others_and_its_source_goes_on(tmp_path: Path, verb: str) -> None:
    """What an owner keeps busy keeps nobody else: no verb is under way with it yet, nor with what is to be read."""
    async with scene(tmp_path) as (r, _):
        await put(r, "file", b"his", "bob")
        await r.exec("bob", "true")
        how, copies = How(drain=HOURS), r.engine.copies
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "reset": lambda: copies.reset(OPERATOR, "default", "alice", how),
            "archive": lambda: copies.archive(OPERATOR, "default", "alice", how),
            "recover": lambda: copies.recover(OPERATOR, "default", "alice", "fsck", how),
            "clone": lambda: copies.clone(OPERATOR, "default", "bob", "alice", None, how),
            "upgrade": lambda: r.engine.life.upgrade(OPERATOR, "default", "alice", drain=HOURS),
        }
        async with at_work(r, tmp_path) as end:
            r.driver._digest = "another"  # what an upgrade is for
            asked = asyncio.ensure_future(verbs[verb]())
            slot = r.engine._links.slot(r.box("alice").id)
            for _ in range(2):
                await copies.snapshot(OPERATOR, "default", "alice")
                await copies.snapshot(OPERATOR, "default", "bob")
            assert (await verb_of(r), await verb_of(r, "bob"), asked.done()) == ("", "", False)
            assert r.box("bob").awake.is_set() and not slot.lock.locked()
            assert r.box("alice").running
            await end()
        await asyncio.wait_for(asked, 30)
        assert (await verb_of(r), await verb_of(r, "bob")) == ("", "")
        assert r.box("bob").running and r.box("bob").awake.is_set()


async def test_a_drain_that_is_over_says_what_keeps_the_box(tmp_path: Path) -> None:
    async with scene(tmp_path) as (r, _), at_work(r, tmp_path):
        with pytest.raises(Conflict, match=r"still at work after 0 s|at work after") as told:
            await r.engine.copies.reset(OPERATOR, "default", "alice", How(drain=0.15))
        assert "a command" in told.value.message and "--force" in told.value.remedy
        assert (await verb_of(r), r.box("alice").running) == ("", True)
        for bad in (-1.0, 1e12, float("nan"), float("inf")):
            for work in (
                r.engine.copies.reset(OPERATOR, "default", "alice", How(drain=bad)),
                r.engine.copies.archive(OPERATOR, "default", "alice", How(drain=bad)),
                r.engine.copies.recover(OPERATOR, "default", "alice", "fsck", How(drain=bad)),
                r.engine.life.upgrade(OPERATOR, "default", "alice", drain=bad),
            ):
                with pytest.raises(Invalid, match="wait of"):
                    await work
        with pytest.raises(Conflict, match="at work"):
            await r.engine.copies.reset(OPERATOR, "default", "alice", How(drain=0))


async def test_two_verbs_at_once(tmp_path: Path) -> None:
    """One is done, the other one is told of it before anything is stopped."""
    async with scene(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        gate = shelf.gate = Gate()
        first = asyncio.create_task(r.engine.copies.snapshot(OPERATOR, "default", "alice", "one"))
        await gate.reached.wait()
        for work in (
            r.engine.copies.snapshot(OPERATOR, "default", "alice", "two"),
            r.engine.copies.reset(OPERATOR, "default", "alice", How(force=True)),
            r.engine.copies.clone(OPERATOR, "default", "alice", "bob", None, How()),
            r.engine.copies.clone(OPERATOR, "default", "bob", "alice", None, How()),
        ):
            with pytest.raises(Conflict, match="snapshot is under way"):
                await work
        gate.open.set()
        await first
        assert await got(r, "kept") == b"hers"


async def test_clones_that_cross(tmp_path: Path) -> None:
    """Each of the two that is done has the other's tree of before or after; neither waits for the other for ever."""
    async with scene(tmp_path) as (r, _):
        done = 0
        for n in range(10):
            await put(r, "whose", b"hers", "alice")
            await put(r, "whose", b"his", "bob")
            await asyncio.gather(r.exec("alice", "true"), r.exec("bob", "true"))
            pair = (("alice", "bob"), ("bob", "alice"))
            crossing = (
                r.engine.copies.clone(OPERATOR, "default", source, to, None, How(force=True))
                for source, to in (pair if n % 2 else pair[::-1])
            )
            ends = await asyncio.wait_for(asyncio.gather(*crossing, return_exceptions=True), 60)
            assert all(isinstance(end, Conflict) for end in ends if isinstance(end, BaseException)), ends
            good = sum(not isinstance(end, BaseException) for end in ends)
            assert good >= 1
            done += good
            assert {await got(r, "whose", "alice"), await got(r, "whose", "bob")} <= {b"hers", b"his"}
            assert (await verb_of(r), await verb_of(r, "bob")) == ("", "")
        assert done >= 10


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_an_end_that_cannot_be_written_hides_no_result_and_is_written_later(tmp_path: Path) -> None:
    async with scene(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        end, fails = r.store.boxes.end, [Failed("full"), Failed("full"), Failed("full")]

        async def failing(box: BoxId, verb: str) -> None:
            if fails:
                raise fails.pop()
            await end(box, verb)

        r.store.boxes.end = failing  # type: ignore[method-assign]
        taken = await r.engine.copies.snapshot(OPERATOR, "default", "alice", "one")
        assert taken.snapshot.whole
        with pytest.raises(Conflict, match="snapshot is under way"):
            await r.engine.copies.snapshot(OPERATOR, "default", "alice", "two")
        await eventually(lambda: not fails)
        async with asyncio.timeout(30):
            while await verb_of(r):
                await asyncio.sleep(0.01)
        assert (await r.engine.copies.snapshot(OPERATOR, "default", "alice", "two")).snapshot.whole


async def test_a_command_that_does_not_come_about_keeps_a_copy_for_so_long_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "ENTERED_SECONDS", 0.05)
    async with scene(tmp_path) as (r, _):
        await r.exec("alice", "true")
        with r.engine._links.slot(r.box("alice").id).beginning():
            with pytest.raises(Conflict, match="being begun and does not come about"):
                await r.engine.copies.snapshot(OPERATOR, "default", "alice")
            assert r.box("alice").awake.is_set()
        assert (await r.exec("alice", "true")).code == 0
        await r.engine.copies.snapshot(OPERATOR, "default", "alice")


# --- files meanwhile --------------------------------------------------------------------------------------------------


async def test_a_message_names_no_file_of_a_tree_that_is_going(tmp_path: Path) -> None:
    async with scene(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        gate = shelf.gate = Gate()
        packing = asyncio.create_task(r.engine.copies.archive(OPERATOR, "default", "alice", How()))
        await gate.reached.wait()
        with pytest.raises(Conflict, match="put away, or replaced"):
            await r.engine.threads.say(r.actors["alice"], "default", "t", "look", "queue", None, ["kept"])
        gate.open.set()
        await packing
        said = await r.engine.threads.say(r.actors["alice"], "default", "t", "look", "queue", None, ["kept"])
        assert [each.size for each in said.message.attachments] == [4]


@pytest.mark.parametrize("verb", ["reset", "archive"])
async def test_force_cuts_a_reader_who_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Control: without it the reader is waited for, and named."""
    monkeypatch.setattr(archives, "FILES_SECONDS", 0.05)
    monkeypatch.setattr(archives, "CUT_SECONDS", 0.05)
    async with scene(tmp_path) as (r, _):
        await put(r, "large", b"x" * (1 << 20))
        alice = r.actors["alice"]

        async def asked(force: bool) -> None:
            if verb == "reset":
                await r.engine.copies.reset(alice, "default", "alice", How(force=force))
            else:
                await r.engine.copies.archive(alice, "default", "alice", How(force=force))

        with pytest.raises(Unavailable):
            async with r.engine.files.get(alice, "default", "alice", b"large") as (_, pieces):
                assert await anext(pieces)
                with pytest.raises(Conflict, match="files of the box are being sent"):
                    await asked(False)
                assert await anext(pieces)
                await asked(True)
                await anext(pieces)
        sending = Gate()

        async def slowly() -> AsyncIterator[bytes]:
            yield b"begun, "
            await sending.pass_by()
            yield b"ended"

        putting = asyncio.create_task(r.engine.files.put(alice, "default", "alice", b"slow", slowly(), 0o600))
        await sending.reached.wait()
        await asked(True)
        sending.open.set()
        with pytest.raises(Unavailable):
            await putting
        slot = r.engine._links.slot(r.box("alice").id)
        assert (slot.using_files, slot.cuts) == (0, set())
        await put(r, "after", b"new")
        names = [one.name for one in await r.engine.files.list(alice, "default", "alice", b".", None, 10)]
        assert names == ([b"after"] if verb == "reset" else [b"after", b"large"])


# --- rest -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["pause", "stop"])
async def test_a_box_that_was_used_since_it_was_looked_at_does_not_rest(tmp_path: Path, verb: str) -> None:
    """The use has begun and ended before the look has its lock. Control: unused, it rests."""
    rests = Rests(pause_after=50, stop_after=0) if verb == "pause" else Rests(0, stop_after=50)
    async with rig(tmp_path, rests=rests, rest_seconds=3600.0) as r:
        clock = r.with_parts["clock"] = HandClock()
        await r.restart()
        await r.exec("alice", "true")
        clock.pass_seconds(60)
        slot, look = r.engine._links.slot(r.box("alice").id), r.engine._idle
        due = look._due(slot)
        assert due is not None and due.verb.value == verb
        async with slot.hold("it is held"):
            row = await r.store.boxes.get(slot.box)
            resting = asyncio.create_task(look._do(slot, row, due, State.RUNNING))
            assert (await r.exec("alice", "true")).code == 0
        with suppress(Conflict):
            await resting
        assert r.box("alice").running and r.box("alice").awake.is_set()
        clock.pass_seconds(60)
        await look.look()
        assert not (r.box("alice").running and r.box("alice").awake.is_set())
