"""The gateway and the native providers over a real store and a provider on loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.models.ports import Caller, Going
from ringfence.host.kernel.models.upstreams import Api, Kind, Upstream
from ringfence.host.kernel.models.usage import BudgetLimits, Prices
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.budgets import Budgets
from ringfence.host.models.gateway import Gateway
from ringfence.host.models.native import NativeModel
from ringfence.host.models.upstream_client import UpstreamClient
from tests.support.clocks import CountingIds
from tests.support.provider_double import Answer, Provider, a_provider
from tests.support.store import Team, a_team

KEY = "sk-proj-THE-REAL-KEY-0123456789"
VIRTUAL = "sk-proj-EXAMPLEabcdefghijklmnopqrstuvwx"
PRICES = Prices(input=3000, output=15_000, cache_read=300, cache_write=3750)


class Asked:
    """kernel.models.ports.Keys that remember nothing: `ask` is asked for each call."""

    def __init__(self, ask: Callable[[Caller, str], Awaitable[Secret]]) -> None:
        self._ask = ask

    async def __call__(self, caller: Caller, name: str) -> Secret:
        return await self._ask(caller, name)

    def going(self, caller: Caller, name: str) -> Going | None:
        return None

    async def opened(self, going: Going) -> Secret:
        raise AssertionError("nothing was known")


@dataclass
class Rig:
    team: Team
    provider: Provider
    gateway: Gateway
    budgets: Budgets
    client: UpstreamClient
    upstreams: dict[str, Upstream]
    caller: Caller
    port: int = 0
    asked: list[tuple[Caller, str]] = field(default_factory=list)  # of the vault
    sealed: bool = False
    slow: float = 0.0  # seconds that the vault takes

    @property
    def openai(self) -> str:
        return f"http://127.0.0.1:{self.port}/model/openai/v1"

    @property
    def anthropic(self) -> str:
        return f"http://127.0.0.1:{self.port}/model/anthropic"

    async def key(self, caller: Caller, name: str) -> Secret:
        self.asked.append((caller, name))
        await asyncio.sleep(self.slow)
        if self.sealed:
            raise Unavailable("the vault is sealed", remedy="give it its key")
        return Secret(KEY.encode())

    def native(self, alias: str) -> NativeModel:
        return NativeModel(self.upstreams[alias], self.client, self.budgets)

    async def used(self) -> dict[str, Any]:
        """Of the run, once everything is settled."""
        await self.budgets.quiet()
        assert self.caller.run is not None
        return await self.budgets.of_run(self.caller.run)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()


def table(url: str) -> list[Upstream]:
    chat = Upstream("gpt", Kind.OPENAI, f"{url}/v1", "real-1", "provider-key", prices=PRICES)
    return [
        chat,
        replace(chat, alias="gpt-responses", api=Api.RESPONSES),
        replace(chat, alias="gpt-tools", provider_tools=True),
        Upstream("claude", Kind.ANTHROPIC, url, "real-1", "provider-key", prices=PRICES),
    ]


@asynccontextmanager
async def a_rig(folder: Path, *answers: Answer, limits: BudgetLimits | None = None) -> AsyncIterator[Rig]:
    async with a_team(folder) as team, a_provider(*answers) as provider:
        run = await team.running()
        caller = Caller(team.tenant.id, team.alice.id, RunId(run.id))
        ups = table(provider.url)
        budgets = Budgets(team.store.model_usage, limits or BudgetLimits(), CountingIds(), team.clock, "w1")
        made: list[Rig] = []
        client = UpstreamClient(
            Asked(lambda who, name: made[0].key(who, name)), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        gateway = Gateway(ups, client, budgets)
        rig = Rig(team, provider, gateway, budgets, client, {each.alias: each for each in ups}, caller)
        made.append(rig)
        server = await asyncio.start_server(lambda r, w: gateway.serve(r, w, rig.caller), "127.0.0.1", 0)
        rig.port = server.sockets[0].getsockname()[1]
        try:
            yield rig
        finally:
            server.close()
            await budgets.close()
            await client.close()
