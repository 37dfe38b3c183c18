"""Where nothing bounds a tree: its box is stopped above the limit, files from outside are refused in words, and it comes
back; where the host bounds it, nothing is walked."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.boxes import DiskUse
from ringfence.host.kernel.errors import DiskFull
from ringfence.host.kernel.ports import Sight
from tests.support.engine_rig import CONFIG, OPERATOR, Rig, eventually, rig

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
        assert cut.value.details["limit_bytes"] == LIMIT and "box limits" in cut.value.remedy
        assert (await r.engine.files.stat(alice, "default", "alice", b"f")).size == 5
        fill(r, LIMIT)
        with pytest.raises(DiskFull) as full:
            await r.engine.files.put(alice, "default", "alice", b"g", pieces(1), 0o600)
        assert full.value.details["used_bytes"] >= LIMIT


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
        before = looks
        shown = await r.engine.boxes.show(OPERATOR, "default", "alice")
        assert (shown.disk_bytes, shown.disk_full, shown.inodes, shown.inode_limit) == (LIMIT, True, 3, 100)
        assert "no-disk-quota" not in shown.weak and r.box("alice").running
        assert looks == before + 1  # the watch looked once and never again
