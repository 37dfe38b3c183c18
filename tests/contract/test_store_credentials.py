"""Credentials, grants and bindings in the store: names, versions, who may use what, and what goes with whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NameInvalid, NotFound, Refused
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Position, Scheme, Sealed, Use
from ringfence.host.kernel.outward.rolls import Compared
from ringfence.host.kernel.people import User, UserKind
from ringfence.host.store import credential_bindings, credential_put, rolls
from tests.support.databases import outside
from tests.support.store import Team, a_team, opened
from tests.support.vault_rig import binding, draft


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


def sealed(credential: Credential, kek: str = "first") -> Sealed:
    """The store looks into none of it."""
    return Sealed(credential.id, credential.version, kek, b"\x00key\xff", b"data%d" % credential.version, "m" * 64)


async def put(team: Team, name: str, user: User | None, owner: Owner = Owner.USER, number: int = 0) -> Credential:
    made = draft(team, name, user, owner, number)
    return await team.store.credentials.put(made, sealed(made))


async def a_third(team: Team) -> User:
    return await team.store.users.add("default", "carol", UserKind.PERSON, None)


async def in_another_tenant(team: Team) -> User:
    await team.store.tenants.add("other")
    return await team.store.users.add("other", "mallory", UserKind.PERSON, None)


def versions(team: Team, credential: str) -> list[tuple[object, ...]]:
    return outside(team.folder, "SELECT version FROM credential_versions WHERE credential = ?", credential)


# --- versions ---------------------------------------------------------------------------------------------------------


async def test_there_and_back(team: Team, tmp_path: Path) -> None:
    credentials = team.store.credentials
    made = await put(team, "token", team.alice)
    assert made == replace(draft(team, "token", team.alice), created_at=made.created_at, updated_at=made.updated_at)
    assert await credentials.get(made.id) == made
    assert await credentials.named(team.tenant.id, Owner.USER, team.alice.id, "token") == made
    assert await credentials.opening(made.id) == (made, sealed(made))
    assert await credentials.visible(team.alice.id) == await credentials.all(team.tenant.id) == [made]
    async with opened(tmp_path, first=1 << 40) as again:
        assert await again.credentials.opening(made.id) == (made, sealed(made))


async def test_a_next_version_takes_the_place_of_the_one_before(team: Team) -> None:
    made = await put(team, "token", team.alice)
    team.clock.pass_seconds(60)
    second = replace(made, version=2)
    after = await team.store.credentials.put(second, sealed(second))
    assert (after.version, after.created_at) == (2, made.created_at)
    assert after.updated_at > made.updated_at
    assert (await team.store.credentials.opening(made.id))[1].data == b"data2"
    assert versions(team, made.id) == [(2,)], "what was replaced may be what leaked: it is not kept"


async def test_versions_go_one_by_one(team: Team) -> None:
    made = await put(team, "token", team.alice)
    for wrong in (1, 3, 0):
        bad = replace(made, version=wrong)
        with pytest.raises(Conflict):
            await team.store.credentials.put(bad, sealed(bad))
    late = replace(draft(team, "late", team.alice), version=2)
    with pytest.raises(Conflict):
        await team.store.credentials.put(late, sealed(late))
    with pytest.raises(Invalid):
        await team.store.credentials.put(replace(made, version=2), sealed(made))
    for change in ({"name": "other"}, {"user": team.bob.id}, {"owner": Owner.SHARED}):
        bad = replace(made, version=2, **change)
        with pytest.raises(Conflict):
            await team.store.credentials.put(bad, sealed(bad))
    assert versions(team, made.id) == [(1,)]


async def test_two_next_versions_at_once(team: Team) -> None:
    made = await put(team, "token", team.alice)
    second = replace(made, version=2)
    both = [team.store.credentials.put(second, sealed(second)) for _ in range(2)]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["Conflict", "Credential"]


# --- names ------------------------------------------------------------------------------------------------------------


async def test_a_name_is_one_of_an_owner(team: Team) -> None:
    await put(team, "token", team.alice)
    for owner in (Owner.USER, Owner.SHARED):
        with pytest.raises(Conflict, match="exists"):
            await put(team, "token", team.alice, owner, number=1)
    bobs = await put(team, "token", team.bob)
    tenants = await put(team, "token", None, Owner.TENANT)
    with pytest.raises(Conflict, match="exists"):
        await put(team, "token", None, Owner.TENANT, number=1)
    assert [one.id for one in await team.store.credentials.visible(team.bob.id)] == [bobs.id, tenants.id]


async def test_a_name_may_be_used_again_after_a_revocation(team: Team) -> None:
    credentials = team.store.credentials
    made = await put(team, "token", team.alice)
    team.clock.pass_seconds(1)
    await credentials.revoke(made.id)
    revoked = await credentials.get(made.id)
    assert revoked.revoked_at is not None
    await credentials.revoke(made.id)
    assert (await credentials.get(made.id)).revoked_at == revoked.revoked_at
    assert versions(team, made.id) == []
    with pytest.raises(NotFound):
        await credentials.opening(made.id)
    with pytest.raises(NotFound):
        await credentials.named(team.tenant.id, Owner.USER, team.alice.id, "token")
    assert await credentials.visible(team.alice.id) == await credentials.all(team.tenant.id) == []
    second = replace(made, version=2)
    with pytest.raises(Conflict, match="revoked"):
        await credentials.put(second, sealed(second))
    assert (await put(team, "token", team.alice, number=1)).version == 1


async def test_two_of_one_name_at_once(team: Team) -> None:
    done = await asyncio.gather(
        *(put(team, "token", team.alice, number=number) for number in range(3)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in done) == ["Conflict", "Conflict", "Credential"]


async def test_what_is_nobodys(team: Team) -> None:
    credentials = team.store.credentials
    mallory = await in_another_tenant(team)
    for bad in (
        replace(draft(team, "x", team.alice), user=None),
        replace(draft(team, "x", None, Owner.TENANT), user=team.alice.id),
    ):
        with pytest.raises(Invalid):
            await credentials.put(bad, sealed(bad))
    for bad in (
        replace(draft(team, "x", team.alice), user=UserId("usr_none")),
        replace(draft(team, "x", mallory)),  # of our tenant, it says
        replace(draft(team, "x", None, Owner.TENANT), tenant=TenantId("ten_none")),
    ):
        with pytest.raises(NotFound):
            await credentials.put(bad, sealed(bad))
    for absent in ("crd_none", "", "a\0b", "\ud800"):
        for question in (
            credentials.get,
            credentials.opening,
            credentials.revoke,
            credentials.grants,
            credentials.bound_by,
        ):
            with pytest.raises(NotFound):
                await question(absent)


@pytest.mark.parametrize("name", ["", "~ca", "A", ".a", "a b", "a\0", "a" * 65, "\ud800", "é"])
async def test_names(team: Team, name: str) -> None:
    """The name of a CA is one that nobody can type."""
    bad = replace(draft(team, "x", team.alice), name=name)
    with pytest.raises(NameInvalid):
        await team.store.credentials.put(bad, sealed(bad))
    ca = replace(bad, name="mine", kind="authority")
    with pytest.raises(Invalid):
        await team.store.credentials.put(ca, sealed(ca))


async def test_there_is_an_end_to_them(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_put, "MAX_CREDENTIALS", 2)
    monkeypatch.setattr(credential_bindings, "MAX_BINDINGS", 1)
    first = await put(team, "a", team.alice)
    await put(team, "b", team.alice)
    with pytest.raises(Conflict, match="the limit is 2"):
        await put(team, "c", team.alice)
    await put(team, "c", team.bob)
    await team.store.credentials.bind(team.alice.id, binding(first))
    with pytest.raises(Conflict, match="the limit is 1"):
        await team.store.credentials.bind(team.alice.id, binding(first, "other.test"))


# --- grants -----------------------------------------------------------------------------------------------------------


async def test_what_is_shared_is_seen_by_whom_it_was_granted_to(team: Team) -> None:
    credentials, carol = team.store.credentials, await a_third(team)
    shared = await put(team, "deploy", team.alice, Owner.SHARED)
    assert await credentials.visible(team.bob.id) == []
    await credentials.grant(shared.id, team.bob.id, granted=True)
    await credentials.grant(shared.id, team.bob.id, granted=True)
    assert await credentials.grants(shared.id) == [team.bob.id]
    assert await credentials.visible(team.bob.id) == await credentials.visible(team.alice.id) == [shared]
    assert await credentials.visible(carol.id) == []
    bound = await credentials.bind(team.bob.id, binding(shared))
    assert await credentials.bound_by(shared.id) == [team.bob.id]
    await credentials.grant(shared.id, team.bob.id, granted=False)
    await credentials.grant(shared.id, team.bob.id, granted=False)
    assert await credentials.visible(team.bob.id) == []
    assert await credentials.bindings(team.bob.id) == []
    await credentials.grant(shared.id, team.bob.id, granted=True)
    assert await credentials.bindings(team.bob.id) == [], f"{bound.id} does not come back by itself"


async def test_what_cannot_be_granted(team: Team) -> None:
    credentials, mallory, carol = team.store.credentials, await in_another_tenant(team), await a_third(team)
    own, tenants = await put(team, "own", team.alice), await put(team, "all", None, Owner.TENANT)
    shared = await put(team, "deploy", team.alice, Owner.SHARED)
    for one in (own, tenants):
        with pytest.raises(Refused):
            await credentials.grant(one.id, team.bob.id, granted=True)
    for user in (mallory.id, UserId("usr_none")):
        with pytest.raises(NotFound):
            await credentials.grant(shared.id, user, granted=True)
    with pytest.raises(Invalid):
        await credentials.grant(shared.id, team.alice.id, granted=True)
    other = await put(team, "deploy", team.bob, Owner.SHARED)
    await credentials.grant(shared.id, carol.id, granted=True)
    with pytest.raises(Conflict, match="deploy"):
        await credentials.grant(other.id, carol.id, granted=True)
    await credentials.revoke(shared.id)
    await credentials.grant(other.id, carol.id, granted=True)
    with pytest.raises(NotFound):
        await credentials.grant(shared.id, team.bob.id, granted=True)
    assert await credentials.visible(mallory.id) == []


# --- bindings ---------------------------------------------------------------------------------------------------------


async def test_bindings_there_and_back(team: Team) -> None:
    credentials = team.store.credentials
    made = await put(team, "token", team.alice)
    wanted = Binding(
        "", made.id, "*.api.test", (443, 8443), frozenset({"GET"}), ("/a/**",), (Position("x-key", Scheme.RAW),),
        environment=("GH_TOKEN",), shape="github", uses=3, recipe="github",
    )  # fmt: skip
    first = await credentials.bind(team.alice.id, wanted)
    assert first == replace(wanted, id=first.id) and first.id.startswith("bnd_")
    with pytest.raises(Conflict, match="the same"):
        await credentials.bind(team.alice.id, replace(wanted, recipe=""))
    named = await credentials.bind(team.alice.id, replace(wanted, id="bnd_mine", uses=4))
    assert await credentials.bindings(team.alice.id) == [first, named]
    with pytest.raises(NotFound):
        await credentials.unbind(team.bob.id, first.id)
    await credentials.unbind(team.alice.id, first.id)
    with pytest.raises(NotFound):
        await credentials.unbind(team.alice.id, first.id)
    assert await credentials.bindings(team.alice.id) == [named]
    assert (await credentials.bind(team.alice.id, wanted)).id != first.id
    await credentials.revoke(made.id)
    assert await credentials.bindings(team.alice.id) == []
    assert await credentials.bound_by(made.id) == []


@pytest.mark.parametrize("odd", [{"shape": "of-a-later-release"}, {"host": "**.com"}, {"uses": 0}])
async def test_a_binding_that_makes_no_sense_here_stops_them_all(team: Team, odd: dict[str, Any]) -> None:
    """A later release wrote it. Whoever works by what it can read takes something out of force unseen. Control: the same as of now."""
    credentials = team.store.credentials
    made = await put(team, "token", team.alice)
    kept = await credentials.bind(team.alice.id, Binding("", made.id, "api.test"))
    assert await credentials.bindings(team.alice.id) == [kept]
    later = await credentials.bind(team.alice.id, replace(Binding("", made.id, "b.test"), **odd))
    with pytest.raises(Failed, match="later release"):
        await credentials.bindings(team.alice.id)
    await credentials.unbind(team.alice.id, later.id)
    assert await credentials.bindings(team.alice.id) == [kept]


async def test_nobody_binds_what_is_not_theirs(team: Team) -> None:
    credentials, mallory = team.store.credentials, await in_another_tenant(team)
    own, tenants = await put(team, "own", team.alice), await put(team, "all", None, Owner.TENANT)
    shared = await put(team, "deploy", team.alice, Owner.SHARED)
    for user, credential in (
        (team.bob, own),
        (team.bob, shared),
        (mallory, own),
        (mallory, tenants),
        (mallory, shared),
    ):
        with pytest.raises(NotFound):
            await credentials.bind(user.id, binding(credential))
    with pytest.raises(NotFound):
        await credentials.bind(team.alice.id, Binding("", "crd_none", "api.test"))
    assert (await credentials.bind(team.bob.id, binding(tenants))).credential == tenants.id
    ca = replace(draft(team, "~ca", team.alice), kind="authority")
    await credentials.put(ca, sealed(ca))
    with pytest.raises(NotFound):
        await credentials.bind(team.alice.id, binding(ca))
    assert ca.id not in {one.id for one in await credentials.visible(team.alice.id)}
    assert ca.id not in {one.id for one in await credentials.all(team.tenant.id)}


async def test_only_the_users_own_is_mounted(team: Team) -> None:
    credentials = team.store.credentials
    own, tenants = await put(team, "own", team.alice), await put(team, "all", None, Owner.TENANT)
    shared = await put(team, "deploy", team.alice, Owner.SHARED)
    for one in (tenants, shared):
        with pytest.raises(Refused, match="mounted"):
            await credentials.bind(team.alice.id, binding(one, use=Use.MOUNTED))
    assert (await credentials.bind(team.alice.id, binding(own, use=Use.MOUNTED))).use is Use.MOUNTED


async def test_the_keys_of_a_binding_are_the_rows(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes the body of a row makes it one that does not count; nor, were it to count, would it be of the credential
    that the body names. A word that is not known stops it all."""
    made, other = await put(team, "token", team.alice), await put(team, "other", team.alice)
    bound = await team.store.credentials.bind(team.alice.id, binding(made))
    body = '{"id": "bnd_x", "credential": "%s", "host": "api.test"}'
    outside(team.folder, "UPDATE credential_bindings SET body = ?", body % other.id)
    assert await team.store.credentials.bindings(team.alice.id) == []
    monkeypatch.setattr(rolls, "compare", lambda roll, rows, why: Compared(frozenset(rows)))
    assert await team.store.credentials.bindings(team.alice.id) == [bound]
    outside(
        team.folder, "UPDATE credential_bindings SET body = ?", '{"id": "b", "host": "h", "credential": "c", "x": 1}'
    )
    with pytest.raises(Failed, match="later release"):
        await team.store.credentials.bindings(team.alice.id)


# --- what goes with whom ----------------------------------------------------------------------------------------------


async def test_what_goes_with_a_user(team: Team) -> None:
    credentials = team.store.credentials
    own, shared = await put(team, "own", team.alice), await put(team, "deploy", team.alice, Owner.SHARED)
    bobs, tenants = await put(team, "own", team.bob), await put(team, "all", None, Owner.TENANT)
    theirs = await put(team, "given", team.bob, Owner.SHARED)
    await credentials.grant(shared.id, team.bob.id, granted=True)
    await credentials.grant(theirs.id, team.alice.id, granted=True)
    for user, one in (
        (team.alice, own),
        (team.bob, shared),
        (team.alice, theirs),
        (team.bob, bobs),
        (team.alice, tenants),
    ):
        await credentials.bind(user.id, binding(one))
    await team.store.users.remove(team.alice.id)
    for one in (own, shared):
        assert (await credentials.get(one.id)).revoked_at is not None
        assert versions(team, one.id) == []
    assert [one.credential for one in await credentials.bindings(team.bob.id)] == [bobs.id]
    assert await credentials.bound_by(tenants.id) == []
    assert await credentials.grants(theirs.id) == []
    for one in (bobs, tenants, theirs):
        assert (await credentials.opening(one.id))[0] == one
    with pytest.raises(NotFound):
        await credentials.visible(team.alice.id)
    with pytest.raises(NotFound):
        await put(team, "late", team.alice)
    with pytest.raises(NotFound):
        await credentials.bind(team.alice.id, binding(tenants))
    with pytest.raises(NotFound):
        await credentials.grant(theirs.id, team.alice.id, granted=True)


async def test_what_goes_with_a_tenant(team: Team) -> None:
    other = await team.store.tenants.add("other")
    made = replace(draft(team, "all", None, Owner.TENANT), tenant=other.id)
    await team.store.credentials.put(made, sealed(made))
    kept = await put(team, "all", None, Owner.TENANT, number=1)
    await team.store.tenants.remove("other")
    assert (await team.store.credentials.get(made.id)).revoked_at is not None
    assert versions(team, made.id) == []
    assert (await team.store.credentials.get(kept.id)).revoked_at is None
    late = replace(made, id="crd_late")
    with pytest.raises(NotFound):
        await team.store.credentials.put(late, sealed(late))


async def test_a_removal_beside_somebody_who_stores(team: Team) -> None:
    """Whoever comes second sees what the first did: nothing of a removed user is left."""
    tries = [put(team, "x", team.alice, number=number) for number in range(4)]
    *stored, removed = await asyncio.gather(*tries, team.store.users.remove(team.alice.id), return_exceptions=True)
    assert removed is None, removed
    assert all(isinstance(each, Credential | Conflict | NotFound) for each in stored), stored
    left = outside(
        team.folder,
        'SELECT c.id FROM credentials c JOIN credential_versions v ON v.credential = c.id WHERE c."user" = ?',
        team.alice.id,
    )
    assert left == []


# --- rotation asks ----------------------------------------------------------------------------------------------------


async def test_which_are_wrapped_by_another_key(team: Team) -> None:
    credentials = team.store.credentials
    ids = sorted([(await put(team, name, team.alice)).id for name in "abcde"])
    assert await credentials.wrapped_otherwise("first", ("", 0), 10) == []
    page = await credentials.wrapped_otherwise("second", ("", 0), 2)
    assert [one.credential for one in page] == ids[:2]
    rest = await credentials.wrapped_otherwise("second", (ids[1], 1), 10)
    assert [one.credential for one in rest] == ids[2:]
    one = replace(page[0], kek="second", wrapped_key=b"new")
    assert await credentials.rewrap(one, "first")
    assert not await credentials.rewrap(one, "first"), "somebody was faster"
    assert page[0].data == b"", "neither counting nor wrapping needs the value"
    assert replace((await credentials.opening(ids[0]))[1], data=b"") == one
    assert not await credentials.rewrap(replace(one, version=2), "second")
    await credentials.revoke(ids[0])
    assert not await credentials.rewrap(one, "second")


async def test_two_of_one_name_granted_at_once(team: Team, tmp_path: Path) -> None:
    """By two kernels: one of them is refused, or the user could not say which is meant."""
    async with opened(tmp_path, team.clock, first=1 << 40) as other:
        for number in range(10):
            reader = await team.store.users.add("default", f"reader{number}", UserKind.PERSON, None)
            name = f"d{number}"
            mine = await put(team, name, team.alice, Owner.SHARED)
            theirs = await put(team, name, team.bob, Owner.SHARED)
            done = await asyncio.gather(
                team.store.credentials.grant(mine.id, reader.id, granted=True),
                other.credentials.grant(theirs.id, reader.id, granted=True),
                return_exceptions=True,
            )
            assert sorted(type(each).__name__ for each in done) == ["Conflict", "NoneType"]
            assert len(await team.store.credentials.visible(reader.id)) == 1
