"""Everything of a box but the engine, real: a spawner, the driver, the broker, the guest as PID 1. Root only."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest

from ringfence.host.broker.broker import WireBroker
from ringfence.host.broker.link import WireLink
from ringfence.host.drivers.bubblewrap import Bubblewrap
from ringfence.host.drivers.files import FilesClient
from ringfence.host.drivers.spawner_client import SpawnerClient
from ringfence.host.install.guest_tree import build
from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import CommandSpec
from tests.support import spawner_rig
from tests.support.scripted_guest import AuditLog, RecordingHost

BOX = BoxId("driverboxdriverb")
SECONDS = 60.0
# Apart from the spawner's own tests (1.70e9-1.77e9), from another run of these, and from installations (1.88e9 and up).
FIRST_ID = 1_800_000_000 + os.getpid() % 65536 * 1024
INSTALLATION = "driversof" + spawner_rig.INSTALLATION[-7:]


@pytest.fixture(autouse=True)
def own_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a module that imports it: its spawners' cgroups have a name of their own."""
    monkeypatch.setattr(spawner_rig, "INSTALLATION", INSTALLATION)


@dataclass
class Stage:
    rig: spawner_rig.Rig
    client: SpawnerClient
    driver: Bubblewrap
    broker: WireBroker
    host: RecordingHost

    async def up(
        self,
        box: BoxId = BOX,
        kind: BoxKind = BoxKind.HOME,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> WireLink:
        """The box, started from nothing if need be, and its wire."""
        await self.driver.provision(box, kind, limits)
        identity = await self.driver.start(box, limits)
        return await self.broker.attach(box, await self.driver.dial(box, identity), self.host)

    async def again(self, box: BoxId = BOX) -> WireLink:
        """A newer wire to the box that runs."""
        identity = (await self.driver.observe(box)).identity
        assert identity is not None
        return await self.broker.attach(box, await self.driver.dial(box, identity), self.host)


@asynccontextmanager
async def stage(*, outward: bool = False) -> AsyncIterator[Stage]:
    """`outward`: with an egress template."""
    rig = spawner_rig.make(ids=(FIRST_ID + 8, FIRST_ID + 807), kernel=(FIRST_ID, FIRST_ID), outward=outward)
    try:
        guest = rig.home / "runtime" / "test" / "guest"
        shutil.rmtree(guest)
        build(guest, spawner_rig.PYTHON)
        rig.start(greet=False)
        assert rig.channel is not None
        client = SpawnerClient(rig.channel.detach())
        rig.channel = None
        host = RecordingHost()
        broker = WireBroker("kernel-1", AuditLog())
        async with asyncio.timeout(SECONDS):
            try:
                driver = Bubblewrap(rig.home, client, FilesClient)
                await driver.facts()
                yield Stage(rig, client, driver, broker, host)
            finally:
                await broker.close()
                client.close()
    finally:
        rig.stop()
        rig.clean()


def command(*argv: str, output: Literal["stream", "keep"] = "stream", home: str = "/home/user") -> CommandSpec:
    env = {"PATH": b"/usr/bin:/bin", "HOME": home.encode()}
    return CommandSpec([part.encode() for part in argv], env, home, "null", output, 30.0)
