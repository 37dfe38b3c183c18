"""Ends with a name: in the outcome of a command, in the result of a step, in what a run's actor is told. Each has the
limit, and what was used of it, where there is one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine.results import shell_result
from ringfence.host.engine.watch import unknown
from ringfence.host.kernel.boxes import DiskUse
from ringfence.host.kernel.errors import DiskFull
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import Outcome, Sight
from ringfence.host.web.shaping import outcome as shaped
from tests.support.engine_rig import CONFIG, Rig, eventually, rig
from tests.support.fake_driver import FakeDriver
from tests.support.fakes import Loop, parked

FULL = DiskUse("image", 64 << 20, 0, 100, 2048)
A_LITTLE = replace(FULL, used=(64 << 20) - 100_000, free=100_000)  # less than what one write may need
ROOMY = replace(FULL, used=1 << 20, free=63 << 20)
NO_INODES = replace(ROOMY, inodes=2048)


def with_disk(monkeypatch: pytest.MonkeyPatch, use: DiskUse) -> None:
    observe: Callable[..., Any] = FakeDriver.observe

    async def seen(self: FakeDriver, box: Any) -> Sight:
        found: Sight = await observe(self, box)
        return replace(found, disk=use)

    monkeypatch.setattr(FakeDriver, "observe", seen)


@pytest.mark.parametrize("use", [FULL, A_LITTLE, NO_INODES], ids=["bytes", "nearly", "inodes"])
async def test_a_command_that_fails_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: DiskUse
) -> None:
    with_disk(monkeypatch, use)
    async with rig(tmp_path, ("alice",)) as r:
        failed = await r.exec("alice", "echo no room >&2; exit 3")
        assert (failed.reason, failed.code) == ("disk_full", 3)
        assert (failed.disk_used_bytes, failed.disk_limit_bytes) == (use.used, use.used + use.free)
        assert f"{use.used} of {64 << 20} bytes" in failed.message and f"{use.inodes} of 2048 inodes" in failed.message
        assert (await r.exec("alice", "true")).reason == "exit"  # one that needs no room is no failure of the disk
        said = await r.say("alice", "$ exit 3")
        await r.turn(said)
        [step] = await r.store.steps.all(said.run.id)
        assert step.result is not None
        assert (step.result["reason"], step.result["disk_limit_bytes"]) == ("disk_full", 64 << 20)
        assert (step.state.value, step.result["exit_code"]) == ("ended", 3)


async def test_a_command_that_fails_beside_a_disk_with_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    with_disk(monkeypatch, ROOMY)
    async with rig(tmp_path, ("alice",)) as r:
        failed = await r.exec("alice", "exit 3")
        assert (failed.reason, failed.code, failed.disk_limit_bytes) == ("exit", 3, None)


async def test_a_box_that_is_stopped_for_its_disk(tmp_path: Path) -> None:
    """Its command ends disk_full; the run that worked in it is queued with that reason, until it is given up."""
    limits = replace(CONFIG.limits, disk=32 << 20)
    async with rig(tmp_path, ("alice",), parked, limits=limits, disk_seconds=0.05) as r:
        said = await r.say("alice", "work")
        await r.loop(said)
        (r.box("alice").folder / "large").write_bytes(os.urandom((32 << 20) + 8192))
        ended = await r.exec("alice", "sleep 30")
        assert ended.reason == "disk_full" and unknown(ended) and "stopped" in ended.message
        assert ended.disk_limit_bytes == 32 << 20 < (ended.disk_used_bytes or 0)
        await r.ended(said.run.id, 30)
        [detail] = await r.details("alice")
        assert (detail["code"], detail["cause"]) == ("retries_exhausted", DiskFull.code)
        assert str(32 << 20) in detail["message"]


def is_gone(r: Rig, run: RunId, loop: Loop) -> bool:
    return r.box("alice").loops.get(run) is not loop


@pytest.mark.parametrize(("kills", "cause"), [(1, "oom"), (0, "loop_ended")])
async def test_a_loop_that_was_killed_for_memory(tmp_path: Path, kills: int, cause: str) -> None:
    async with rig(tmp_path, ("alice",), parked) as r:
        said = await r.say("alice", "work")
        for _ in range(3):
            loop = await r.loop(said)
            r.box("alice").oom_kills += kills
            await r.world.kill_loop(r.box("alice").id, said.run.id)
            await eventually(partial(is_gone, r, said.run.id, loop), "its end")
        await r.ended(said.run.id)
        [detail] = await r.details("alice")
        assert detail["cause"] == cause
        assert (str(CONFIG.limits.memory) in detail["message"]) is (cause == "oom")


async def test_a_time_out_says_what_it_was(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",)) as r:
        ended = await r.exec("alice", "sleep 30", timeout=0.2)
        assert (ended.reason, ended.timeout_seconds) == ("timeout", 0.2)
        assert shaped(ended)["timeout_seconds"] == 0.2 and ended.duration_ms >= 200


FIGURES: dict[str, dict[str, Any]] = {
    "oom": {"memory_limit_bytes": 10, "memory_peak_bytes": 11},
    "disk_full": {"disk_limit_bytes": 20, "disk_used_bytes": 21},
    "timeout": {"timeout_seconds": 1.5},
    "killed": {},
    "spawn_failed": {},
    "box_lost": {},
}


@pytest.mark.parametrize("reason", FIGURES)
def test_every_reason_is_in_exec_and_in_the_step(reason: Any) -> None:
    number = None if reason in ("spawn_failed", "box_lost") else int(signal.SIGKILL)
    ended = Outcome(None, number, reason, "why", (), 1, **FIGURES[reason])
    all_figures = {name for figures in FIGURES.values() for name in figures}
    exec_json, step = shaped(ended), shell_result(ended)
    assert exec_json["reason"] == reason
    assert (step["reason"], step.get("cause")) == (("interrupted", reason) if reason == "box_lost" else (reason, None))
    assert step["message"] == exec_json["message"] == "why" and not step["ok"]
    for told in (exec_json, step):
        assert {name: told[name] for name in all_figures if name in told} == FIGURES[reason]
