"""K10: who can write in the database alone binds no credential to another host, widens no rule, grants nothing, and puts nothing back.

Each attack is SQL of another process on the very database; with the comparison with the rolls taken out it works.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, NotFound, Unavailable
from ringfence.host.kernel.outward.credentials import Binding, Owner
from ringfence.host.kernel.outward.reaches import extended
from ringfence.host.kernel.outward.rolls import Broken, Compared, Roll, compare
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish, bindings
from ringfence.host.store import rolls as store_rolls
from ringfence.host.store.egress_rules import ODD
from ringfence.host.store.store import SqlStore
from ringfence.host.vault.seen import Witnesses
from tests.support.databases import outside
from tests.support.seals import KEY, seals
from tests.support.store import Team, a_team, opened
from tests.support.vault_rig import CANARY, SECOND, a_vault, binding, draft, put_key, stored

ALLOW = EgressRule("", Verdict.ALLOW, "api.test")
DENY = EgressRule("", Verdict.DENY, "bad.test", ports=())


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


@dataclass(frozen=True)
class Attack:
    """`before`: what honest people did; `sql`: then somebody else; `gained`: whether it was worth it."""

    before: Callable[[Team], Awaitable[None]]
    sql: tuple[str, ...]
    gained: Callable[[Team], Awaitable[bool]]


async def _bound(team: Team) -> None:
    put_key(team.folder)
    vault = await a_vault(team.folder, team.store)
    made = await stored(team, vault)
    await team.store.credentials.bind(team.alice.id, binding(made))
    tenants = await stored(team, vault, "tenants", number=1)
    await team.store.credentials.bind(team.alice.id, binding(tenants, "gone.test"))
    [gone] = [each for each in await team.store.credentials.bindings(team.alice.id) if each.host == "gone.test"]
    await team.store.credentials.unbind(team.alice.id, gone.id)
    shared = draft(team, "shared", team.alice, Owner.SHARED, number=2)
    reach = extended(shared, [binding(shared)])
    await vault.put(team.store.credentials, replace(shared, reach=reach), Secret(CANARY))


async def _ruled(team: Team) -> None:
    rules, mine = team.store.egress_rules, (team.tenant.id, team.alice.id)
    await rules.add(mine, ALLOW)
    await rules.add((team.tenant.id, None), DENY)
    gone = await rules.add(mine, replace(ALLOW, host="gone.test"))
    await rules.remove(gone.id)


async def _hosts(team: Team) -> set[str]:
    return {each.host for each in await team.store.credentials.bindings(team.alice.id)}


async def _allowed(team: Team) -> set[str]:
    found = await team.store.egress_rules.of(team.tenant.id, team.alice.id)
    denied = {each.host for each in found if each.answer is Verdict.DENY}
    return {each.host for each in found if each.answer is Verdict.ALLOW and not {"*", each.host} & denied}


def _reaches(host: str) -> Callable[[Team], Awaitable[bool]]:
    async def gained(team: Team) -> bool:
        return host in await _allowed(team)

    return gained


def _leads_to(host: str) -> Callable[[Team], Awaitable[bool]]:
    async def gained(team: Team) -> bool:
        return host in await _hosts(team)

    return gained


async def _another_is_bound(team: Team) -> bool:
    [other] = [each for each in await team.store.credentials.all(team.tenant.id) if each.name == "tenants"]
    return other.id in {each.credential for each in await team.store.credentials.bindings(team.alice.id)}


async def _bad_is_open(team: Team) -> bool:
    """The tenant's deny is gone, and a user's rule lets the host through."""
    found = await team.store.egress_rules.of(team.tenant.id, team.alice.id)
    return not any(each.answer is Verdict.DENY and each.host in ("bad.test", "*") for each in found)


async def _bob_binds(team: Team) -> bool:
    [shared] = [each for each in await team.store.credentials.all(team.tenant.id) if each.name == "shared"]
    try:
        await team.store.credentials.bind(team.bob.id, binding(shared))
    except NotFound:
        return False
    return True


ATTACKS = {
    "another host": Attack(
        _bound,
        ("UPDATE credential_bindings SET body = replace(body, 'api.test', 'evil.test')",),
        _leads_to("evil.test"),
    ),
    "another credential": Attack(
        _bound,
        (
            "UPDATE credential_bindings SET credential = (SELECT id FROM credentials WHERE name = 'tenants')"
            " WHERE removed_at IS NULL",
        ),
        _another_is_bound,
    ),
    "a binding of one's own": Attack(
        _bound,
        (
            "INSERT INTO credential_bindings SELECT 'bnd_evil', \"user\", credential,"
            " replace(body, 'api.test', 'evil.test'), 'x', created_at, NULL FROM credential_bindings"
            " WHERE removed_at IS NULL",
        ),
        _leads_to("evil.test"),
    ),
    "what was unbound": Attack(_bound, ("UPDATE credential_bindings SET removed_at = NULL",), _leads_to("gone.test")),
    "a grant": Attack(
        _bound,
        (
            "INSERT INTO credential_grants SELECT c.id, u.id, c.created_at FROM credentials c, users u"
            " WHERE c.name = 'shared' AND u.name = 'bob'",
        ),
        _bob_binds,
    ),
    "a wider rule": Attack(
        _ruled,
        ("UPDATE egress_rules SET body = replace(body, 'api.test', 'evil.test')",),
        _reaches("evil.test"),
    ),
    "a rule of one's own": Attack(
        _ruled,
        (
            "INSERT INTO egress_rules SELECT 'rul_evil', tenant, \"user\", scope,"
            " replace(body, 'api.test', 'evil.test'), 'x', created_at, NULL FROM egress_rules"
            ' WHERE "user" IS NOT NULL AND removed_at IS NULL',
        ),
        _reaches("evil.test"),
    ),
    "a rule that was removed": Attack(_ruled, ("UPDATE egress_rules SET removed_at = NULL",), _reaches("gone.test")),
    "a deny taken out": Attack(
        _ruled, ('UPDATE egress_rules SET removed_at = created_at WHERE "user" IS NULL',), _bad_is_open
    ),
    "a deny deleted": Attack(_ruled, ('DELETE FROM egress_rules WHERE "user" IS NULL',), _bad_is_open),
    "a deny made an allow": Attack(
        _ruled, ("UPDATE egress_rules SET body = replace(body, 'deny', 'allow') WHERE \"user\" IS NULL",), _bad_is_open
    ),
    "the whole roll": Attack(
        _ruled, ("DELETE FROM rolls", 'DELETE FROM egress_rules WHERE "user" IS NULL'), _bad_is_open
    ),
    "entries of a roll": Attack(
        _ruled,
        (
            "UPDATE rolls SET entries = '{}' WHERE entries LIKE '%deny%'",
            'DELETE FROM egress_rules WHERE "user" IS NULL',
        ),
        _bad_is_open,
    ),
    "no JSON": Attack(
        _ruled, ("UPDATE rolls SET entries = 'x'", 'DELETE FROM egress_rules WHERE "user" IS NULL'), _bad_is_open
    ),
}


def _all_count(roll: Roll, rows: object, why: str) -> Compared:
    assert isinstance(rows, dict)
    return Compared(frozenset(rows))


@pytest.mark.parametrize("name", ATTACKS)
async def test_k10_a_writer_of_the_database_gains_nothing(
    team: Team, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ATTACKS[name]
    await attack.before(team)
    await _allowed(team)  # looked at, as a worker's configuration does: what was seen is noted
    assert not await attack.gained(team)
    for statement in attack.sql:
        outside(team.folder, statement)
    assert not await attack.gained(team)
    if name not in ("a deny deleted", "a deny taken out", "a grant"):
        assert await team.store.rolls.altered()
        assert team.store.rolls.noticed()
    # Control: without the comparison it is worth it.
    monkeypatch.setattr(store_rolls, "compare", _all_count)
    monkeypatch.setattr(team.store._database.world.seals, "genuine", lambda roll: True)
    monkeypatch.setattr("ringfence.host.store.credential_bindings.granted", lambda *_: True)
    assert await attack.gained(team)


async def test_nothing_else_stops(team: Team) -> None:
    """The row that was altered does not count; those beside it, and other people's, do. It is told once, and can be taken away."""
    rules, home = team.store.egress_rules, team.tenant.id
    kept, odd = (
        await rules.add((home, team.alice.id), ALLOW),
        await rules.add((home, team.alice.id), replace(ALLOW, host="b.test")),
    )
    bobs = await rules.add((home, team.bob.id), ALLOW)
    outside(team.folder, "UPDATE egress_rules SET body = 'no JSON' WHERE id = ?", odd.id)
    assert await rules.of(home, team.alice.id) == [kept]
    assert await rules.of(home, team.bob.id) == [bobs]
    shown = {each.id: each.note for each in await rules.of(home, team.alice.id, shown=True)}
    assert shown == {kept.id: "", odd.id: ODD}
    [told] = team.store.rolls.noticed()
    assert (told.of, told.odd) == (f"rules:{team.alice.id}", (odd.id,))
    assert team.store.rolls.noticed() == []
    assert team.store.rolls.known() == [told]
    assert (await rules.remove(odd.id)).id == odd.id
    assert await team.store.rolls.altered() == team.store.rolls.known() == []


async def test_what_denied_and_is_lost_is_taken_away_by_its_id(team: Team) -> None:
    rules, home = team.store.egress_rules, team.tenant.id
    lost = await rules.add((None, None), DENY)
    mine = await rules.add((home, team.alice.id), ALLOW)
    outside(team.folder, "DELETE FROM egress_rules WHERE id = ?", lost.id)
    closer, rule = await rules.of(home, team.alice.id)
    assert (closer.id, closer.answer, closer.host, closer.ports, rule) == (lost.id, Verdict.DENY, "*", (), mine)
    assert [each.id for _, _, each in await rules.all(None)] == [lost.id, mine.id]
    assert (await rules.remove(lost.id)).id == lost.id
    assert await rules.of(home, team.alice.id) == [mine]
    with pytest.raises(NotFound):
        await rules.remove(lost.id)


async def test_nothing_is_signed_over_what_is_not_genuine(team: Team) -> None:
    """It is mended by taking all of it away, and not by the next honest rule."""
    rules, mine = team.store.egress_rules, (team.tenant.id, team.alice.id)
    made = await rules.add(mine, ALLOW)
    outside(team.folder, "UPDATE rolls SET mac = 'ff'")
    with pytest.raises(Broken) as refused:
        await rules.add(mine, replace(ALLOW, host="b.test"))
    assert "egress rm" in refused.value.remedy
    [closer] = await rules.of(*mine)
    assert (closer.answer, closer.host) == (Verdict.DENY, "*")
    with pytest.raises(Conflict, match="nobody can tell"):
        await rules.remove(closer.id)
    await rules.remove(made.id)
    again = await rules.add(mine, ALLOW)
    assert await rules.of(*mine) == [again]


async def test_a_roll_that_is_gone_with_its_rows_is_taken_away_by_name(team: Team) -> None:
    """Of rules, as one of them may have denied; of bindings the next one mends it."""
    rules, mine = team.store.egress_rules, (team.tenant.id, team.alice.id)
    await _bound(team)
    await rules.add(mine, DENY)
    await _allowed(team)
    credential = (await team.store.credentials.bindings(team.alice.id))[0].credential
    for table in ("rolls", "egress_rules", "credential_bindings"):
        outside(team.folder, f"DELETE FROM {table}")
    [closer] = await rules.of(*mine)
    assert (closer.id, closer.host) == (f"roll:{team.alice.id}", "*")
    assert closer.id in [each.id for _, _, each in await rules.all(team.tenant.id)]
    with pytest.raises(Broken):
        await rules.add(mine, ALLOW)
    await rules.remove(closer.id)
    with pytest.raises(NotFound):
        await rules.remove(closer.id)
    made = await rules.add(mine, ALLOW)
    assert await rules.of(*mine) == [made]
    bound = await team.store.credentials.bind(team.alice.id, Binding("", credential, "api.test"))
    assert await team.store.credentials.bindings(team.alice.id) == [bound]


async def _older(team: Team) -> tuple[object, ...]:
    """A rule that is removed, and the roll of when it was not."""
    made = await team.store.egress_rules.add((team.tenant.id, team.alice.id), ALLOW)
    [roll] = outside(team.folder, "SELECT of, edition, entries, kek, mac FROM rolls")
    await team.store.egress_rules.remove(made.id)
    assert await team.store.egress_rules.of(team.tenant.id, team.alice.id) == []
    return roll


def _put_back(folder: Path, roll: tuple[object, ...]) -> None:
    outside(folder, "UPDATE egress_rules SET removed_at = NULL")
    outside(folder, "UPDATE rolls SET edition = ?, entries = ?, mac = ?", roll[1], roll[2], roll[4])


async def test_k10_a_roll_and_its_rows_put_back_together(team: Team) -> None:
    """Both whole in themselves. What was seen of editions, outside the database, tells: in this server and the next. Control:
    without what was seen they count."""
    roll = await _older(team)
    _put_back(team.folder, roll)
    [closer] = await team.store.egress_rules.of(team.tenant.id, team.alice.id)
    assert (closer.answer, closer.host) == (Verdict.DENY, "*") and "older" in closer.note
    outside(
        team.folder,
        "INSERT INTO generations (number, began_at, source) SELECT 9, created_at, '{}' FROM egress_rules",
    )  # as if a backup had been restored: the database's own word for it
    async with opened(team.folder, first=1 << 40) as store:
        [closer] = await store.egress_rules.of(team.tenant.id, team.alice.id)
        assert closer.host == "*"
    shutil.rmtree(team.folder / "vault" / "seen")
    async with opened(team.folder, first=1 << 41) as store:
        assert [each.host for each in await store.egress_rules.of(team.tenant.id, team.alice.id)] == ["api.test"]


async def test_what_could_not_be_written_down_is_by_a_later_look(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Witnesses, "note", full)
        roll = await _older(team)
        assert await team.store.egress_rules.of(team.tenant.id, team.alice.id) == []
    assert await team.store.egress_rules.of(team.tenant.id, team.alice.id) == []  # there is room again
    _put_back(team.folder, roll)
    async with opened(team.folder, first=1 << 40) as store:  # which has seen nothing itself
        [closer] = await store.egress_rules.of(team.tenant.id, team.alice.id)
        assert (closer.answer, closer.host) == (Verdict.DENY, "*") and "older" in closer.note


def _sealed_by(store: SqlStore, folder: Path, key: bytes, *others: bytes) -> None:
    """As a server that is started with those keys."""
    made = seals(folder, key, *others, why="nobody has it")
    object.__setattr__(store._database.world, "seals", made)
    store.rolls._seals = made


async def test_while_the_vault_is_sealed(team: Team) -> None:
    """Nothing counts and nothing is added; it is shown, and taken away."""
    await _bound(team)
    await _ruled(team)
    store, mine = team.store, (team.tenant.id, team.alice.id)
    _sealed_by(store, team.folder, b"")
    assert await store.credentials.bindings(team.alice.id) == []
    [closer] = await store.egress_rules.of(*mine)
    assert (closer.answer, closer.host) == (Verdict.DENY, "*") and "sealed" in closer.note
    [shown] = await store.credentials.bindings(team.alice.id, shown=True)
    deny, allow = sorted(await store.egress_rules.of(*mine, shown=True), key=lambda each: each.answer is Verdict.ALLOW)
    for refused in (
        store.egress_rules.add(mine, replace(ALLOW, host="b.test")),
        store.credentials.bind(team.alice.id, binding(await store.credentials.get(shown.credential), "b.test")),
        store.egress_rules.remove(deny.id),  # what is named and not there closes the layer
        store.rolls.altered(),
    ):
        with pytest.raises(Unavailable, match="sealed"):
            await refused
    await store.egress_rules.remove(allow.id)
    await store.credentials.unbind(team.alice.id, shown.id)
    _sealed_by(store, team.folder, KEY)
    assert [each.id for each in await store.egress_rules.of(*mine)] == [deny.id]
    assert await store.credentials.bindings(team.alice.id) == []


async def test_rotation_signs_anew_and_may_be_cut_off(team: Team) -> None:
    """Before it, in the midst of it and after it everything counts; then the old key is worth nothing."""
    rules, home = team.store.egress_rules, team.tenant.id
    mine, theirs = await rules.add((home, team.alice.id), ALLOW), await rules.add((home, team.bob.id), ALLOW)
    _sealed_by(team.store, team.folder, SECOND, KEY)

    async def both_count() -> None:
        assert await rules.of(home, team.alice.id) == [mine]
        assert await rules.of(home, team.bob.id) == [theirs]

    await both_count()
    [first] = [roll for roll in await team.store.rolls._page("") if roll.of.endswith(team.alice.id)]
    await team.store.rolls._resign(first, {"resigned": 0, "left": 0})
    await both_count()
    assert await team.store.rolls.resign() == {"resigned": 1, "left": 0}
    assert await team.store.rolls.resign() == {"resigned": 0, "left": 0}
    _sealed_by(team.store, team.folder, SECOND)
    await both_count()
    assert await team.store.rolls.altered() == []
    _sealed_by(team.store, team.folder, KEY)
    assert [each.host for each in await rules.of(home, team.alice.id)] == ["*"]
    assert (await team.store.rolls.resign())["left"] == 2


async def test_what_was_seen_goes_with_the_last_key_that_could_put_it_back(team: Team) -> None:
    seen = team.folder / "vault" / "seen"
    await team.store.egress_rules.add((team.tenant.id, team.bob.id), ALLOW)
    await team.store.egress_rules.of(team.tenant.id, team.bob.id)
    assert len(list(seen.glob("roll_*"))) == 1
    await team.store.users.remove(team.bob.id)
    assert await team.store.egress_rules.all(None) == []  # what is gone by right is no alarm
    assert await team.store.rolls.altered() == []
    _sealed_by(team.store, team.folder, SECOND, KEY)
    await team.store.rolls.resign()
    assert len(list(seen.glob("roll_*"))) == 1
    _sealed_by(team.store, team.folder, SECOND)
    await team.store.rolls.resign()
    assert list(seen.glob("roll_*")) == []


def test_a_roll_without_a_row_and_a_row_without_a_roll() -> None:
    roll = Roll("rules:", 1, {"a": "1", "b": "deny 2", "c": "3"})
    found = compare(roll, {"a": "1", "b": "deny 2", "c": "4", "d": "5"}, "")
    assert (found.counts, found.odd, found.lost, found.denies) == (frozenset("a"), ("b", "c", "d"), ("b", "c"), ("b",))
    assert compare(roll, {"a": "1", "b": "2", "c": "3"}, "").whole
    assert compare(Roll("rules:"), {"a": "1"}, "").odd == ("a",)
    assert compare(roll, {"a": "1"}, "its MAC is wrong").closed


def test_a_credential_without_variables_is_named_after_itself() -> None:
    for name, variable in (
        ("deploy-key", "DEPLOY_KEY"),
        ("9lives", "SECRET_9LIVES"),
        ("path", "SECRET_PATH"),
        ("https-proxy", "SECRET_HTTPS_PROXY"),
    ):
        (made,) = bindings(BindingWish(host="a.test"), "crd_1", name)
        assert made.environment == (variable,)
    assert bindings(BindingWish("npm"), "crd_1", "x")[0].environment == ("NPM_TOKEN", "NODE_AUTH_TOKEN")
    assert bindings(BindingWish(host="a.test", environment=()), "crd_1", "x")[0].environment == ()
