"""The wire of a box is cut again and again while commands run: each has one outcome, its own, and none runs twice."""

from __future__ import annotations

import asyncio
import random

import pytest

from ringfence.host.broker.link import WireLink
from ringfence.host.kernel.errors import BoxLost
from ringfence.host.kernel.ports import Outcome
from tests.support.driver_stage import Stage, command, own_installation, stage

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
COMMANDS = 30
CUTS = 15


class Wires:
    """The newest wire, which somebody cuts."""

    def __init__(self, stage: Stage, link: WireLink) -> None:
        self._stage = stage
        self.link = link

    async def cut(self, chance: random.Random) -> None:
        for _ in range(CUTS):
            await asyncio.sleep(chance.random() * 0.08)
            self.link.exchange.channel.abort("", "cut by a test")
            self.link = await self._stage.again()

    async def step(self, number: int, script: str) -> Outcome:
        """As the engine does it: the same key until there is an outcome."""
        while True:
            try:
                started = await self.link.spawn(f"s/run_a/{number}", command("/bin/sh", "-c", script, output="keep"))
            except BoxLost:
                await asyncio.sleep(0.005)
                continue
            outcome = await started.outcome()
            await started.release()
            return outcome


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_commands_over_a_wire_that_is_cut_again_and_again(seed: int) -> None:
    chance = random.Random(seed)
    async with stage() as s:
        s.host.redials = True
        wires = Wires(s, await s.up())
        scripts = [
            f"echo {n} >> /home/user/ran-{n}; sleep {chance.random():.3f}; echo out-{n}; exit {n}"
            for n in range(COMMANDS)
        ]
        async with asyncio.TaskGroup() as group:
            steps = [group.create_task(wires.step(n, script)) for n, script in enumerate(scripts)]
            group.create_task(wires.cut(chance))
        for number, step in enumerate(steps):
            outcome = step.result()
            assert (outcome.code, outcome.reason) == (number, "exit")
            assert outcome.stdout is not None
            assert outcome.stdout.head == b"out-%d\n" % number
        check = await wires.step(1000, "cat /home/user/ran-* | wc -l")
        assert check.stdout is not None
        assert check.stdout.head.strip() == b"%d" % COMMANDS  # each ran once
        await asyncio.sleep(0.1)
        last = await s.again()
        assert last.hello.commands == {}  # every outcome was acknowledged: the guest keeps nothing
        s.host.gave_up.set()
