"""The measurements of `bench life` that need the engine in the measuring process: resume, start from stopped, fifty at once.

A process of its own, as bench/inside.py, which says how.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from ringfence.bench.inside import PLAIN, TENANT, command, main, milliseconds, person, spawned, timed
from ringfence.spawner.config import Config

if TYPE_CHECKING:
    from ringfence.host.engine.engine import Engine
    from ringfence.host.kernel.people import Actor
    from ringfence.host.kernel.settings import Settings

RESUMES, STARTS, CROWD = 300, 21, 50


async def resumes(engine: Engine, operator: Actor) -> dict[str, list[float]]:
    """Both as the engine does them for whoever asks; a command behind each, which shows that the box is there."""
    actor = await person(engine, operator, "rest")
    await command(engine, actor, "rest")
    pause, resume = [], []
    for _ in range(RESUMES):
        begun = time.perf_counter()
        await engine.life.pause(actor, TENANT, "rest")
        between = time.perf_counter()
        await engine.life.resume(actor, TENANT, "rest")
        ended = time.perf_counter()
        await command(engine, actor, "rest")
        pause.append((between - begun) * 1e3)
        resume.append((ended - between) * 1e3)
    return {"pause": pause, "resume": resume}


async def stopped(engine: Engine, operator: Actor, config: Config) -> dict[str, list[float]]:
    """Spaced, as bench boxes does it: starts that follow at once are cheaper, on both sides."""
    bare = [config.bwrap, *PLAIN.split(), "--unshare-all", config.python, "-I", "-S", "-c", "pass"]
    actor = await person(engine, operator, "stopped")
    await command(engine, actor, "stopped")
    ours, floor = [], []
    for _ in range(STARTS):
        await engine.boxes.stop(actor, TENANT, "stopped")
        await asyncio.sleep(0.3)
        ours.append(await timed(engine, actor, "stopped"))
        await asyncio.sleep(0.3)
        floor.append(milliseconds(lambda: spawned(bare)))
    return {"ours": ours[1:], "floor": floor[1:]}


async def crowd(engine: Engine, operator: Actor) -> list[float]:
    """First commands of users whose boxes were made and never started."""
    actors = [await person(engine, operator, f"crowd{number}") for number in range(CROWD)]
    return list(await asyncio.gather(*(timed(engine, actor, f"crowd{n}") for n, actor in enumerate(actors))))


async def measure(fd: int, config: Config, settings: Settings) -> dict[str, object]:
    from ringfence.host.app import running
    from ringfence.host.drivers.spawner_client import SpawnerClient

    client = SpawnerClient(fd)
    try:
        async with running(settings, client) as engine:
            operator = engine.people.operator(os.getuid(), os.getgid(), os.getpid())
            found: dict[str, object] = {
                **await resumes(engine, operator),
                "stopped": await stopped(engine, operator, config),
                "crowd": await crowd(engine, operator),
            }
            for view in await engine.boxes.list(operator, None):
                await engine.boxes.stop(operator, TENANT, view.user)
            return found
    finally:
        client.close()


if __name__ == "__main__":
    main(measure)
