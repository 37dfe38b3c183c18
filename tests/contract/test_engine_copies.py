"""What is left of a verb that failed, of a user who was removed, and of an archive that was lost: nothing for nothing, and a way out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ringfence.host.engine.life.archives import FULL
from ringfence.host.kernel.boxes import Box, Limits, Rest
from ringfence.host.kernel.errors import DiskFull, Failed, NotFound, RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.copies import CopyKind, How
from tests.contract.test_engine_archives import archived, archiving
from tests.support.engine_rig import OPERATOR, Rig, eventually
from tests.support.life_rig import got, put

NO_KEEP = How(keep=False)


def failing(
    error: Exception, *, after: Callable[[BoxId, Limits], Awaitable[None]] | None = None
) -> Callable[..., Awaitable[None]]:
    """A reset that fails, before it changes anything or behind that."""

    async def fails(box: BoxId, limits: Limits) -> None:
        if after is not None:
            await after(box, limits)
        raise error

    return fails


async def kinds(r: Rig) -> list[str]:
    return sorted(each.kind.value for each in await r.store.snapshots.here())


async def row(r: Rig, name: str = "alice") -> Box:
    return await r.store.boxes.get(r.box(name).id)


def file_of(folder: Path, copy: str) -> Path:
    return next((folder / "snapshots").glob(f"{copy}.*"))


async def archive(r: Rig, folder: Path) -> Path:
    found = await r.store.snapshots.archive(r.box("alice").id)
    assert found is not None
    return file_of(folder, found.id)


# --- the copy of before -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["reset", "restore", "clone"])
async def test_a_copy_of_before_goes_with_a_change_that_did_not_happen(tmp_path: Path, verb: str) -> None:
    """Control: it is kept when the change may have happened."""
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        await put(r, "other", b"his", "bob")
        copies, reset = r.engine.copies, r.driver.reset
        copy = (await copies.snapshot(OPERATOR, "default", "alice")).snapshot.id
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "reset": lambda: copies.reset(OPERATOR, "default", "alice", How()),
            "restore": lambda: copies.restore(OPERATOR, "default", "alice", copy, How()),
            "clone": lambda: copies.clone(OPERATOR, "default", "bob", "alice", None, How()),
        }
        r.driver.reset = failing(DiskFull("no room for a second tree"))  # type: ignore[method-assign, assignment]
        with pytest.raises(DiskFull):
            await verbs[verb]()
        assert await kinds(r) == ["asked"] and await got(r, "kept") == b"hers"
        r.driver.reset = failing(Failed("nobody knows"), after=reset)  # type: ignore[method-assign, assignment]
        with pytest.raises(Failed):
            await verbs[verb]()
        assert await kinds(r) == ["asked", "before"]
        r.driver.reset = reset  # type: ignore[method-assign]
        [before] = [each for each in await r.store.snapshots.here() if each.kind is CopyKind.BEFORE]
        await copies.restore(OPERATOR, "default", "alice", before.id, NO_KEEP)
        assert await got(r, "kept") == b"hers"


async def test_a_copy_that_is_no_good_stops_no_box_and_leaves_nothing(tmp_path: Path) -> None:
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        copy = (await r.engine.copies.snapshot(OPERATOR, "default", "alice")).snapshot.id
        await r.exec("alice", "true")
        path = file_of(tmp_path, copy)
        path.write_bytes(path.read_bytes()[:-1])
        for target in ("alice", "bob"):
            with pytest.raises(Failed, match="its digest is another"):
                if target == "alice":
                    await r.engine.copies.restore(OPERATOR, "default", "alice", copy, How(force=True))
                else:
                    await r.engine.copies.clone(OPERATOR, "default", "alice", "bob", copy, How(force=True))
        assert r.box("alice").running and await kinds(r) == ["asked"]


# --- who is removed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("purge", [False, True])
async def test_a_removed_users_archive_is_his_tree(tmp_path: Path, purge: bool) -> None:
    """Kept as the tree would be. Control: purged, it goes with it."""
    async with archiving(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        await r.engine.copies.snapshot(OPERATOR, "default", "alice")
        await archived(r)
        assert await kinds(r) == ["archive", "asked"]
        [archive_id] = [each.id for each in await r.store.snapshots.here() if each.kind is CopyKind.ARCHIVE]
        await r.engine.people.user_remove(OPERATOR, "default", "alice", purge=purge)
        wanted: set[str] = set() if purge else {archive_id}

        async def settled() -> bool:
            return await shelf.ids() == wanted

        while not await settled():
            await r.engine._shelving.look()
        await r.engine._shelving.look()
        await r.restart()
        assert await settled()
        if not purge:
            await r.engine.people.user_remove(OPERATOR, "default", "alice", purge=True)
            assert await shelf.ids() == set()


async def test_copies_of_a_user_whose_removal_was_cut_short_go(tmp_path: Path) -> None:
    async with archiving(tmp_path) as (r, shelf):
        await put(r, "kept", b"hers")
        await r.engine.copies.snapshot(OPERATOR, "default", "alice")

        async def nothing(user: str) -> None:
            """The server died first."""

        r.engine._shelving.forget = nothing  # type: ignore[method-assign]
        await r.engine.people.user_remove(OPERATOR, "default", "alice")
        assert len(await shelf.ids()) == 1
        await r.restart()
        assert await shelf.ids() == set()


# --- what was cut short -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "failed"])
async def test_a_tree_that_was_packed_and_not_emptied_is_emptied(tmp_path: Path, how: str) -> None:
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        reset, box = r.driver.reset, r.box("alice")
        r.driver.reset = failing(Failed("it is in use"))  # type: ignore[method-assign, assignment]
        with pytest.raises(Failed):
            await archived(r)
        assert ((await row(r)).rest, (box.folder / "kept").read_bytes()) == (Rest.ARCHIVED, b"hers")
        if how == "killed":  # as a server leaves its row that dies there
            await r.store.boxes.begin(box.id, "archive", 3600.0)
        r.driver.reset = reset  # type: ignore[method-assign]
        await r.restart()
        await eventually(lambda: not (box.folder / "kept").exists(), "it is emptied")
        while (found := await row(r)).verb or (found.made_of or {}).get(FULL):
            await r.engine._archives.finish()
        assert await got(r, "kept") == b"hers"


@pytest.mark.parametrize("how", ["deleted", "altered"])
async def test_no_tree_is_emptied_whose_archive_is_no_good(tmp_path: Path, how: str) -> None:
    """It is the box's tree again, and may be archived anew."""
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        reset, box = r.driver.reset, r.box("alice")
        r.driver.reset = failing(Failed("it is in use"))  # type: ignore[method-assign, assignment]
        with pytest.raises(Failed):
            await archived(r)
        r.driver.reset = reset  # type: ignore[method-assign]
        spoil(await archive(r, tmp_path), how)
        await r.engine._archives.finish()
        assert ((await row(r)).rest, (box.folder / "kept").read_bytes()) == (Rest.NONE, b"hers")
        await archived(r)
        assert not (box.folder / "kept").exists()
        assert await got(r, "kept") == b"hers"


def spoil(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")


# --- a lost archive ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deleted", "altered"])
@pytest.mark.parametrize("way", ["restore", "reset", "clone"])
async def test_the_way_out_of_a_lost_archive(tmp_path: Path, how: str, way: str) -> None:
    """What the error says is what helps; and nothing is replaced before that is said to be wanted."""
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        await put(r, "other", b"his", "bob")
        copies = r.engine.copies
        copy = (await copies.snapshot(OPERATOR, "default", "alice")).snapshot.id
        await archived(r)
        spoil(await archive(r, tmp_path), how)
        ways: dict[str, Callable[[How], Awaitable[object]]] = {
            "restore": lambda how: copies.restore(OPERATOR, "default", "alice", copy, how),
            "reset": lambda how: copies.reset(OPERATOR, "default", "alice", how),
            "clone": lambda how: copies.clone(OPERATOR, "default", "bob", "alice", None, how),
        }
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: r.exec("alice", "true"),
            lambda: got(r, "kept"),
            lambda: copies.snapshot(OPERATOR, "default", "alice"),
            lambda: ways[way](How()),
        ]
        for ask in asked:
            with pytest.raises(Failed, match="its archive is no good") as failed:
                await ask()
            assert "box restore U S --no-keep" in failed.value.remedy and "box reset U --no-keep" in failed.value.remedy
        assert (await row(r)).rest is Rest.ARCHIVED and await kinds(r) == ["archive", "asked"]
        await ways[way](NO_KEEP)
        assert (await row(r)).rest is Rest.NONE and await kinds(r) == ["asked"]
        assert (await r.exec("alice", "true")).code == 0
        if way == "reset":
            with pytest.raises(NotFound):
                await got(r, "kept")
        else:
            assert await got(r, "kept" if way == "restore" else "other") == (b"hers" if way == "restore" else b"his")


# --- no place for copies ----------------------------------------------------------------------------------------------


async def test_without_its_folder_the_server_starts_says_so_and_refuses(tmp_path: Path) -> None:
    """Control: with it back everything is as before."""
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        copies = r.engine.copies
        copy = (await copies.snapshot(OPERATOR, "default", "alice")).snapshot.id
        await archived(r)
        box = r.box("bob").id

        async def away() -> None:
            await r.store.boxes.begin(box, "restore", 3600.0)
            (tmp_path / "snapshots").rename(tmp_path / "away")

        await r.restart(away)
        copies = r.engine.copies
        status = await r.engine.health.status(OPERATOR)
        assert not status["ok"] and "cannot be used" in status["parts"]["copies"]["error"]
        assert (await row(r, "bob")).verb == ""
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: copies.snapshot(OPERATOR, "default", "bob"),
            lambda: copies.restore(OPERATOR, "default", "alice", copy, NO_KEEP),
            lambda: copies.reset(OPERATOR, "default", "bob", How()),
            lambda: r.exec("alice", "true"),  # archived
        ]
        for ask in asked:
            with pytest.raises(RingfenceError, match=r"the folder of copies .* cannot be used") as failed:
                await ask()
            assert "ringfence init" in failed.value.remedy
        assert (await r.engine.debris.sweep(OPERATOR, dry_run=True)).found  # told, and the rest is looked at
        assert (await r.exec("bob", "true")).code == 0

        async def back() -> None:
            (tmp_path / "away").rename(tmp_path / "snapshots")

        await r.restart(back)
        assert (await r.engine.health.status(OPERATOR))["parts"]["copies"] == {"ok": True}
        assert await got(r, "kept") == b"hers"


async def test_a_tree_that_cannot_be_looked_at_keeps_no_server_from_starting(tmp_path: Path) -> None:
    async with archiving(tmp_path) as (r, _):
        box = r.box("alice").id

        async def fails(box: BoxId, limits: Limits) -> None:
            raise Failed("its image cannot be mounted")

        await r.store.boxes.begin(box, "restore", 3600.0)
        r.driver.forget_copy = fails  # type: ignore[method-assign]
        await r.restart()
        assert (await row(r)).verb == ""


@pytest.mark.parametrize("how", ["deleted", "altered"])
async def test_a_tree_that_was_not_emptied_is_not_lost_with_its_archive(tmp_path: Path, how: str) -> None:
    async with archiving(tmp_path) as (r, _):
        await put(r, "kept", b"hers")
        reset, r.driver.reset = r.driver.reset, failing(Failed("it is in use"))  # type: ignore[method-assign, assignment]
        with pytest.raises(Failed):
            await archived(r)
        r.driver.reset = reset  # type: ignore[method-assign]
        assert (await row(r)).rest is Rest.ARCHIVED
        spoil(await archive(r, tmp_path), how)
        assert (await r.exec("alice", "true")).code == 0
        assert await got(r, "kept") == b"hers" and (await row(r)).rest is Rest.NONE and await kinds(r) == []
