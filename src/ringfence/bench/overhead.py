"""One person's turns, one after the other in one warm box: what a turn costs beside its commands, how many commits it
takes, and how soon its events are at a watcher. Each thread has BLOCK turns; one goes on, to show what a long past adds.

A turn begins when its message is posted and ends when its reply is at the watcher; what its commands took themselves, by
the box's own clock, is taken off. A commit is measured between the turns, on the same file system.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

from ringfence.bench.commits import Log, Probe, between, log_of
from ringfence.bench.figures import Row, Series
from ringfence.bench.throwaway import Installation
from ringfence.bench.watching import Watcher, person, watching
from ringfence.client import Client

TEXT = "$ true"
WARM_TURNS = 5
BLOCK = 20  # turns of a thread, then as many commits: what slows the host slows both
LONG = 200  # turns of the thread that goes on; its last BLOCK count
COUNTED_TURNS = 15  # a log is started anew about each tenth turn, and such a one does not count
BASE_MS, COMMITS = 25, 16  # the promise: 25 ms + 16 commits (architecture.md, section 12)
EVENT_P50_MS, EVENT_P99_MS = 15, 60


@dataclass(frozen=True, slots=True)
class Turns:
    whole: list[float] = field(default_factory=list)  # milliseconds
    accepted: list[float] = field(default_factory=list)  # of it, until the post was answered
    runs: list[str] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)  # milliseconds of each of the probe's


async def measure(made: Installation, operator: Client, address: str, turns: int) -> list[Row]:
    database = made.home / "db" / "ringfence.db"
    probe = await asyncio.to_thread(Probe, made.home / "probe.db")
    try:
        async with person(operator, address, "one") as client:
            found, lags, late = Turns(), [], Turns()
            for first in range(0, turns, BLOCK):
                async with watching(client, f"one-{first}") as watcher:
                    lags += await _block(client, watcher, found, min(BLOCK, turns - first))
                found.commits.extend(await asyncio.to_thread(probe.commits, BLOCK))
            async with watching(client, "long") as watcher:
                for _ in range(min(LONG, turns) - BLOCK):
                    await _turn(client, watcher, Turns())
                await _block(client, watcher, late, BLOCK)
                counted = await _counted(client, watcher, database)
            ours, long = await _costs(client, found), await _costs(client, late)
        store = (await operator.status())["parts"]["store"]
    finally:
        await asyncio.to_thread(probe.close)
    return [_overhead(found, ours, long, counted, store["commit_ms"]), events_row(Series(tuple(lags)))]


async def _block(client: Client, watcher: Watcher, found: Turns, turns: int) -> list[float]:
    """How late each event was, in milliseconds. The first turns of a watcher do not count: it is connecting."""
    for _ in range(WARM_TURNS):
        await _turn(client, watcher, Turns())
    from_here = len(watcher.seen)
    for _ in range(turns):
        await _turn(client, watcher, found)
    return [event.lag_ms for event in watcher.seen[from_here:]]


async def _turn(client: Client, watcher: Watcher, found: Turns) -> None:
    begun = time.perf_counter()
    posted = await client.post_message(watcher.thread, TEXT)
    answered = time.perf_counter()
    reply = await watcher.until(posted["turn"], "reply")
    found.whole.append((reply.came - begun) * 1e3)
    found.accepted.append((answered - begun) * 1e3)
    found.runs.append(posted["run"])
    await watcher.until(posted["turn"], "run.ended")  # the next one must not queue behind it


async def _costs(client: Client, found: Turns) -> Series:
    """Of each turn, without its commands' own time."""
    return Series(tuple([t - await _commands_ms(client, r) for t, r in zip(found.whole, found.runs, strict=True)]))


async def _commands_ms(client: Client, run: str) -> float:
    steps = (await client.run(run))["steps"]
    return float(sum(step["result"]["duration_ms"] for step in steps))


async def _counted(client: Client, watcher: Watcher, database: Path) -> list[int]:
    """Commits of single turns."""
    found: list[int] = []
    for _ in range(COUNTED_TURNS):
        before: Log = await asyncio.to_thread(log_of, database)
        await _turn(client, watcher, Turns())
        count = between(before, await asyncio.to_thread(log_of, database))
        found += [] if count is None else [count]
    return found


def _overhead(found: Turns, ours: Series, late: Series, counted: list[int], servers_ms: float) -> Row:
    accepted, commit = Series(tuple(found.accepted)), Series(tuple(found.commits))
    most = BASE_MS + COMMITS * commit.p50
    commits = statistics.median(counted) if counted else None
    return Row(
        "turn overhead: from the post until the reply is at its watcher, without the commands' own time",
        f"p50 {ours.p50:.1f} ms, p99 {ours.p99:.1f}; post answered p50 {accepted.p50:.1f} ms; a commit p50 {commit.p50:.2f} ms; {commits} commits a turn; in a thread of {LONG} turns p50 {late.p50:.1f} ms",
        f"p50 <= {BASE_MS} ms + {COMMITS} commits = {most:.1f} ms",
        ours.p50 <= most,
        {
            "overhead": ours.as_json(),
            "limit_ms": round(most, 3),
            "whole": Series(tuple(found.whole)).as_json(),
            "accepted": accepted.as_json(),
            "commit": commit.as_json(),
            "server_commit_ms": servers_ms,
            "commits_per_turn": commits,
            "long_thread": late.as_json(),
        },
    )


def events_row(lags: Series) -> Row:
    return Row(
        "event at its watcher, after its own time (which is taken before its commit)",
        f"p50 {lags.p50:.1f} ms, p99 {lags.p99:.1f}",
        f"p50 <= {EVENT_P50_MS} ms, p99 <= {EVENT_P99_MS}",
        lags.p50 <= EVENT_P50_MS and lags.p99 <= EVENT_P99_MS,
        {"events": lags.as_json()},
    )
