"""kill -9 at each failpoint that a scenario reaches, one after the other; then a restart, the client's retry, the invariants.

The loops end when a scenario comes to its end without being killed. A child kernel is forked from a nursery, so that each costs
its work only. The box ends with its kernel here; boxes that go on are the matter of the tests of adoption.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ringfence.bench.cluster import cluster
from ringfence.host.kernel.failpoints import Point
from tests.support.clocks import HandClock
from tests.support.databases import SEARCH_PATH, Databases, address, is_postgres, outside
from tests.support.invariants import after
from tests.support.kill_child import server_clock
from tests.support.kill_scenarios import SCENARIOS
from tests.support.nursery import Child, Nursery, Order, nursery
from tests.support.oracle import EffectLog
from tests.support.receiver import Receiver, receiver
from tests.support.soaking import every
from tests.support.store_work import Db

NAMES = [name for name in SCENARIOS if name != "prepare"]
# Of about 1,000 reaches altogether, each some 0.3 s of two children: 31 of them, 10 s. All of them are soak. A turn, an approval
# and an effect have it all between them; the others differ from them in a few places each.
WHOLE = ("turn", "gate", "once_unknown")
STRIDE, STRIDE_OTHERS, STRIDE_POSTGRES = 17, 43, 43
SOAK_STRIDE = min(every(1), STRIDE_OTHERS)
NEVER = 1 << 30  # no scenario reaches so many
REACHED_BY = {
    Point.STORE_COMMIT_BEFORE: "turn",
    Point.STORE_COMMIT_AFTER: "turn",
    Point.LOOP_ASK_BEFORE: "turn",
    Point.LOOP_ASK_AFTER: "turn",
    Point.WIRE_SEND_BEFORE: "turn",
    Point.WIRE_SEND_AFTER: "turn",
    Point.EFFECT_SEND_BEFORE: "once_done",
    Point.EFFECT_SEND_AFTER: "once_done",
    Point.LOOKUP_SEND_BEFORE: "once_done",
    Point.LOOKUP_SEND_AFTER: "once_done",
    Point.HTTP_ANSWER_BEFORE: "turn",
    Point.HTTP_ANSWER_AFTER: "turn",
}


class Ring:
    """One database, one receiver, one child after another."""

    def __init__(self, folder: Path, home: Nursery, outside: Receiver, scenario: str) -> None:
        self.folder, self._home, self._outside, self._scenario = folder, home, outside, scenario
        self.log = EffectLog(folder / "effects.log")
        self._numbers, self._tags = itertools.count(1), itertools.count(1)
        self._began, self._token = time.time(), ""
        self.fired: Counter[Point] = Counter()
        self.acks: list[dict[str, Any]] = []
        self.reached = 0  # places that the newest loop passed

    async def prepare(self) -> None:
        if is_postgres(self.folder):
            outside(self.folder, server_clock(self._began))
        child = await self._child("prepare")
        assert child.status == 0, child
        [self._token] = child.said("token")

    async def _child(self, scenario: str, **more: Any) -> Child:
        child = await self._home.child(
            Order(
                scenario,
                address(self.folder),
                str(self.folder),
                next(self._numbers),
                self._began,
                self._outside.port,
                self._token,
                **more,
            )
        )
        self.acks += child.said("ack")
        return child

    async def once(self, n: int, breaks: str = "", point: str = "") -> tuple[str, list[str]]:
        """(where the n-th reach killed, "" = nowhere; what does not hold after the restart)."""
        tag = f"{self._scenario}-{next(self._tags)}"
        killed = await self._child(self._scenario, tag=tag, n=n, point=point, breaks=breaks)
        if not killed.fired:
            assert killed.status == 0 or breaks, killed
            return "", self.wrong()
        assert killed.status == -9, killed
        self.fired[Point(killed.fired)] += 1
        again = await self._child(self._scenario, tag=tag)
        assert again.status == 0, (n, killed, again)
        return killed.fired, self.wrong()

    def wrong(self) -> list[str]:
        return after(self.folder, self.log, self.acks, SCENARIOS[self._scenario].asks)

    async def loop(self, first: int = 1, stride: int = 1) -> None:
        """Until the scenario ends without being killed."""
        for n in itertools.count(first, stride):
            point, wrong = await self.once(n)
            self.reached = n - 1
            assert not wrong, (self._scenario, n, point, wrong)
            if not point:
                return


@pytest.fixture(scope="module")
def home() -> Iterator[Nursery]:
    with nursery() as made:
        yield made


@asynccontextmanager
async def ring(home: Nursery, folder: Path, scenario: str) -> AsyncIterator[Ring]:
    async with receiver(folder / "effects.log") as outside:
        for name, value in SCENARIOS[scenario].outside.items():
            setattr(outside, name, value)
        made = Ring(folder, home, outside, scenario)
        await made.prepare()
        yield made


async def killed_anywhere(home: Nursery, folder: Path, scenario: str, stride: int) -> None:
    async with ring(home, folder, scenario) as one:
        await one.loop(1 + NAMES.index(scenario) % stride, stride)
        assert one.fired, "it was never killed"
        sys.stdout.write(f"{scenario}: {one.fired.total()} kills in {one.reached} places\n")
        assert await Db(folder, HandClock()).findings() == set(), "db check, with the audit's chains"


@pytest.mark.parametrize("scenario", NAMES)
async def test_killed_at_some_places(home: Nursery, tmp_path: Path, scenario: str) -> None:
    """Each scenario begins at another place, so that together they see all remainders."""
    await killed_anywhere(home, tmp_path, scenario, STRIDE if scenario in WHOLE else STRIDE_OTHERS)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", NAMES)
async def test_killed_at_every_place(home: Nursery, tmp_path: Path, scenario: str) -> None:
    await killed_anywhere(home, tmp_path, scenario, SOAK_STRIDE)


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    with cluster(SEARCH_PATH) as running:
        yield Databases.over(running)


@pytest.mark.parametrize("scenario", ["turn", "gate"])
async def test_killed_at_some_places_on_postgresql(
    home: Nursery, tmp_path: Path, databases: Databases, scenario: str
) -> None:
    with databases.within(tmp_path, alone=True):
        await killed_anywhere(home, tmp_path, scenario, STRIDE_POSTGRES)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", NAMES)
async def test_killed_at_every_place_on_postgresql(
    home: Nursery, tmp_path: Path, databases: Databases, scenario: str
) -> None:
    with databases.within(tmp_path, alone=True):
        await killed_anywhere(home, tmp_path, scenario, SOAK_STRIDE)


@pytest.mark.parametrize("scenario", sorted(set(REACHED_BY.values())))
async def test_each_point_kills(home: Nursery, tmp_path: Path, scenario: str) -> None:
    """A point that no scenario reaches is none."""
    assert set(REACHED_BY) == set(Point)
    async with ring(home, tmp_path, scenario) as one:
        for point in (each for each, by in REACHED_BY.items() if by == scenario):
            assert await one.once(1, point=point) == (point, [])


# --- controls: with a wall taken away the invariants find it ---------------------------------------------------------


@pytest.mark.parametrize("breaks", ["no_fence", ""])
async def test_an_old_epoch_that_may_write_is_found(home: Nursery, tmp_path: Path, breaks: str) -> None:
    async with ring(home, tmp_path, "stale") as one:
        _, wrong = await one.once(NEVER, breaks)
        for what in ("a step", "a checkpoint", "an effect", "a gate", "a message"):
            assert any(line.startswith("I5") and what in line for line in wrong) == bool(breaks), (what, wrong)


@pytest.mark.parametrize("breaks", ["no_sent", ""])
async def test_an_effect_that_goes_out_before_it_is_sent_is_found(home: Nursery, tmp_path: Path, breaks: str) -> None:
    async with ring(home, tmp_path, "once") as one:
        point, wrong = await one.once(1, breaks, Point.EFFECT_SEND_AFTER)
        assert point == Point.EFFECT_SEND_AFTER
        assert any(line.startswith("I4") for line in wrong) == bool(breaks), wrong


@pytest.mark.parametrize("breaks", ["no_look_up", ""])
async def test_an_effect_that_is_sent_again_without_evidence_is_found(
    home: Nursery, tmp_path: Path, breaks: str
) -> None:
    async with ring(home, tmp_path, "once_done") as one:
        _, wrong = await one.once(NEVER, breaks)
        assert any(line.startswith("I4") for line in wrong) == bool(breaks), wrong


async def test_a_cancel_that_is_forgotten_is_found(home: Nursery, tmp_path: Path) -> None:
    async with ring(home, tmp_path, "cancel") as one:
        assert await one.once(NEVER) == ("", [])
        assert any(ack.get("path", "").endswith("/cancel") for ack in one.acks), "it was acknowledged"
        outside(tmp_path, "UPDATE runs SET state = 'completed', cancel_requested = false")
        assert any(line.startswith("I1: a cancel") for line in one.wrong())


CHANGED = {
    "I3": "DELETE FROM events WHERE kind = 'run.ended'",
    "I6": "UPDATE checkpoints SET cursor = 9999",
    "I7": "UPDATE messages SET text = 'canary-query'",
    "I9": "UPDATE gates SET state = 'allowed', used_at = NULL",
}


@pytest.mark.parametrize("broken", CHANGED)
async def test_what_somebody_changes_is_found(home: Nursery, tmp_path: Path, broken: str) -> None:
    async with ring(home, tmp_path, "gate") as one:
        assert await one.once(NEVER) == ("", [])
        outside(tmp_path, CHANGED[broken])
        assert any(line.startswith(broken) for line in one.wrong()), one.wrong()


@pytest.mark.parametrize("breaks", ["early_ack", ""])
async def test_an_acknowledgement_before_the_commit_is_found(home: Nursery, tmp_path: Path, breaks: str) -> None:
    """One of the first commits is that of the message."""
    async with ring(home, tmp_path, "turn") as one:
        found: list[str] = []
        for n in range(1, 9):
            found += (await one.once(n, breaks, Point.STORE_COMMIT_BEFORE))[1]
            if found:
                break
        assert any(line.startswith("I1") for line in found) == bool(breaks), found
