"""F17: what the reserve is for: on a full volume nothing new is taken, and what is under way can be ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import DiskFull
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.reserve import BYTES, NAME, ROOM
from tests.support.store import Team, a_team, opened
from tests.support.volumes import fill

pytestmark = pytest.mark.root


def low(team: Team) -> bool:
    """Asked anew each time."""
    return team.store.reserve.low


async def until_full(team: Team) -> None:
    with pytest.raises(DiskFull):
        for number in range(2000):
            await team.steer(f"{number}" + "x" * 100_000) if number % 50 else await team.say("x" * 100_000)


async def test_a_full_volume_and_back(volume: Path) -> None:
    async with a_team(volume) as team:
        assert await team.store.reserve.keep()
        reserve = volume / NAME
        assert reserve.stat().st_size == BYTES == reserve.stat().st_blocks * 512, "blocks, not a hole"
        assert reserve.stat().st_mode & 0o777 == 0o600
        run = await team.running()
        own = await team.store.threads.add(team.tenant.id, "bobs", [team.bob.id], False)
        waits = await team.store.turns.accept(
            own.id, team.bob.id, "waits", "queue", None
        )  # in a lane that nobody holds
        ballast = fill(volume)
        await until_full(team)
        assert low(team)
        assert not reserve.exists()
        before = await team.events()
        with pytest.raises(DiskFull, match="reserve"):
            await team.say("new work")
        assert await team.claim() == [], "nothing new is begun"
        assert await team.events() == before, "reads go on, and nothing was taken"
        ended = await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done")
        assert ended.state is RunState.COMPLETED, "what is under way can be ended"
        await team.store.audit.record(None, "seen", "by the operator", {})
        assert not await team.store.reserve.keep(), "there is no room for it yet"
        assert low(team)
        ballast.unlink()
        assert await team.store.reserve.keep()
        assert not low(team)
        assert reserve.stat().st_size == BYTES
        await team.say("again")
        assert waits.run.id in {one.id for one in await team.claim()}, "control: it could be begun all the time"


async def test_without_a_reserve_the_run_cannot_be_ended(volume: Path) -> None:
    """The control."""
    async with a_team(volume) as team:
        run = await team.running()
        fill(volume)
        await until_full(team)
        assert not team.store.reserve.low, "nothing was freed"
        with suppress(DiskFull):
            for number in range(200):  # a page that is free inside the database may take the first few
                await team.store.audit.record(None, "x", f"{number}", {"text": "x" * 4000})
        with pytest.raises(DiskFull):
            await team.store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", "done" * 10_000)


async def test_a_volume_at_its_edge_gets_none(volume: Path) -> None:
    async with a_team(volume) as team:
        ballast = fill(volume, but=ROOM - 4096)
        assert not await team.store.reserve.keep()
        assert not (volume / NAME).exists()
        assert low(team)
        with pytest.raises(DiskFull, match="64 MiB"):
            await team.say("hello")
        ballast.unlink()
        assert await team.store.reserve.keep()
        await team.say("hello")


async def test_released_is_released_also_after_a_restart(volume: Path) -> None:
    """Else a server that is started anew would take new work into the last that was freed."""
    async with a_team(volume) as team:
        assert await team.store.reserve.keep()
        ballast = fill(volume)
        await until_full(team)
    async with opened(volume, first=1 << 40) as store:
        assert not await store.reserve.keep()
        again = replace(team, store=store)
        assert low(again)
        with pytest.raises(DiskFull, match="reserve"):
            await again.say("new work")
        assert (await store.health())["reserve"] == "released"
        await store.audit.record(None, "seen", "by the operator", {})
        ballast.unlink()
        assert await store.reserve.keep()
        assert (await store.health())["reserve"] == "kept"


async def test_one_that_somebody_took_away_comes_back(volume: Path) -> None:
    async with a_team(volume) as team:
        assert await team.store.reserve.keep()
        (volume / NAME).unlink()
        assert await team.store.reserve.keep()
        assert (volume / NAME).stat().st_size == BYTES
        (volume / NAME).unlink()
        (volume / NAME).mkdir()  # what cannot be made is said, and holds up no work
        assert not await team.store.reserve.keep()
        assert (await team.store.health())["reserve"] == "missing"
        await team.say("hello")
