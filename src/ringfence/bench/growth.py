"""What the kernel process keeps of each turn: its anonymous memory over thousands of them, as the slope of a line.

Looked at from outside, as its operator would see it: nothing is collected or trimmed for the figure. The first turns do
not count, since pools, caches and heaps fill in them. Threads are short, so that each turn does the same work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ringfence.bench.figures import Line, Row, at_most
from ringfence.bench.machine import anonymous_bytes
from ringfence.bench.overhead import TEXT
from ringfence.bench.watching import person, watching
from ringfence.client import Client

PEOPLE = 4  # at two cores, more at once make no more turns a second
THREAD_TURNS = 25
SAMPLE_TURNS = 10
KIB = 1024
MOST_KIB = 1.0


@dataclass
class Course:
    pid: int
    settle: int  # turns that do not count
    turns: int  # that do
    done: int = 0
    points: list[tuple[float, float]] = field(default_factory=list)  # (turns done, bytes)

    @property
    def more(self) -> bool:
        return self.done < self.settle + self.turns

    def count(self) -> None:
        self.done += 1
        if self.done >= self.settle and self.done % SAMPLE_TURNS == 0:
            self.points.append((float(self.done), float(anonymous_bytes(self.pid))))


async def measure(operator: Client, address: str, course: Course) -> Row:
    async with asyncio.TaskGroup() as group:
        for number in range(PEOPLE):
            group.create_task(_works(operator, address, f"grow{number}", course))
    line = Line.through(course.points)
    first, last = course.points[0][1], course.points[-1][1]
    return at_most(
        f"memory that the kernel process grows by with each turn after the first {course.settle}",
        line.slope / KIB,
        "KiB",
        MOST_KIB,
        turns=course.done,
        error_kib=round(line.error / KIB, 3),
        first_mib=round(first / KIB / KIB, 2),
        last_mib=round(last / KIB / KIB, 2),
    )


async def _works(operator: Client, address: str, name: str, course: Course) -> None:
    async with person(operator, address, name) as client:
        thread = 0
        while course.more:
            thread += 1
            async with watching(client, f"{name}-{thread}") as watcher:
                for _ in range(THREAD_TURNS):
                    posted = await client.post_message(watcher.thread, TEXT)
                    await watcher.until(posted["turn"], "run.ended")
                    course.count()
