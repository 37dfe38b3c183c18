"""A provider's key for a call: known from the call before, it goes with the reservation in one commit, and never once
it does not stand any more. Over a real vault and a real store."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import Exhausted, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.models.granting import Expected
from ringfence.host.kernel.models.ports import Caller, Changed
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.models.usage import BudgetLimits, Usage
from ringfence.host.kernel.outward.credentials import Credential, Owner
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.budgets import Budgets, Hold
from ringfence.host.models.provider_key import ProviderKey
from ringfence.host.models.provider_keys import ProviderKeys
from ringfence.host.models.readiness import ready
from ringfence.host.models.upstream_client import UpstreamClient
from ringfence.host.models.upstream_pool import NotReached
from ringfence.host.store import audit as store_audit
from ringfence.host.vault.release import Counter
from ringfence.host.vault.vault import SealedVault
from tests.support.clocks import CountingIds
from tests.support.store import Team, a_team
from tests.support.vault_rig import a_vault, draft, put_key, stored

NAME, FIRST, SECOND = "provider-key", b"sk-first-0123456789", b"sk-second-0123456789"
USUAL = Expected(10, 300)
UP = Upstream("gpt", Kind.OPENAI, "http://127.0.0.1:1/v1", "real-1", NAME)


@dataclass
class Stage:
    team: Team
    vault: SealedVault
    keys: ProviderKeys
    budgets: Budgets
    caller: Caller
    credential: Credential

    async def call(self, asked: Expected = USUAL) -> tuple[bytes, Hold]:
        key, hold = await ready(self.keys, self.budgets, self.caller, UP, asked, "openai")
        assert key is not None
        return key.reveal(), hold

    async def rows(self) -> list[dict[str, Any]]:
        return await self.team.store.audit.page({Lane.RELEASE}, None, None, 100)

    async def rotated(self, value: bytes = SECOND) -> None:
        newer = replace(self.credential, version=self.credential.version + 1)
        await self.vault.put(self.team.store.credentials, newer, Secret(value))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    put_key(tmp_path)
    async with a_team(tmp_path) as team:
        vault = await a_vault(tmp_path, team.store)
        made = await vault.put(team.store.credentials, draft(team, NAME, None, Owner.TENANT), Secret(FIRST))
        releases = Counter(vault, team.store.credentials, team.store.audit)
        keys = ProviderKeys(team.store.credentials, releases, vault, team.store.model_usage, {NAME: "api.test"})
        limits = BudgetLimits(user_tokens=1000)
        budgets = Budgets(team.store.model_usage, limits, CountingIds(1 << 40), team.clock, "krn_1")
        caller = Caller(team.tenant.id, team.alice.id, None, BoxId("b" * 16), "inv_1")
        yield Stage(team, vault, keys, budgets, caller, made)
        await budgets.close()


async def settled(stage: Stage, hold: Hold) -> None:
    stage.budgets.settle(hold, UP, Usage(), "done")
    await stage.budgets.quiet()


async def test_a_key_that_is_known_goes_in_the_commit_of_its_reservation_and_each_has_its_row(stage: Stage) -> None:
    _, hold = await stage.call()
    await settled(stage, hold)
    [first] = await stage.rows()
    before = stage.team.store.commits
    value, hold = await stage.call()
    assert value == FIRST and stage.team.store.commits == before + 1
    second = (await stage.rows())[0]
    assert len(await stage.rows()) == 2
    assert {**second["details"]} == {**first["details"]} and second["subject"] == f"credential:{stage.credential.id}"
    assert (second["details"]["host"], second["details"]["invocation"]) == ("api.test", "inv_1")
    await settled(stage, hold)
    assert (await stage.team.store.audit.verify()).ok


async def test_what_was_used_is_written_with_the_next_reservation(stage: Stage) -> None:
    """And before it: the room of the first call is the second's."""
    _, hold = await stage.call(Expected(10, 900))
    stage.budgets.settle(hold, UP, Usage(10, 5), "done")
    before = stage.team.store.commits
    _, second = await stage.call(Expected(10, 900))
    assert stage.team.store.commits == before + 1
    stage.budgets.settle(second, UP, Usage(1), "done")
    period = stage.budgets.limits.period_of(stage.team.clock.now())
    async with asyncio.timeout(30):  # by itself, when no call comes
        while (await stage.team.store.model_usage.of_user(stage.caller.user, period)).reserved.tokens:
            await asyncio.sleep(0.01)
    assert (await stage.team.store.model_usage.of_user(stage.caller.user, period)).usage.tokens == 16


async def test_a_new_version_and_a_revocation_hold_for_the_next_call(stage: Stage) -> None:
    assert (await stage.call())[0] == FIRST
    await stage.rotated()
    value, hold = await stage.call()
    assert value == SECOND
    await settled(stage, hold)
    assert [row["details"]["version"] for row in await stage.rows()] == [2, 1]
    await stage.vault.revoke(stage.team.store.credentials, stage.credential.id)
    with pytest.raises(Unavailable, match="is not in the vault"):
        await stage.call()
    assert len(await stage.rows()) == 2
    await stage.budgets.quiet()


async def test_whoever_revokes_in_the_store_alone_is_heeded_too(stage: Stage) -> None:
    """As another kernel does, or one whose vault this one does not see: what is known here is not asked."""
    await stage.call()
    await stage.team.store.credentials.revoke(stage.credential.id)
    with pytest.raises(Unavailable):
        await stage.call()


async def test_what_was_revoked_is_not_opened_when_its_row_comes_back(stage: Stage) -> None:
    """What is known here says nothing of it: the vault does."""
    await stage.call()
    going = stage.keys.going(stage.caller, NAME)
    assert going is not None and (await stage.keys.opened(going)).reveal() == FIRST
    await stage.vault.revoke(stage.team.store.credentials, stage.credential.id)
    with pytest.raises(Unavailable):
        await stage.keys.opened(going)


async def test_ones_own_key_of_that_name_comes_first_from_then_on(stage: Stage) -> None:
    assert (await stage.call())[0] == FIRST
    await stored(stage.team, stage.vault, NAME, SECOND, stage.team.alice)
    assert (await stage.call())[0] == SECOND
    assert (await stage.call())[0] == SECOND, "known by now"


async def test_what_somebody_else_has_granted_goes_with_no_call(stage: Stage) -> None:
    """Its account would see what the user's loop says."""
    store = stage.team.store
    shared = await stored(stage.team, stage.vault, NAME, SECOND, stage.team.bob, owner=Owner.SHARED)
    await store.credentials.grant(shared.id, stage.caller.user, granted=True)
    assert [(await stage.call())[0] for _ in range(2)] == [FIRST] * 2
    await stage.vault.revoke(store.credentials, stage.credential.id)
    with pytest.raises(Unavailable):
        await stage.call()


async def test_the_control_what_stands_is_what_keeps_an_old_key_back(stage: Stage) -> None:
    """Without the comparison a call would go with the version of before, and only the vault would be left to refuse
    it."""
    await stage.call()
    going = stage.keys.going(stage.caller, NAME)
    assert going is not None
    await stage.rotated()
    with pytest.raises(Changed):
        await stage.budgets.hold(stage.caller, UP, USUAL, "openai", going)
    now = await stage.team.store.model_usage.standing(stage.caller, NAME)
    hold = await stage.budgets.hold(stage.caller, UP, USUAL, "openai", replace(going, standing=now))
    await settled(stage, hold)
    assert [row["details"]["version"] for row in await stage.rows()] == [1, 1]


async def test_no_row_says_that_a_key_went_with_a_call_that_did_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, hold = await stage.call()
    with pytest.raises(Exhausted):
        await stage.call(Expected(990, 300))
    assert len(await stage.rows()) == 1
    monkeypatch.setattr(store_audit, "RELEASE_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="the audit took longer"):
        await stage.call()
    await settled(stage, hold)
    period = stage.budgets.limits.period_of(stage.team.clock.now())
    assert (await stage.team.store.model_usage.of_user(stage.caller.user, period)).reserved.tokens == 0


async def test_a_key_that_is_taken_back_goes_with_no_request_that_has_not_begun(stage: Stage) -> None:
    """It waits, for room or between two tries, while somebody revokes it. Control: one of another credential goes on,
    and so does what was asked for since."""
    found = await stage.keys(stage.caller, NAME)
    _, hold = await stage.call()
    await settled(stage, hold)
    known, hold = await ready(stage.keys, stage.budgets, stage.caller, UP, USUAL, "openai")
    await settled(stage, hold)
    stage.keys.withdraw("crd_other")
    assert not (_withdrawn(found) or _withdrawn(known))
    await stage.rotated()
    stage.keys.withdraw(stage.credential.id)
    assert _withdrawn(found) and _withdrawn(known)
    after = await stage.keys(stage.caller, NAME)
    assert not _withdrawn(after) and after.reveal() == SECOND
    sent: list[bytes] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            sent.append(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError:  # a connection by which nothing was sent
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = UpstreamClient(stage.keys, ssl.create_default_context())
    up = replace(UP, base_url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    try:
        for key in (found, known):
            with pytest.raises(NotReached, match="taken back"):
                async with client.post(up, key, "/x", [b"{}"], {}):
                    pass
        async with client.post(up, after, "/x", [b"{}"], {}) as answer:
            assert answer.status == 200
        assert len(sent) == 1 and SECOND in sent[0]
    finally:
        await client.close()
        server.close()
        await asyncio.wait_for(ended.wait(), 30)


def _withdrawn(key: Secret | None) -> bool:
    return isinstance(key, ProviderKey) and key.withdrawn
