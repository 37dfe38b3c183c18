"""`db check`, backup and restore know credentials, rules of the way out and invocations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.outward.credentials import Owner
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.ports import Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.people import UserKind
from ringfence.host.store.check_outward import OUTWARD
from tests.support.clocks import HandClock
from tests.support.store import Team
from tests.support.store_work import Db, a_signed_team, signed
from tests.support.vault_rig import CANARY, a_vault, authorities, binding, draft, put_key, stored, value_of

pytestmark = pytest.mark.alone

GONE = "UPDATE {} SET removed_at = created_at WHERE name = '{}'"
FOREIGN = "UPDATE users SET tenant = (SELECT id FROM tenants WHERE name = 'other') WHERE name = '{}'"
# rule -> what somebody did to the rows, each enough by itself
DAMAGE: dict[str, list[str]] = {
    "credential_user": [GONE.format("users", "alice"), GONE.format("tenants", "default"), FOREIGN.format("alice")],
    "credential_version": [
        "DELETE FROM credential_versions",
        "UPDATE credentials SET version = version + 1",
        "UPDATE credentials SET revoked_at = updated_at",
    ],
    "credential_renewal": [
        "UPDATE credentials SET revoked_at = updated_at WHERE kind = 'oauth_refresh'",
        "UPDATE credentials SET kind = 'opaque' WHERE kind = 'oauth_refresh'",
        "UPDATE credential_renewals SET version = version + 1",
    ],
    "credential_grant": [
        "UPDATE credentials SET owner = 'user' WHERE owner = 'shared'",
        "UPDATE credentials SET revoked_at = updated_at WHERE owner = 'shared'",
        GONE.format("users", "bob"),
        "UPDATE credentials SET \"user\" = (SELECT id FROM users WHERE name = 'bob') WHERE owner = 'shared'",
        FOREIGN.format("bob"),
    ],
    "credential_binding": [
        "DELETE FROM credential_grants",
        "UPDATE credentials SET kind = 'authority' WHERE owner = 'shared'",
        "UPDATE credentials SET owner = 'user', \"user\" = (SELECT id FROM users WHERE name = 'alice') "
        "WHERE owner = 'tenant'",
        "UPDATE credential_bindings SET \"user\" = (SELECT id FROM users WHERE name = 'mallory')",
    ],
    "egress_rule_layer": [GONE.format("users", "alice"), GONE.format("tenants", "default"), FOREIGN.format("alice")],
    "invocation_box": [
        "UPDATE boxes SET \"user\" = (SELECT id FROM users WHERE name = 'bob')",
        "UPDATE runs SET actor = (SELECT id FROM users WHERE name = 'bob')",
        "UPDATE boxes SET desired = 'removed', removed_at = created_at",
    ],
}


async def outward_of_all_kinds(team: Team, folder: Path) -> Mapping[str, str]:
    """name -> credential."""
    put_key(folder)
    vault, store, home = await a_vault(folder, team.store), team.store, team.tenant.id
    await store.tenants.add("other")
    await store.users.add("other", "mallory", UserKind.PERSON, None)
    own, ended = await stored(team, vault, "own"), await stored(team, vault, "ended")
    shared, tenants = draft(team, "deploy", team.alice, Owner.SHARED), draft(team, "all", None, Owner.TENANT)
    for one in (shared, tenants):
        await vault.put(store.credentials, one, Secret(CANARY))
    await vault.put(store.credentials, replace(own, version=2), Secret(b"second"))
    cloud = replace(draft(team, "cloud", team.alice), kind=KIND)
    await vault.put(store.credentials, cloud, Secret(CANARY))
    await store.renewals.take(cloud.id, 1, "krn_1", 30.0)
    await store.credentials.grant(shared.id, team.bob.id, granted=True)
    for user, one in ((team.alice, own), (team.bob, shared), (team.bob, tenants), (team.alice, ended)):
        await store.credentials.bind(user.id, binding(one))
    await vault.revoke(store.credentials, ended.id)
    await authorities(vault, store, team.clock).authority(home, team.alice.id)
    rule = EgressRule("", Verdict.ALLOW, "api.test")
    for place in ((None, None), (home, None), (home, team.alice.id)):
        await store.egress_rules.add(place, rule)
    run, box = await team.running(), await store.boxes.home_of(team.alice, "fake", Limits())
    who = Invoker(home, team.alice.id, box.id, "cmd_1", run.id, run.epoch)
    await store.invocations.open("inv_1", who, 100)
    await store.invocations.open("inv_2", replace(who, run=None, epoch=0), 101)
    await store.invocations.close(["inv_2"])
    return {"own": own.id, "shared": shared.id, "tenants": tenants.id, "ended": ended.id}


async def test_a_whole_store_has_no_findings(tmp_path: Path) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await outward_of_all_kinds(team, tmp_path)
        assert await Db(tmp_path, clock).findings() == set()
        bot = await team.store.users.get("default", "a-bot")
        for user in (bot, team.alice):
            await team.store.users.remove(user.id)
    assert await Db(tmp_path, clock).findings() == set()


@pytest.mark.parametrize(("rule", "statement"), [(rule, one) for rule, all_ in DAMAGE.items() for one in all_])
async def test_damage_is_found(tmp_path: Path, rule: str, statement: str) -> None:
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        await outward_of_all_kinds(team, tmp_path)
    assert rule in await Db(tmp_path, clock).found_after(statement)


def test_every_rule_is_broken_by_a_test() -> None:
    assert {rule.name for rule in OUTWARD} == set(DAMAGE)


async def test_there_and_back(tmp_path: Path) -> None:
    """A backup has the rows as they are; a port that a command had then is nobody's after it was put back."""
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        ids = await outward_of_all_kinds(team, tmp_path)
        credentials, home = team.store.credentials, team.tenant.id
        before = [await credentials.get(one) for one in ids.values()]
        bindings, rules = await credentials.bindings(team.bob.id), await team.store.egress_rules.all(None)
        box = await team.store.boxes.home_of(team.alice, "fake", Limits())
        assert len(await team.store.invocations.of_box(box.id)) == 1
        backup = await db.backup()
        await team.store.users.remove(team.bob.id)
    assert (await db.restore(backup))["findings"] == []
    async with signed(tmp_path, clock, 1 << 40) as store:
        assert [await store.credentials.get(one) for one in ids.values()] == before
        assert await store.credentials.bindings(team.bob.id) == bindings and len(bindings) == 2
        assert await store.egress_rules.all(None) == rules and len(rules) == 3
        assert await store.egress_rules.of(home, team.alice.id) == [rule for _, _, rule in rules]
        assert await store.invocations.of_box(box.id) == []
        vault = await a_vault(tmp_path, store)
        assert await value_of(store, vault, ids["own"]) == b"second"
        assert await value_of(store, vault, ids["tenants"]) == CANARY
    assert (await db.run("rebuild", dry_run=True))["differences"] == []
