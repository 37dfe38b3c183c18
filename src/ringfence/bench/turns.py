"""`ringfence bench turns`: what a turn of the agent costs beside its commands, how soon it is seen, how many go at once,
and what the server keeps of each. In one run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ringfence.bench import crowd, growth, overhead
from ringfence.bench.crowd import Crowd
from ringfence.bench.figures import Row
from ringfence.bench.growth import Course
from ringfence.bench.throwaway import CommandFailed, Installation, installation
from ringfence.bench.watching import free_address
from ringfence.client import ApiError, Client

Part = Callable[[Installation, Client, str], Awaitable[list[Row]]]


@dataclass(frozen=True, slots=True)
class Plan:
    turns: int  # one after the other
    crowd: Crowd
    settle: int  # turns of a server before its memory is looked at, those one after the other included
    grow: int  # and while it is


WHOLE = Plan(turns=200, crowd=Crowd(turns=50, boxes=20, rounds=3), settle=1000, grow=2000)


def run(say: Callable[[str], None], plan: Plan = WHOLE) -> tuple[list[Row], list[str]]:
    """(rows, notes). Makes two throw-away installations one after the other. CommandFailed."""
    notes: list[str] = []

    async def one_by_one(made: Installation, operator: Client, address: str) -> list[Row]:
        say(f"{plan.turns} turns one after the other")
        rows = await overhead.measure(made, operator, address, plan.turns)
        if os.geteuid() != 0:
            notes.append("the server's memory is not measured: its own account cannot look into it; run as root")
            return rows
        say(f"{plan.settle + plan.grow} turns: memory")  # before any crowd: a peak leaves holes that growth would fill
        course = Course(made.kernel_pid(), plan.settle, plan.grow, done=plan.turns)
        return [*rows, await growth.measure(operator, address, course)]

    async def at_once(made: Installation, operator: Client, address: str) -> list[Row]:
        say(f"{plan.crowd.turns} turns at once in {plan.crowd.boxes} boxes, and each in a fresh one")
        return await crowd.measure(operator, address, plan.crowd)

    rows = _part(one_by_one)
    return [*rows, *_part(at_once, f"max_runs = {plan.crowd.turns}\nmax_user_runs = 0\n")], notes


def _part(part: Part, settings: str = "") -> list[Row]:
    address = free_address()
    with installation("--listen", address, settings=settings, name="bench") as made:

        async def driven() -> list[Row]:
            async with Client(socket=made.socket) as operator:
                return await part(made, operator, address)

        try:
            return asyncio.run(driven())
        except ApiError as error:
            raise CommandFailed(error.message) from error
        except ExceptionGroup as group:
            raise _told(group) from group


def _told(group: ExceptionGroup[Exception]) -> Exception:
    """The first error that a TaskGroup wrapped, as the one kind that callers know."""
    first = group.exceptions[0]
    if isinstance(first, ExceptionGroup):
        return _told(first)
    return first if isinstance(first, CommandFailed) else CommandFailed(f"{type(first).__name__}: {first}")
