"""Many turns at once in warm boxes: that none is lost and no event late, and how many a second; and the same turns each
in a fresh box.

The other side is what a team would pick that has no box per person: a sandbox per task, thrown away behind it. It is made
of the same parts, so that the only difference is the box: the same server, API, loop, commands and journal; for each turn
a user is added, whose box starts with it, and removed with the box and its files afterwards. As many of them are at work
at a time as the warm side has boxes. What such a sandbox costs without an agent at all (bubblewrap, one interpreter and
the same commands, nothing recorded) is given beside it: the floor of that way.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ringfence.bench.figures import Row, Series, at_least
from ringfence.bench.inside import PLAIN
from ringfence.bench.throwaway import CommandFailed
from ringfence.bench.watching import Seen, Watcher, person, watching
from ringfence.client import Client

LATE_MS = 1000.0
"""An event that no wake brought to its watcher: the store then looks by itself once a second."""
KINDS = ["message", "run.queued", "run.started", *["step.begun", "step.ended"] * 3, "reply", "run.ended"]


@dataclass(frozen=True, slots=True)
class Crowd:
    turns: int
    boxes: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn as its watcher saw it."""

    mark: str
    begun: float  # perf_counter
    thread: str
    turn: str
    events: list[Seen]

    @property
    def ended(self) -> float:
        return self.events[-1].came

    @property
    def whole_ms(self) -> float:
        return (self.ended - self.begun) * 1e3


def commands(mark: str) -> list[str]:
    return [f"echo {mark} > made-{mark}", f"cat made-{mark}", "seq 1 1000 | wc -l"]


def wrong(answered: Answered) -> list[str]:
    """What the events of a turn that was alone in its thread should not be. Pure."""
    events, bad = answered.events, []
    if [event.cursor for event in events] != list(range(1, len(events) + 1)):
        bad.append(f"{answered.thread}: cursors {[event.cursor for event in events]}")
    if [event.kind for event in events] != KINDS:
        bad.append(f"{answered.thread}: {[event.kind for event in events]}")
    reply = next((str(event.body.get("text")) for event in events if event.kind == "reply"), "")
    if f"\n{answered.mark}" not in reply or reply.count("[exit code 0]") != 3 or "1000" not in reply:
        bad.append(f"{answered.thread}: the reply is {reply[:200]!r}")
    return bad


async def measure(operator: Client, address: str, crowd: Crowd) -> list[Row]:
    async with AsyncExitStack() as stack:
        people = [await stack.enter_async_context(person(operator, address, f"c{n}")) for n in range(crowd.boxes)]
        for number in range(crowd.boxes):
            await operator.start_box(f"c{number}")
        rounds = [await _round(people, crowd.turns, f"r{n}") for n in range(crowd.rounds + 1)][1:]  # the first warms
        for number in range(crowd.boxes):
            await operator.stop_box(f"c{number}")
    fresh = await _fresh(operator, address, crowd)
    bare = await _bare(crowd)
    return [_complete(rounds, crowd), _throughput(rounds, fresh, bare, crowd)]


async def _round(people: list[Client], turns: int, name: str) -> list[Answered]:
    """All of them posted at once, in threads of their own."""
    async with AsyncExitStack() as stack:
        watchers = [
            (client, await stack.enter_async_context(watching(client, f"{name}-{number}")))
            for number in range(turns)
            for client in [people[number % len(people)]]
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_turn(client, watcher, watcher.thread)) for client, watcher in watchers]
        return [task.result() for task in tasks]


async def _turn(client: Client, watcher: Watcher, mark: str) -> Answered:
    begun = time.perf_counter()
    posted = await client.post_message(watcher.thread, "\n".join(f"$ {command}" for command in commands(mark)))
    await watcher.until(posted["turn"], "run.ended")
    return Answered(mark, begun, watcher.thread, posted["turn"], watcher.seen)


async def _fresh(operator: Client, address: str, crowd: Crowd) -> float:
    """Seconds for all of the turns, each in a box that is made for it and removed behind it."""
    room = asyncio.Semaphore(crowd.boxes)

    async def alone(number: int) -> None:
        name = f"f{number}"
        async with room:
            async with person(operator, address, name) as client, watching(client, name) as watcher:
                bad = wrong(await _turn(client, watcher, name))
            if bad:
                raise CommandFailed("; ".join(bad))
            await operator.remove_user(name, purge=True)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(crowd.turns):
            group.create_task(alone(number))
    return time.perf_counter() - begun


async def _bare(crowd: Crowd) -> float:
    """Seconds for the turns' commands alone, each turn's in a bubblewrap of its own."""
    room = asyncio.Semaphore(crowd.boxes)
    jail = [*PLAIN.split(), "--tmpfs", "/tmp", "--chdir", "/tmp", "--unshare-all"]
    run = "import subprocess, sys\nfor line in sys.argv[1:]: subprocess.run(['/bin/bash', '-c', line], check=True)"

    async def alone(number: int) -> None:
        argv = [*jail, "/usr/bin/python3", "-I", "-S", "-c", run, *commands(f"b{number}")]
        async with room:
            process = await asyncio.create_subprocess_exec(
                shutil.which("bwrap") or "bwrap", *argv, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await process.communicate()
        if process.returncode or f"b{number}".encode() not in said:
            raise CommandFailed(f"a bare bubblewrap ended with {process.returncode} and said {said!r}")

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(crowd.turns):
            group.create_task(alone(number))
    return time.perf_counter() - begun


def _complete(rounds: list[list[Answered]], crowd: Crowd) -> Row:
    turns = [answered for each in rounds for answered in each]
    bad = [what for answered in turns for what in wrong(answered)]
    lags = Series(tuple(event.lag_ms for answered in turns for event in answered.events))
    late = sum(lag > LATE_MS for lag in lags.samples)
    whole = Series(tuple(answered.whole_ms for answered in turns))
    return Row(
        f"{crowd.turns} turns at once in {crowd.boxes} boxes, {crowd.rounds} times",
        f"{len(turns)} answered, {len(bad)} with something missing or out of order, {late} late events of "
        f"{len(lags.samples)}; event to watcher p50 {lags.p50:.0f} ms, p99 {lags.p99:.0f}; turn p50 {whole.p50:.0f} ms",
        f"none lost, none out of order, no event later than {LATE_MS:.0f} ms",
        not bad and not late and len(turns) == crowd.turns * crowd.rounds,
        {"wrong": bad[:20], "late": late, "events": lags.as_json(), "turns": whole.as_json()},
    )


def _throughput(rounds: list[list[Answered]], fresh: float, bare: float, crowd: Crowd) -> Row:
    spans = [max(a.ended for a in each) - min(a.begun for a in each) for each in rounds]
    warm = statistics.median(crowd.turns / span for span in spans)
    return at_least(
        "turns a second in warm boxes, against the same turns each in a fresh box",
        warm / (crowd.turns / fresh),
        "x",
        1,
        warm_per_second=round(warm, 2),
        fresh_per_second=round(crowd.turns / fresh, 2),
        bare_per_second=round(crowd.turns / bare, 2),
    )
