"""Two kernels on one database: what one of them changes of rules, bindings and credentials is in force in the other's worker.

The worker is scripted; both stores and everything between them is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ringfence.host.egress import following
from ringfence.host.egress.following import Following
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault.vault import SealedVault
from tests.support.databases import outside
from tests.support.outpost_rig import Stage, Worker, staged
from tests.support.store import Team, a_team, newest, opened
from tests.support.vault_rig import a_vault, binding, put_key, stored

pytestmark = pytest.mark.postgresql
ALLOW = EgressRule("", Verdict.ALLOW, "api.test")


@dataclass(frozen=True)
class Two:
    """`here` has the worker of alice's box; `team` is the other kernel."""

    here: Stage
    team: Team
    vault: SealedVault

    async def working(self) -> Worker:
        await self.here.open(self.team.tenant.id, self.team.alice.id)
        return await self.here.working()


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    put_key(tmp_path)
    async with a_team(tmp_path) as team, opened(tmp_path, first=1 << 40) as store, staged(store) as here:
        yield Two(here, team, await a_vault(tmp_path, team.store))


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not met():
            await asyncio.sleep(0.02)


def hosts(worker: Worker) -> set[str]:
    return {each["host"] for each in worker.configured()["rules"]}


async def test_rules_of_every_layer(two: Two) -> None:
    worker, rules, home = await two.working(), two.team.store.egress_rules, two.team.tenant.id
    await rules.add((home, two.team.alice.id), ALLOW)
    await until(lambda: hosts(worker) == {"api.test"})
    made = await rules.add((home, None), replace(ALLOW, host="b.test"))
    await until(lambda: hosts(worker) == {"api.test", "b.test"})
    await rules.add((None, None), replace(ALLOW, host="c.test"))
    await until(lambda: hosts(worker) == {"api.test", "b.test", "c.test"})
    await rules.remove(made.id)
    await until(lambda: hosts(worker) == {"api.test", "c.test"})


async def test_bindings_and_values(two: Two) -> None:
    worker, credentials = await two.working(), two.team.store.credentials
    made = await stored(two.team, two.vault)
    bound = await credentials.bind(two.team.alice.id, binding(made))
    await until(lambda: worker.bound() == [bound.id])
    await two.vault.put(credentials, replace(made, version=2), Secret(b"2"))
    await until(lambda: [each["credential"] for each in worker.of("revoke")] == [made.id])
    await two.vault.revoke(credentials, made.id)
    await until(lambda: worker.bound() == [] and len(worker.of("revoke")) == 2)


async def test_not_without_looking(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: it is by the look that it comes."""

    async def look(self: Following) -> None:
        looked.set()

    looked = asyncio.Event()
    monkeypatch.setattr(Following, "_look", look)
    worker = await two.working()
    await two.team.store.egress_rules.add((two.team.tenant.id, two.team.alice.id), ALLOW)
    for _ in range(3):
        looked.clear()
        await asyncio.wait_for(looked.wait(), 30)
    assert hosts(worker) == set()


async def test_what_is_not_known_for_long_ends_the_worker(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "UNHEARD", 0.5)
    worker = await two.working()
    outside(two.team.folder, "ALTER TABLE outward_news RENAME TO outward_olds")
    await until(lambda: not two.here.outpost.worker)
    assert worker.of("configure")
    outside(two.team.folder, "ALTER TABLE outward_olds RENAME TO outward_news")


async def test_who_is_removed_holds_up_nobody(two: Two) -> None:
    """Whose bindings cannot be read any more: that worker ends, and the next change is heard of."""
    worker = await two.working()
    await two.team.store.users.remove(two.team.alice.id)
    await until(lambda: not two.here.outpost.worker)
    following = two.here.way_out._following
    before = following._number
    await two.team.store.egress_rules.add((two.team.tenant.id, two.team.bob.id), ALLOW)
    await until(lambda: following._number != before)
    assert worker.of("configure")


async def test_what_was_altered_is_in_the_audit(two: Two) -> None:
    """And the worker goes on without it."""
    rules, home = two.team.store.egress_rules, two.team.tenant.id
    await rules.add((home, two.team.alice.id), ALLOW)
    kept = await rules.add((home, two.team.alice.id), replace(ALLOW, host="b.test"))
    outside(two.team.folder, "UPDATE egress_rules SET body = replace(body, 'api.test', 'evil.test')")
    worker = await two.working()
    assert [each["id"] for each in worker.configured()["rules"]] == [kept.id]
    async with asyncio.timeout(30):
        while not (
            found := [row for row in await newest(two.team.store.audit, 50) if row["action"] == "outward.altered"]
        ):
            await asyncio.sleep(0.05)
    assert [row["subject"] for row in found] == [f"roll:rules:{two.team.alice.id}"]
