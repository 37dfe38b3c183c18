"""An engine with its way out, all of it real: spawner, boxes, template, workers, store, vault; upstreams are on loopback, by pins.

Root only. `restart` is what a server that is killed and started again does to it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ringfence.host.broker.broker import WireBroker
from ringfence.host.egress.configuration import Pin
from ringfence.host.egress.site import Site
from ringfence.host.egress.way_out import Sources, WayOut
from ringfence.host.engine.commands import ExecRequest
from ringfence.host.engine.engine import Engine
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Position, Scheme
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Command, Outcome
from ringfence.host.models.gateway import Gateway
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.store import SqlStore, open_store
from ringfence.host.vault.authorities import VaultAuthorities
from ringfence.host.vault.release import Counter
from ringfence.host.vault.vault import SealedVault
from tests.support.databases import address
from tests.support.driver_stage import Stage, stage
from tests.support.egress_tls import Authority
from tests.support.egress_upstream import Upstream
from tests.support.engine_rig import CONFIG, OPERATOR, Numbers, RealClock
from tests.support.scripted_guest import AuditLog
from tests.support.seals import seals
from tests.support.store import newest
from tests.support.vault_rig import a_vault, put_key

SECRET = b"s3cretVALUEs3cretVALUE0123456789abcd"
BEARER = (Position(), Position(scheme=Scheme.BASIC_PASSWORD))


@dataclass
class Outside:
    """The engine, and what is around it."""

    stage: Stage
    store: SqlStore
    vault: SealedVault
    upstream: Upstream
    site: Site
    clock: RealClock = field(default_factory=RealClock)
    ids: Numbers = field(default_factory=Numbers)
    actors: dict[str, Actor] = field(default_factory=dict)
    engine: Engine = None  # type: ignore[assignment]  # made by `begin`
    egress: WayOut = None  # type: ignore[assignment]
    gateway: Gateway | None = None  # of models; one that is set later is there after `restart`

    async def begin(self) -> None:
        authorities = VaultAuthorities(self.vault, self.store.credentials, self.clock, self.ids)
        releases = Counter(self.vault, self.store.credentials, self.store.audit)
        driver = self.stage.driver
        sources = Sources(
            self.store, driver, releases, authorities, self.clock, self.ids, self.site, b"placeholder key", self.gateway
        )
        self.egress = WayOut(sources)
        worker = self.ids.new("krn")
        broker = WireBroker(worker, AuditLog())
        self.stage.broker = broker
        config = replace(CONFIG, mode="root")
        parts = Parts(
            self.store,
            driver,
            broker,
            {"scripted": Scripted()},
            self.clock,
            self.ids,
            config,
            worker,
            egress=self.egress,
        )
        self.engine = Engine(parts)
        await self.engine.start()

    async def restart(self) -> None:
        await self.engine.stop()
        await self.stage.broker.close()
        await self.begin()

    async def person(self, name: str) -> Actor:
        user = await self.engine.people.user_add(OPERATOR, "default", name)
        self.actors[name] = Actor(user=user, operator=False, via="token:t")
        return self.actors[name]

    async def box(self, name: str) -> BoxId:
        user = self.actors[name].user
        assert user is not None
        return (await self.store.boxes.home_of(user, self.stage.driver.name, CONFIG.limits)).id

    async def start(self, name: str, script: str, **fields: Any) -> Command:
        request = ExecRequest(argv=[b"/bin/sh", b"-c", script.encode()], env={}, output="keep", timeout=60.0)
        return await self.engine.commands.run(self.actors[name], "default", name, replace(request, **fields))

    async def run(self, name: str, script: str) -> Outcome:
        return await (await self.start(name, script)).outcome()

    async def said(self, name: str, script: str) -> str:
        ended = await self.run(name, script)
        assert ended.stdout is not None and ended.stderr is not None
        assert ended.code == 0, (ended.reason, ended.message, ended.stdout.head, ended.stderr.head)
        return ended.stdout.head.decode()

    # --- rules and secrets -----------------------------------------------------------------------------------------

    async def allow(self, name: str, host: str = "api.test", **fields: Any) -> EgressRule:
        user = self.actors[name].user
        assert user is not None
        rule = EgressRule("", fields.pop("answer", Verdict.ALLOW), host, **fields)
        made = await self.store.egress_rules.add((user.tenant, user.id), rule)
        await self.egress.reload([user.id])
        return made

    async def secret(self, name: str, value: bytes = SECRET, environment: Sequence[str] = ("GH_TOKEN",)) -> Credential:
        """Stored, and bound to api.test."""
        user = self.actors[name].user
        assert user is not None
        now = self.clock.now()
        draft = Credential(self.ids.new("crd"), user.tenant, Owner.USER, user.id, "token", 1, "opaque", now, now)
        made = await self.vault.put(self.store.credentials, draft, Secret(value))
        binding = Binding("", made.id, "api.test", positions=BEARER, environment=tuple(environment), shape="github")
        await self.store.credentials.bind(user.id, binding)
        await self.egress.reload([user.id])
        return made

    async def audited_in(self, lane: Lane) -> list[dict[str, Any]]:
        return await self.store.audit.page({lane}, None, None, 50)

    async def audited(self, action: str) -> list[dict[str, Any]]:
        return [row for row in await newest(self.store.audit, 200) if row["action"] == action]


async def until(rows: Callable[[], Awaitable[list[dict[str, Any]]]], count: int) -> list[dict[str, Any]]:
    """The rows, once there are so many."""
    async with asyncio.timeout(30):
        while len(found := await rows()) < count:
            await asyncio.sleep(0.02)
        return found


def error_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)["error"]
    return found


@asynccontextmanager
async def outside(names: Sequence[str] = ("alice",), **site: Any) -> AsyncIterator[Outside]:
    """`site`: further fields of Site."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        upstream_ca, upstream = Authority(folder, "upstream"), Upstream()
        await upstream.start(upstream_ca.context("api.test"))
        put_key(folder)
        store = await open_store(
            address(folder), RealClock(), Numbers(), installation=CONFIG.installation, seals=seals(folder)
        )
        try:
            await store.tenants.add("default")
            async with stage(outward=True) as s:
                pins = tuple(Pin(host, 443, "127.0.0.1", upstream.port) for host in ("api.test",))
                known = Site(roots=upstream_ca.pem, pins=pins, **site)
                o = Outside(s, store, await a_vault(folder, store), upstream, known)
                await o.begin()
                try:
                    for name in names:
                        await o.person(name)
                    yield o
                finally:
                    await o.engine.stop()
                    for name in names:
                        await s.driver.stop(await o.box(name))
        finally:
            await store.close()
            await asyncio.sleep(0)
            await upstream.stop()
