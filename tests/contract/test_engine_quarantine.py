"""What may be asked of a box in quarantine, and what meets one that comes into it. On a driver without walls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.boxes import Box, Rest
from ringfence.host.kernel.errors import Conflict, NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import How
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import TurnState
from tests.support.engine_rig import OPERATOR, Rig, eventually
from tests.support.life_rig import Gate, got, put, scene

Asked = Callable[[Rig, Any, str], Awaitable[Any]]


async def _get(r: Rig, actor: Any, copy: str) -> None:
    async with r.engine.files.get(actor, "default", "alice", b"kept") as (_, pieces):
        assert [piece async for piece in pieces]


async def _put(r: Rig, actor: Any, copy: str) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"new"

    await r.engine.files.put(actor, "default", "alice", b"new", content(), 0o600)


async def _export(r: Rig, actor: Any, copy: str) -> None:
    async with r.engine.copies.export(actor, "default", "alice") as pieces:
        assert [piece async for piece in pieces]


async def _exec(r: Rig, actor: Any, copy: str) -> None:
    await r.exec("alice", "true")


# name -> (how it is asked for, whether an operator may, whether its owner may)
ASKED: dict[str, tuple[Asked, bool, bool]] = {
    "show": (lambda r, a, c: r.engine.boxes.show(a, "default", "alice"), True, True),
    "list": (lambda r, a, c: r.engine.boxes.list(a, "default"), True, True),
    "snapshots": (lambda r, a, c: r.engine.copies.list(a, "default", "alice"), True, True),
    "exec": (_exec, False, False),
    "start": (lambda r, a, c: r.engine.boxes.start(a, "default", "alice"), False, False),
    "resume": (lambda r, a, c: r.engine.life.resume(a, "default", "alice"), False, False),
    "upgrade": (lambda r, a, c: r.engine.life.upgrade(a, "default", "alice"), False, False),
    "archive": (lambda r, a, c: r.engine.copies.archive(a, "default", "alice", How()), False, False),
    "reset": (lambda r, a, c: r.engine.copies.reset(a, "default", "alice", How()), False, False),
    "restore": (lambda r, a, c: r.engine.copies.restore(a, "default", "alice", c, How()), False, False),
    "clone into it": (lambda r, a, c: r.engine.copies.clone(a, "default", "bob", "alice", None, How()), False, False),
    "recover": (lambda r, a, c: r.engine.copies.recover(a, "default", "alice", "fsck", How()), False, False),
    "pause": (lambda r, a, c: r.engine.life.pause(a, "default", "alice"), True, False),
    "snapshot": (lambda r, a, c: r.engine.copies.snapshot(a, "default", "alice"), True, False),
    "remove a snapshot": (lambda r, a, c: r.engine.copies.remove(a, "default", "alice", c), True, False),
    "export": (_export, True, False),
    "clone of it": (lambda r, a, c: r.engine.copies.clone(a, "default", "alice", "bob", None, How()), True, False),
    "files stat": (lambda r, a, c: r.engine.files.stat(a, "default", "alice", b"kept"), True, False),
    "files ls": (lambda r, a, c: r.engine.files.list(a, "default", "alice", b".", None, 10), True, False),
    "files get": (_get, True, False),
    "files put": (_put, True, False),
    "files rm": (lambda r, a, c: r.engine.files.remove(a, "default", "alice", b"kept", False), True, False),
    "limits": (lambda r, a, c: r.engine.boxes.set_limits(a, "default", "alice", {"pids": 100}), True, False),
    "stop": (lambda r, a, c: r.engine.boxes.stop(a, "default", "alice"), True, False),
    "quarantine": (lambda r, a, c: r.engine.life.quarantine(a, "default", "alice", "more"), True, False),
    "release": (lambda r, a, c: r.engine.life.release(a, "default", "alice"), True, False),
}


@asynccontextmanager
async def isolated(folder: Path, state: str) -> AsyncIterator[tuple[Rig, str, Callable[[], Awaitable[None]]]]:
    """With a copy of it, and what puts it there anew."""
    async with scene(folder) as (r, _):
        alice = r.actors["alice"]

        async def there() -> None:
            await r.engine.life.release(OPERATOR, "default", "alice")
            await put(r, "kept", b"hers")
            await r.exec("alice", "true")
            if state == "archived":
                await r.engine.copies.archive(alice, "default", "alice", How())
            await r.engine.life.quarantine(OPERATOR, "default", "alice", "mining")

        await put(r, "kept", b"hers")
        taken = await r.engine.copies.snapshot(alice, "default", "alice", "before")
        await there()
        yield r, taken.snapshot.id, there


@pytest.mark.parametrize("state", ["paused", "archived"])
async def test_what_its_owner_may_do_with_a_box_in_quarantine(tmp_path: Path, state: str) -> None:
    """Look, and nothing else: not a byte of it moves. Control: most of it is theirs once it is released."""
    async with isolated(tmp_path, state) as (r, copy, _):
        box, alice = r.box("alice"), r.actors["alice"]
        before, files = await as_it_is(r), sorted(one.name for one in box.folder.iterdir())
        for name, (ask, _, may) in ASKED.items():
            if may:
                await ask(r, alice, copy)
            else:
                with pytest.raises((Refused, NotFound)) as told:
                    await ask(r, alice, copy)
                assert isinstance(told.value, Refused) or name.startswith("clone"), (
                    name
                )  # of another's box nobody is told
            assert (await as_it_is(r), sorted(one.name for one in box.folder.iterdir())) == (before, files), name
        await r.engine.life.release(OPERATOR, "default", "alice")
        done = 0
        for _, (ask, _, _) in ASKED.items():
            with suppress(Refused, NotFound, Conflict):
                await ask(r, alice, copy)
                done += 1
        assert done > len(ASKED) // 2


@pytest.mark.parametrize("state", ["paused", "archived"])
async def test_what_operators_may_do_with_a_box_in_quarantine(tmp_path: Path, state: str) -> None:
    """Have evidence of it and end it; nothing that runs anything in it, or takes its files away. Control: released, it can be asked."""
    async with isolated(tmp_path, state) as (r, copy, again):
        box = r.box("alice")
        for name, (ask, may, _) in ASKED.items():
            if state == "archived" and name == "pause":
                continue
            if not may:
                with pytest.raises(Refused, match="mining"):
                    await ask(r, r.actors["alice"] if name == "exec" else OPERATOR, copy)
                continue
            await ask(r, OPERATOR, copy)
            assert not (box.running and box.awake.is_set()), name
            await again()
            if name == "remove a snapshot":
                copy = (await r.engine.copies.snapshot(OPERATOR, "default", "alice", "before")).snapshot.id
        await r.engine.life.release(OPERATOR, "default", "alice")
        assert (await r.exec("alice", "true")).code == 0


async def as_it_is(r: Rig) -> Box:
    return replace(await r.store.boxes.get(r.box("alice").id), last_active_at=None)


async def test_a_message_of_an_owner_in_quarantine_names_no_file_and_its_run_waits(tmp_path: Path) -> None:
    async with scene(tmp_path) as (r, _):
        alice = r.actors["alice"]
        await put(r, "kept", b"hers")
        await r.engine.copies.archive(alice, "default", "alice", How())
        await r.engine.life.quarantine(OPERATOR, "default", "alice", "mining")
        with pytest.raises(Refused, match="mining"):
            await r.engine.threads.say(alice, "default", "t", "look", "queue", None, ["kept"])
        assert (await r.store.boxes.get(r.box("alice").id)).rest is Rest.ARCHIVED  # nothing was unpacked for it
        said = await r.engine.threads.say(alice, "default", "t", "look", "queue", None, [])
        bob = await r.say("bob", "mine", thread="of-bob")
        await r.turn(bob)  # the scheduler has looked at what there is
        assert (await r.store.runs.get(said.run.id)).state is RunState.QUEUED
        await r.engine.life.release(OPERATOR, "default", "alice")
        assert (await r.turn(said)).state is TurnState.COMPLETED


async def test_a_box_that_comes_into_quarantine_while_it_is_copied_stands_still_on(tmp_path: Path) -> None:
    async with scene(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        await r.exec("alice", "true")
        box, woken = r.box("alice"), []
        thaw = r.driver.thaw

        async def noted(box: BoxId) -> None:
            woken.append(box)
            await thaw(box)

        r.driver.thaw = noted  # type: ignore[method-assign]
        gate = shelf.gate = Gate()
        copying = asyncio.create_task(r.engine.copies.snapshot(OPERATOR, "default", "alice"))
        await gate.reached.wait()
        isolating = asyncio.create_task(r.engine.life.quarantine(OPERATOR, "default", "alice", "odd"))
        await eventually(lambda: r.engine._links.slot(box.id).quarantined)
        gate.open.set()
        await copying
        await isolating
        assert (woken, box.awake.is_set()) == ([], False)
        assert (await r.store.boxes.get(box.id)).rest is Rest.PAUSED
        await r.restart()
        assert (woken, box.awake.is_set()) == ([], False)
        await r.engine.life.release(OPERATOR, "default", "alice")
        assert (await r.exec("alice", "true")).code == 0
        assert (woken, box.starts) == ([box.id], 1)


async def test_a_box_that_comes_into_quarantine_while_it_is_unpacked_is_not_started(tmp_path: Path) -> None:
    async with scene(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        await r.engine.copies.archive(OPERATOR, "default", "alice", How())
        box, gate, read = r.box("alice"), Gate(), shelf.read

        async def slowly(copy: str, digest: str) -> AsyncGenerator[bytes, None]:
            await gate.pass_by()
            async with aclosing(read(copy, digest)) as pieces:
                async for piece in pieces:
                    yield piece

        shelf.read = slowly  # type: ignore[method-assign]
        starts, starting = box.starts, asyncio.create_task(r.exec("alice", "true"))
        await gate.reached.wait()
        isolating = asyncio.create_task(r.engine.life.quarantine(OPERATOR, "default", "alice", "odd"))
        await eventually(lambda: r.engine._links.slot(box.id).quarantined)
        gate.open.set()
        with pytest.raises(Refused, match="quarantine"):
            await starting
        await isolating
        assert box.starts == starts
        await r.engine.life.release(OPERATOR, "default", "alice")
        assert await got(r, "kept") == b"hers"
