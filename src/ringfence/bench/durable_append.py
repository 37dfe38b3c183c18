"""Events appended with a durable ack against group commit over plain sqlite3: by so many callers at once, each for a thread
of its own, and by one caller for one thread in one write.

Two floors (plain_commits.py): one that leaves the event loop alone, as a server must, is what is promised against; one that
blocks its caller is shown beside it. All take turns, so that whatever else the disk does meets all.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ringfence.bench.figures import Row, at_least
from ringfence.bench.machine import peak_bytes
from ringfence.bench.plain_commits import BODY, Committer, Lanes, Plain
from ringfence.bench.throwaway import state_base
from ringfence.host.app import SystemClock, SystemIds, settle_memory
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.events import Draft
from ringfence.host.store.store import SqlStore, open_store

LEAST = 0.5  # of the floor's events a second
_WARM = 300  # commits first: a log that still grows costs the disk ten times as much as one that is written over


@dataclass(frozen=True, slots=True)
class Appends:
    batches: tuple[int, ...]  # callers at once
    rounds: int  # of each, by each


@dataclass(frozen=True, slots=True)
class Sides:
    """The store and both floors, each with a database of its own."""

    store: SqlStore
    lanes: Lanes
    committer: Committer
    grouped: Lanes
    plain: Plain


def measure(say: Callable[[str], None], plan: Appends) -> tuple[list[Row], list[str]]:
    with _settled(), tempfile.TemporaryDirectory(prefix="ringfence-bench-", dir=state_base()) as name:
        return asyncio.run(_measured(say, plan, Path(name)))


@contextmanager
def _settled() -> Iterator[None]:
    """The collector as a kernel process has it."""
    before = gc.get_threshold()
    settle_memory()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def _measured(say: Callable[[str], None], plan: Appends, folder: Path) -> tuple[list[Row], list[str]]:
    most = max(plan.batches)
    bare = await _opened(folder / "bare.db")
    plain = Plain(folder / "bare.db", await _lanes(bare, most))
    await bare.close()
    groups = await _opened(folder / "groups.db")
    grouped = await _lanes(groups, most)
    await groups.close()
    store = await _opened(folder / "ours.db")
    committer = Committer(folder / "groups.db", grouped)
    rows: list[Row] = []
    notes: list[str] = []
    with closing(plain):
        try:
            sides = Sides(store, await _lanes(store, most), committer, grouped, plain)
            for _ in range(_WARM):
                await _at_once(sides, 1)
                await _group_at_once(sides, 1)
                plain.together(1)
            for size in plan.batches:
                for way in WAYS[: 1 if size == 1 else 2]:  # one event is the same either way
                    say(f"{size} {way.name}")
                    row, note = await _size(sides, way, size, plan.rounds)
                    rows.append(row)
                    notes.append(note)
        finally:
            await committer.close()
            await store.close()
    return rows, notes


async def _size(sides: Sides, way: Way, size: int, rounds: int) -> tuple[Row, str]:
    ours: list[float] = []
    group: list[float] = []
    blocking: list[float] = []
    each: list[float] = []
    for _ in range(rounds):
        blocking.append(_timed(way.blocking, sides.plain, size))
        group.append(await _awaited(way.group, sides, size))
        ours.append(await _awaited(way.ours, sides, size))
        each.append(_timed(Plain.one_by_one, sides.plain, size))
    of_ours, of_group, of_blocking, of_each = (size / median(taken) for taken in (ours, group, blocking, each))
    details = {
        "events_per_second": round(of_ours),
        "floor_per_second": round(of_group),
        "blocking_per_second": round(of_blocking),
        "commit_each_per_second": round(of_each),
        "ours_ms": round(median(ours) * 1e3, 3),
        "floor_ms": round(median(group) * 1e3, 3),
        "blocking_ms": round(median(blocking) * 1e3, 3),
        "of_blocking": round(of_ours / of_blocking, 2),
        "peak_mib": round(peak_bytes("self") / (1 << 20), 1),
    }
    what = f" {way.name}" * (size > 1)
    name = f"append of {size} event{'s' * (size > 1)}{what}, durable, of group commit over raw sqlite3"
    note = (
        f"{size}{what}: {median(ours) * 1e3:.2f} ms, raw group commit {median(group) * 1e3:.2f} ms, raw and blocking "
        f"{median(blocking) * 1e3:.2f} ms ({of_ours / of_blocking:.2f}x); against a commit for each event {of_ours / of_each:.1f}x"
    )
    return at_least(name, of_ours / of_group, "x", LEAST, **details), note


def _timed(work: Callable[[Plain, int], None], plain: Plain, size: int) -> float:
    begun = time.perf_counter()
    work(plain, size)
    return time.perf_counter() - begun


async def _awaited(work: Callable[[Sides, int], Awaitable[None]], sides: Sides, size: int) -> float:
    begun = time.perf_counter()
    await work(sides, size)
    return time.perf_counter() - begun


async def _at_once(sides: Sides, size: int) -> None:
    kind, lanes, events = EventKind.RUN_DETAIL, sides.lanes, sides.store.events
    if size == 1:
        await events.append(lanes.threads[0], kind, BODY, actor=lanes.user)
    else:
        await asyncio.gather(*(events.append(one, kind, BODY, actor=lanes.user) for one in lanes.threads[:size]))


async def _in_one(sides: Sides, size: int) -> None:
    drafts = [Draft(EventKind.RUN_DETAIL, BODY, sides.lanes.user)] * size
    await sides.store.events.append_all(sides.lanes.threads[0], drafts)


async def _group_at_once(sides: Sides, size: int) -> None:
    if size == 1:
        await sides.committer.append(sides.grouped.threads[0])
    else:
        await asyncio.gather(*(sides.committer.append(one) for one in sides.grouped.threads[:size]))


async def _group_in_one(sides: Sides, size: int) -> None:
    await sides.committer.append(sides.grouped.threads[0], size)


async def _opened(path: Path) -> SqlStore:
    return await open_store(f"sqlite:///{path}", SystemClock(), SystemIds())


async def _lanes(store: SqlStore, count: int) -> Lanes:
    await store.tenants.add("default")
    user = await store.users.add("default", "bench", UserKind.PERSON, None)
    made = [(await store.threads.add(user.tenant, f"t{n}", [user.id], False)).id for n in range(count)]
    return Lanes(user.id, tuple(made))


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    ours: Callable[[Sides, int], Awaitable[None]]
    group: Callable[[Sides, int], Awaitable[None]]
    blocking: Callable[[Plain, int], None]


WAYS = (
    Way("by callers at once", _at_once, _group_at_once, Plain.together),
    Way("in one write", _in_one, _group_in_one, Plain.in_one),
)
