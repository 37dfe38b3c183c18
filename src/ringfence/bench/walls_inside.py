"""What walls cost, and how fast a box stands still, goes on and dies: three spawners in one run (walls_sides.py).

A process of its own, as inside.py. The sides take turns, so that what slows the host slows all. Prints one JSON object.
Must never run on a state that a server uses (the spawner's lock sees to it).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ringfence.bench.inside import TENANT
from ringfence.bench.walls_sides import BARE, JAIL, SIDES, USER, WHOLE, Side, forked, joined, opening
from ringfence.spawner import config as spawner_config
from ringfence.spawner import main as spawner
from ringfence.spawner import tasks
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.config import Config

WARM_ROUNDS, WARM_BLOCK = 25, 16
COLD_ROUNDS = 31
MADE_ROUNDS = 11
FREEZE_ROUNDS = 100
KILL_ROUNDS, KILLED = 5, 500
Sides = Mapping[str, Side]
Samples = dict[str, list[float]]  # of each side, milliseconds


def turns(sides: Sides, rounds: int) -> Iterator[tuple[int, str, Side]]:
    """Each side once a round, forwards and backwards in turn. Round 0 warms all and is not to be counted."""
    for number in range(rounds + 1):
        order = SIDES if number % 2 else SIDES[::-1]
        yield from ((number, name, sides[name]) for name in order)


async def warm(sides: Sides) -> Samples:
    took: Samples = {name: [] for name in sides}
    for number, name, side in turns(sides, WARM_ROUNDS):
        block = [await side.command() for _ in range(WARM_BLOCK)]
        took[name] += block if number else []
    return took


async def cold(sides: Sides) -> Samples:
    """A stopped box's next command, spaced as in inside.py."""
    took: Samples = {name: [] for name in sides}
    for number, name, side in turns(sides, COLD_ROUNDS):
        await side.stop()
        await asyncio.sleep(0.3)
        one = await side.command()
        took[name] += [one] if number else []
    return took


async def made(sides: Sides) -> Samples:
    """A new user's ids, tree and disk."""
    took: Samples = {name: [] for name in sides}
    for number, name, side in turns(sides, MADE_ROUNDS):
        one = await side.made(f"made{number}")
        took[name] += [one] if number else []
    return took


async def as_said(name: str, side: Side, home: Path, cgroups: Cgroups) -> None:
    """RuntimeError: a side has what it should lack, or lacks what it should have."""
    await side.command()
    [box] = os.listdir(home / "boxes")
    code = (await (await _shell(side, "unshare --user true")).outcome()).code
    found = ((home / "boxes" / box / "disk.img").exists(), cgroups.populated(box), code != 0)
    if found != {WHOLE: (True, True, True), JAIL: (False, True, True), BARE: (False, False, False)}[name]:
        raise RuntimeError(f"the side {name} has (disk image, cgroup, seccomp) {found}")


async def frozen(side: Side, driver: Any) -> Samples:
    """Freeze and thaw of a box whose command forks without a pause, as the driver is asked."""
    started = await _shell(side, "while :; do /bin/true; done")
    [box] = await driver.running()
    took: Samples = {"freeze": [], "thaw": []}
    for _ in range(FREEZE_ROUNDS):
        for name, turn in (("freeze", driver.freeze), ("thaw", driver.thaw)):
            begun = time.perf_counter()
            await turn(box)
            took[name].append((time.perf_counter() - begun) * 1e3)
            await asyncio.sleep(0.01)
    await side.stop()
    with contextlib.suppress(Exception):  # its box was stopped: whatever it ends with
        await started.outcome()
    return took


async def killed(side: Side, driver: Any, cgroups: Cgroups) -> list[float]:
    """cgroup.kill until the box is empty."""
    took = []
    for _ in range(KILL_ROUNDS):
        started = await _shell(side, f"i=0; while [ $i -lt {KILLED} ]; do sleep 600 & i=$((i+1)); done; wait")
        [box] = await driver.running()
        await asyncio.to_thread(_filled, cgroups, box)
        begun = time.perf_counter()
        tasks.run(cgroups.kill(box))
        took.append((time.perf_counter() - begun) * 1e3)
        with contextlib.suppress(Exception):
            await started.outcome()
        await side.stop()
    return took


def _filled(cgroups: Cgroups, box: str) -> None:
    while len(cgroups.processes(box)) < KILLED:
        time.sleep(0.02)


async def _shell(side: Side, script: str) -> Any:
    from ringfence.host.engine.commands import ExecRequest

    side.as_person()
    argv = [b"/bin/sh", b"-c", script.encode()]
    asked = ExecRequest(argv=argv, env={}, cwd=None, timeout=None, stdin="null", output="stream")
    return await side.engine.commands.run(side.actor, TENANT, USER, asked)


async def measure(
    ends: Mapping[str, int], configs: Mapping[str, Config], given: Mapping[str, Any], cgroups: Mapping[str, Cgroups]
) -> dict[str, object]:
    """All of each side. `given`: settings as JSON."""
    from ringfence.host.app import running
    from ringfence.host.drivers.bubblewrap import Bubblewrap
    from ringfence.host.drivers.files import FilesClient
    from ringfence.host.drivers.spawner_client import SpawnerClient
    from ringfence.host.kernel.settings import Settings

    async with contextlib.AsyncExitStack() as stack:
        sides, clients = {}, {}
        for name in configs:
            settings = Settings.from_json(given[name])
            roomy = dataclasses.replace(settings, limits=dataclasses.replace(settings.limits, pids=KILLED * 2))
            clients[name] = SpawnerClient(ends[name])
            stack.callback(clients[name].close)
            engine = await stack.enter_async_context(running(roomy, clients[name]))
            sides[name] = side = await joined(engine, name)
            stack.push_async_callback(side.stop)  # also of a run that failed: boxes outlive their server
            await as_said(name, side, Path(configs[name].home), cgroups[name])
        found: dict[str, object] = {"warm": await warm(sides), "cold": await cold(sides), "made": await made(sides)}
        driver = Bubblewrap(Path(configs[WHOLE].home), clients[WHOLE], FilesClient)
        found["frozen"] = await frozen(sides[WHOLE], driver)
        found["killed"] = {"kill": await killed(sides[WHOLE], driver, cgroups[WHOLE])}
        return found


def main() -> None:
    """`argv`: the spawner configurations of the installations, in the order of SIDES."""
    configs = dict(zip(SIDES, map(spawner_config.load, sys.argv[1:]), strict=True))
    opened = {}
    for name, config in configs.items():
        with opening(name):
            opened[name] = spawner.open_host(config)
    ends: dict[str, int] = {}
    for name, (host, _lock) in opened.items():
        ends[name] = forked(host, name, close=list(ends.values()))
    given = {name: json.loads(Path(config.kernel_config).read_text()) for name, config in configs.items()}
    cgroups = {name: host.cgroups for name, (host, _lock) in opened.items()}
    print(json.dumps(asyncio.run(measure(ends, configs, given, cgroups))))  # noqa: T201
    for _ in ends:
        os.wait()
    for found in cgroups.values():
        found.leave()


if __name__ == "__main__":
    main()
