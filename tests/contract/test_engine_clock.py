"""A wall clock that is set back under a running server: nothing that expires lives longer, and work goes on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ringfence.host.engine.presence import Presence
from ringfence.host.kernel.errors import Unauthenticated
from tests.support import engine_rig
from tests.support.engine_rig import OPERATOR, RealClock, rig

BACK = timedelta(days=400)
SECONDS = 1.5  # of a token


@pytest.fixture
def turned_back(monkeypatch: pytest.MonkeyPatch) -> list[timedelta]:
    """Put something in, and every wall clock of the rig is behind by it."""
    by: list[timedelta] = []

    class Turned(RealClock):
        def now(self) -> datetime:
            return datetime.now(UTC) - sum(by, timedelta())

    monkeypatch.setattr(engine_rig, "RealClock", Turned)
    return by


async def test_tokens_expire_and_turns_go_on(tmp_path: Path, turned_back: list[timedelta]) -> None:
    async with rig(tmp_path, ("alice",)) as r:
        people = r.engine.people
        _, short = await people.token_add(OPERATOR, "default", "alice", ["user"], "", SECONDS)

        async def connected(secret: str) -> Presence:
            people.presents(token=secret)
            return people.presence(await people.authenticate(secret))

        [presence] = await asyncio.gather(connected(short))  # in a task of its own, as a connection is
        first = await r.asked("alice", "before")
        turned_back.append(BACK)
        _, late = await people.token_add(OPERATOR, "default", "alice", ["user"], "", SECONDS)
        [later] = await asyncio.gather(connected(late))
        second = await r.asked("alice", "after")  # leases, the queue and the order of the lane
        assert (first.state.value, second.state.value) == ("completed", "completed")
        cursors = [e["cursor"] for e in await r.engine.threads.events(r.actors["alice"], "default", "t", 0, 1000)]
        assert cursors == list(range(1, len(cursors) + 1))  # F26: gapless, in the order in which it happened
        async with asyncio.timeout(30):
            for open_one in (presence, later):  # connections that were open end as well
                await open_one.over()
                open_one.close()
        for secret in (short, late):
            with pytest.raises(Unauthenticated, match="expired"):
                await asyncio.gather(connected(secret))
