"""The release lane: the row is on disk before a value leaves, and without the row none does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import Failed, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.credentials import Owner
from ringfence.host.kernel.outward.ports import Wanted
from ringfence.host.kernel.people import Actor
from ringfence.host.store import audit as store_audit
from ringfence.host.vault.release import Counter
from ringfence.host.vault.vault import SealedVault
from tests.support.databases import outside
from tests.support.store import Team, a_team
from tests.support.vault_rig import CANARY, a_vault, binding, put_key, stored


@dataclass
class Stage:
    team: Team
    vault: SealedVault
    counter: Counter

    async def rows(self) -> list[dict[str, Any]]:
        return await self.team.store.audit.page({Lane.RELEASE}, None, None, 100)

    def wanted(self, credential: str, binding: str = "") -> Wanted:
        return Wanted(BoxId("b" * 16), self.team.alice.id, credential, binding, "inv_1", "api.test", "GET", "/user")


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    put_key(tmp_path)
    async with a_team(tmp_path) as team:
        vault = await a_vault(tmp_path, team.store)
        yield Stage(team, vault, Counter(vault, team.store.credentials, team.store.audit))


async def test_each_release_has_its_row(stage: Stage) -> None:
    made = await stored(stage.team, stage.vault)
    actor = Actor(stage.team.alice, operator=False, via="token:tok_1")
    value = await stage.counter.release(actor, stage.wanted(made.id))
    assert value.reveal() == CANARY
    [row] = await stage.rows()
    assert (row["subject"], row["actor"]["name"]) == (f"credential:{made.id}", "alice")
    assert row["details"] == {
        "to": f"box:{'b' * 16}", "name": "token", "version": 1, "user": stage.team.alice.id, "binding": "",
        "invocation": "inv_1", "host": "api.test", "method": "GET", "path": "/user", "run": None, "step": None,
    }  # fmt: skip
    long = replace(stage.wanted(made.id), path="/" * 100_000)
    await stage.counter.release(None, long)
    assert len((await stage.rows())[0]["details"]["path"]) == 640
    assert CANARY.decode() not in str(await stage.rows())


async def test_the_row_is_there_first(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed between the two has the row and not the value: the chain is asked when the value comes."""
    made = await stored(stage.team, stage.vault)
    audit, told = stage.team.store.audit, asyncio.Event()
    real = audit.release

    async def slow(actor: Actor | None, subject: str, to: str, details: Mapping[str, Any]) -> None:
        await real(actor, subject, to, details)
        await told.wait()

    monkeypatch.setattr(audit, "release", slow)
    asking = asyncio.ensure_future(stage.counter.release(None, stage.wanted(made.id)))
    while not await stage.rows():
        await asyncio.sleep(0.01)
    assert not asking.done()
    told.set()
    assert (await asking).reveal() == CANARY


async def test_what_cannot_be_opened_has_no_row(stage: Stage) -> None:
    made = await stored(stage.team, stage.vault)
    with pytest.raises(NotFound):
        await stage.counter.release(None, stage.wanted("crd_none"))
    outside(stage.team.folder, "UPDATE credentials SET name = 'other'")
    with pytest.raises(Failed):
        await stage.counter.release(None, stage.wanted(made.id))
    await stage.vault.revoke(stage.team.store.credentials, made.id)
    with pytest.raises(NotFound):
        await stage.counter.release(None, stage.wanted(made.id))
    assert await stage.rows() == []


async def test_a_sealed_vault_releases_nothing(stage: Stage, tmp_path: Path) -> None:
    """K09. Control: the same counter over an open one."""
    made = await stored(stage.team, stage.vault)
    (tmp_path / "vault" / "master.key").unlink()
    sealed = await a_vault(tmp_path, stage.team.store)
    counter = Counter(sealed, stage.team.store.credentials, stage.team.store.audit)
    with pytest.raises(Unavailable, match="sealed"):
        await counter.release(None, stage.wanted(made.id))
    assert await stage.rows() == []
    assert (await stage.counter.release(None, stage.wanted(made.id))).reveal() == CANARY


async def test_a_revocation_while_the_row_is_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was answered, so it holds. Control: without it the same release gives the value."""
    made = await stored(stage.team, stage.vault)
    audit, revokes = stage.team.store.audit, [True, False]
    real = audit.release

    async def beside(actor: Actor | None, subject: str, to: str, details: Mapping[str, Any]) -> None:
        await real(actor, subject, to, details)
        if revokes.pop():
            return
        await stage.vault.revoke(stage.team.store.credentials, made.id)

    monkeypatch.setattr(audit, "release", beside)
    revokes.reverse()
    assert (await stage.counter.release(None, stage.wanted(made.id))).reveal() == CANARY
    with pytest.raises(NotFound):
        await stage.counter.release(None, stage.wanted(made.id))


@pytest.mark.parametrize("how", ["unbound", "another's binding", "taken back", "of another credential"])
async def test_what_is_not_bound_any_more_is_not_given(stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Whoever asks may know of an older state than the store. Control: the same ask while it is bound."""
    team = stage.team
    rows, audit = team.store.credentials, team.store.audit
    shared = how == "taken back"
    whose, owner = (team.bob, Owner.SHARED) if shared else (team.alice, Owner.USER)
    made = await stored(team, stage.vault, user=whose, owner=owner)
    if shared:
        await rows.grant(made.id, team.alice.id, granted=True)
    mine = await rows.bind(team.alice.id, binding(made))
    wanted = stage.wanted(made.id, mine.id)
    assert (await stage.counter.release(None, wanted)).reveal() == CANARY
    real = audit.release

    async def beside(actor: Actor | None, subject: str, to: str, details: Mapping[str, Any]) -> None:
        await real(actor, subject, to, details)
        if shared:
            await rows.grant(made.id, team.alice.id, granted=False)
        elif how == "unbound":
            await rows.unbind(team.alice.id, mine.id)

    monkeypatch.setattr(audit, "release", beside)
    if how == "another's binding":
        wanted = replace(wanted, user=team.bob.id)
    elif how == "of another credential":
        other = await stored(team, stage.vault, "other", number=3)
        wanted = replace(wanted, binding=(await rows.bind(team.alice.id, binding(other))).id)
    with pytest.raises(NotFound):
        await stage.counter.release(None, wanted)


@pytest.mark.alone
async def test_without_an_audit_nothing_leaves(stage: Stage) -> None:
    """F49. Control: it left before the table was gone."""
    made = await stored(stage.team, stage.vault)
    await stage.counter.release(None, stage.wanted(made.id))
    outside(stage.team.folder, "ALTER TABLE audit_rows RENAME TO audit_rows_gone")
    with pytest.raises(RingfenceError):
        await stage.counter.release(None, stage.wanted(made.id))
    outside(stage.team.folder, "ALTER TABLE audit_rows_gone RENAME TO audit_rows")
    assert len(await stage.rows()) == 1
    await stage.counter.release(None, stage.wanted(made.id))
    assert len(await stage.rows()) == 2


async def test_an_audit_that_takes_too_long(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await stored(stage.team, stage.vault)
    monkeypatch.setattr(store_audit, "RELEASE_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="nothing is released"):
        await stage.counter.release(None, stage.wanted(made.id))
    monkeypatch.undo()
    assert (await stage.counter.release(None, stage.wanted(made.id))).reveal() == CANARY
