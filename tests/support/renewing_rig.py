"""A user's OAuth grant in a real vault, a real TLS token endpoint, and kernels that get tokens for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.egress.token_endpoint import HttpsTokenEndpoint
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward import grants
from ringfence.host.kernel.outward.credentials import Credential
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.ports import Credentials, Lent, Wanted
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault.release import Counter
from ringfence.host.vault.renewing import Renewing
from ringfence.host.vault.vault import SealedVault
from tests.support.store import Team, a_team
from tests.support.token_server import FIRST, URL, TokenServer, token_server
from tests.support.vault_rig import a_vault, draft, put_key

GRANT = {"token_url": URL, "client_id": "app", "client_secret": "app-s3cret", "refresh_token": FIRST}
PATIENCE = 30


@dataclass
class Stage:
    team: Team
    vault: SealedVault
    server: TokenServer
    credential: Credential
    made: list[Renewing] = field(default_factory=list)

    def kernel(self, name: str = "krn_1", *, seconds: float = 10.0, vault: SealedVault | None = None) -> Counter:
        store, vault = self.team.store, vault or self.vault
        endpoint = HttpsTokenEndpoint(self.server.site(), store.egress_rules, asyncio.get_running_loop().time, seconds)
        one = Renewing(vault, store.credentials, store.renewals, endpoint, store.audit, store.onward, name)
        self.made.append(one)
        return Counter(vault, store.credentials, store.audit, one)

    async def lend(self, counter: Counter, refused: int = 0) -> Lent:
        async with asyncio.timeout(PATIENCE):
            return await counter.lend(None, self.wanted(refused))

    async def asking(self, counter: Counter) -> asyncio.Future[Lent]:
        """The question is out, and has no answer before `server.gate` is set."""
        self.server.gate.clear()
        made = asyncio.ensure_future(self.lend(counter))
        async with asyncio.timeout(PATIENCE):
            while not self.server.asked:
                await asyncio.sleep(0.01)
        return made

    def wanted(self, refused: int = 0) -> Wanted:
        box, alice = BoxId("b" * 16), self.team.alice.id
        return Wanted(box, alice, self.credential.id, "", "inv_1", "api.test", "GET", "/user", refused=refused)

    async def refused(self, counter: Counter, why: str) -> str:
        with pytest.raises(Unavailable, match=why) as caught:
            await self.lend(counter)
        for secret in (FIRST, "app-s3cret", "refresh-2"):
            assert secret not in str(caught.value) and secret not in caught.value.remedy
        return caught.value.message

    async def stored(self) -> tuple[Credential, grants.Stored]:
        credential, value = await self.vault.read(self.team.store.credentials, self.credential.id)
        return credential, grants.opened(value)

    async def replaced(self, **fields: str) -> None:
        """As `secret set` does."""
        credential, _ = await self.stored()
        value = grants.sealed(grants.given(Secret(json.dumps({**GRANT, **fields}).encode())))
        await self.vault.put(self.team.store.credentials, replace(credential, version=credential.version + 1), value)

    async def acts(self, prefix: str = "secret.") -> list[dict[str, Any]]:
        rows = await self.team.store.audit.page({Lane.ACT}, None, None, 500)
        return [row for row in rows[::-1] if row["action"].startswith(prefix)]

    def tick(self, seconds: float) -> None:
        self.team.clock.pass_seconds(seconds)


@asynccontextmanager
async def a_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    put_key(tmp_path)
    async with a_team(tmp_path) as team, token_server(tmp_path) as server:
        vault = await a_vault(tmp_path, team.store)
        value = grants.sealed(grants.given(Secret(json.dumps(GRANT).encode())))
        made = await vault.put(team.store.credentials, replace(draft(team, "cloud", team.alice), kind=KIND), value)
        one = Stage(team, vault, server, made)
        yield one
        for each in one.made:
            await each.close()


def text(lent: Lent) -> str:
    return lent.value.reveal().decode()


class Watched:
    """The store's rows, and what is done when the next version is about to be stored."""

    def __init__(self, real: Credentials, on_put: Callable[[], None]) -> None:
        self._real, self._on_put = real, on_put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def put(self, made: Credential, sealed: Any) -> Credential:
        self._on_put()
        return await self._real.put(made, sealed)
