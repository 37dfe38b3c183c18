"""Where nothing bounds a tree: its box is stopped above the limit, files from outside are refused in words, and it comes
back; where the host bounds it, nothing is walked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import disk
from ringfence.host.engine import files as disk_of_files
from ringfence.host.kernel.boxes import DiskUse
from ringfence.host.kernel.errors import Conflict, DiskFull
from ringfence.host.kernel.ports import Sight
from tests.support.engine_rig import CONFIG, OPERATOR, Rig, eventually, rig
from tests.support.fake_driver import FolderFiles
from tests.support.store import newest

LIMIT = 32 << 20
SMALL: dict[str, Any] = {"limits": replace(CONFIG.limits, disk=LIMIT), "disk_seconds": 0.05}


async def pieces(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield bytes(size)


def fill(r: Rig, size: int) -> Path:
    path = r.box("alice").folder / "large"
    path.write_bytes(os.urandom(size))
    return path


async def test_a_box_above_its_limit_is_stopped_and_one_below_is_not(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        for name in ("alice", "bob"):
            await r.exec(name, "true")
        path = fill(r, LIMIT + 8192)
        await eventually(lambda: not r.box("alice").running, "the stop")
        shown = await r.engine.boxes.show(OPERATOR, "default", "alice")
        assert (shown.observed, shown.disk_full, shown.disk_by) == ("stopped", True, "accounting")
        assert shown.disk_limit_bytes == LIMIT < shown.disk_bytes and "no-disk-quota" in shown.weak
        assert r.box("bob").running  # control
        path.unlink()
        await r.exec("alice", "true")
        assert not (await r.engine.boxes.show(OPERATOR, "default", "alice")).disk_full


async def test_a_file_that_does_not_fit_is_refused_with_limit_and_use_and_nothing_is_lost(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL | {"disk_seconds": 60.0}) as r:
        alice = r.actors["alice"]
        await r.engine.files.put(alice, "default", "alice", b"f", pieces(5), 0o600)
        with pytest.raises(DiskFull, match=f"of {LIMIT} bytes") as cut:
            await r.engine.files.put(alice, "default", "alice", b"f", pieces(*[1 << 20] * 40), 0o600)
        assert "has no room for that" in cut.value.message  # it is not full
        assert cut.value.details["limit_bytes"] == LIMIT and "box limits" in cut.value.remedy
        assert (await r.engine.files.stat(alice, "default", "alice", b"f")).size == 5
        fill(r, LIMIT)
        with pytest.raises(DiskFull) as full:
            await r.engine.files.put(alice, "default", "alice", b"g", pieces(1), 0o600)
        assert full.value.details["used_bytes"] >= LIMIT and "is full" in full.value.message


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a walk of alice's tree takes; who looks waits 0.05 s, who decides 0.4."""
    seconds = [60.0]
    usage = FolderFiles.usage

    async def late(files: FolderFiles) -> tuple[int, int]:
        if (files._folder / "many").exists():
            await asyncio.sleep(seconds[0])
        return await usage(files)

    monkeypatch.setattr(FolderFiles, "usage", late)
    monkeypatch.setattr(disk, "USAGE_SECONDS", 0.05)
    monkeypatch.setattr(disk, "WATCH_SECONDS", 0.4)
    monkeypatch.setattr(disk_of_files, "WATCH_SECONDS", 0.4)
    return seconds


async def test_a_tree_that_nobody_can_measure_is_stopped_and_one_that_takes_long_is_not(
    tmp_path: Path, slow: list[float]
) -> None:
    async with rig(tmp_path, **SMALL) as r:
        slow[0] = 0.1  # control: longer than who looks waits
        for name in ("alice", "bob"):
            await r.exec(name, "true")
        (r.box("alice").folder / "many").touch()
        await asyncio.sleep(0.6)
        assert r.box("alice").running
        slow[0] = 60.0
        await eventually(lambda: not r.box("alice").running, "the stop")
        shown = await r.engine.boxes.show(OPERATOR, "default", "alice")
        assert (shown.observed, shown.disk_bytes) == ("stopped", -1)
        assert r.box("bob").running  # control: a walk that waits holds up nobody else's
        told = next(row for row in await newest(r.store.audit, 100) if row["action"] == "box.disk_full")
        assert told["details"]["used_bytes"] == -1 and told["details"]["limit_bytes"] == LIMIT


async def test_walks_that_are_refused_stop_a_box_only_when_that_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[float] = []

    async def busy(_: FolderFiles) -> tuple[int, int]:
        refused.append(asyncio.get_running_loop().time())
        raise Conflict("too many file transfers at once")

    async with rig(tmp_path, ("alice",), **SMALL) as r:
        monkeypatch.setattr(disk, "WATCH_SECONDS", 0.4)
        monkeypatch.setattr(FolderFiles, "usage", busy)
        await r.exec("alice", "true")
        await eventually(lambda: len(refused) > 2 or not r.box("alice").running, "refusals")
        assert r.box("alice").running
        await eventually(lambda: not r.box("alice").running, "the stop")
        assert refused[-1] - refused[0] >= 0.3


async def test_files_come_into_a_large_tree_and_into_none_that_nobody_can_measure(
    tmp_path: Path, slow: list[float]
) -> None:
    async with rig(tmp_path, **SMALL | {"disk_seconds": 60.0}) as r:
        alice = r.actors["alice"]
        await r.engine.files.put(alice, "default", "alice", b"many", pieces(0), 0o600)
        with pytest.raises(DiskFull, match="nobody could tell"):
            await r.engine.files.put(alice, "default", "alice", b"f", pieces(1), 0o600)
        slow[0] = 0.1
        await r.engine.files.put(alice, "default", "alice", b"f", pieces(1), 0o600)


async def test_what_the_host_bounds_is_neither_walked_nor_stopped(tmp_path: Path) -> None:
    async with rig(tmp_path, **SMALL) as r:
        look = r.driver.observe
        looks = 0

        async def bounded(box: Any) -> Sight:
            nonlocal looks
            looks += 1
            return replace(await look(box), disk=DiskUse("image", LIMIT, 0, 3, 100))

        r.driver.observe = bounded  # type: ignore[method-assign]
        await r.exec("alice", "true")
        fill(r, LIMIT + 8192)
        await eventually(lambda: looks > 0, "a look")
        await asyncio.sleep(0.3)  # six looks
        before = looks
        assert before == 1
        shown = await r.engine.boxes.show(OPERATOR, "default", "alice")
        assert (shown.disk_bytes, shown.disk_full, shown.inodes, shown.inode_limit) == (LIMIT, True, 3, 100)
        assert "no-disk-quota" not in shown.weak and r.box("alice").running
        assert looks == before + 1  # by show: the watch looked once and never again


async def test_a_stop_that_leaves_a_disk_read_only_says_so_and_the_box_is_stopped(tmp_path: Path) -> None:
    """Control: a stop of one whose disk is whole, and of one whose image is not mounted at all, is a stop."""
    async with rig(tmp_path, **SMALL) as r:
        look, use = r.driver.observe, [DiskUse("image", 4096, 0, 3, 100, "it could not be mounted anew: process 7 (x)")]

        async def seen(box: Any) -> Sight:
            return replace(await look(box), disk=use[0])

        r.driver.observe = seen  # type: ignore[method-assign]
        alice = r.actors["alice"]
        await r.exec("alice", "true")
        for who, remedy in ((alice, "tell the operator"), (OPERATOR, "box stop")):
            with pytest.raises(
                Conflict, match=r"the box is stopped; it could not be mounted anew: process 7"
            ) as caught:
                await r.engine.boxes.stop(who, "default", "alice")
            assert remedy in caught.value.remedy and caught.value.details["stopped"] is True
        assert not r.box("alice").running
        assert (await r.engine.boxes.show(alice, "default", "alice")).desired == "stopped"
        for whole in (DiskUse("image", 4096, 4096, 3, 100), DiskUse("image", problem="it cannot be mounted")):
            use[0] = whole
            assert (await r.engine.boxes.stop(alice, "default", "alice")).observed == "stopped"
