"""Tenants, users, tokens, boxes and the audit: what kernel/ports.py promises, on a real file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import BoxKind, Desired, Limits, Observed
from ringfence.host.kernel.errors import Conflict, Invalid, NameInvalid, NotFound, Unavailable
from ringfence.host.kernel.ids import BoxId, TokenId, UserId
from ringfence.host.kernel.people import Scope, UserKind
from ringfence.host.kernel.ports import Store
from ringfence.host.kernel.runs import RunState
from ringfence.host.store.migrate import newest
from tests.support.databases import outside
from tests.support.store import Team, a_team, opened

LIMITS = Limits(memory=123 << 20)


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


def test_it_is_a_store(team: Team) -> None:
    store: Store = team.store  # mypy compares every method of every part
    assert store.tenants is team.store.tenants


# --- tenants ---------------------------------------------------------------------------------------------------------


async def test_tenants(team: Team) -> None:
    tenants = team.store.tenants
    other = await tenants.add("other")
    assert await tenants.get("other") == other
    assert [tenant.name for tenant in await tenants.all()] == ["default", "other"]
    with pytest.raises(Conflict, match="exists"):
        await tenants.add("other")
    with pytest.raises(NameInvalid):
        await tenants.add("a/b")
    with pytest.raises(Conflict, match="has 2 users"):
        await tenants.remove("default")
    await tenants.remove("other")
    for name in ("other", "Default", "nobody", "a\0b", "\udcff"):
        with pytest.raises(NotFound, match="no such tenant"):
            await tenants.get(name)
    assert (await tenants.add("other")).id != other.id, "a name may be used again, an id never"


# --- users -----------------------------------------------------------------------------------------------------------


async def test_users_are_found_by_their_exact_name(team: Team) -> None:
    users = team.store.users
    assert await users.get("default", "alice") == team.alice
    assert await users.by_id(team.alice.id) == team.alice
    assert [user.name for user in await users.all("default")] == ["alice", "bob"]
    with pytest.raises(Conflict, match="'alice' exists in tenant 'default'"):
        await users.add("default", "alice", UserKind.PERSON, None)
    for name in ("Alice", "alice ", "alic", "a\0", "\udcff", ""):
        with pytest.raises(NotFound, match="no such user: "):
            await users.get("default", name)
    with pytest.raises(NotFound, match="no such tenant: 'elsewhere'"):
        await users.get("elsewhere", "alice")
    with pytest.raises(NotFound, match="no such tenant"):
        await users.all("elsewhere")
    with pytest.raises(NotFound):
        await users.by_id(UserId("usr_none"))


async def test_names_that_people_try_are_distinct_or_refused(team: Team) -> None:
    """cases.md F94: never two names for one user."""
    users = team.store.users
    accepted = {}
    for name in ["a/b", "a_b", "A_B", "a%2fb", "经济", "ren\u00e9", "rene\u0301", "..", "x" * 300, "a_b.", "a\0b"]:
        try:
            accepted[name] = await users.add("default", name, UserKind.PERSON, None)
        except NameInvalid as refused:
            assert refused.remedy, name
    assert sorted(accepted) == ["A_B", "a_b", "ren\u00e9", "经济"]
    homes = {name: await team.store.boxes.home_of(user, "bubblewrap", LIMITS) for name, user in accepted.items()}
    assert len({home.id for home in homes.values()}) == 4
    for name, user in accepted.items():
        assert await users.get("default", name) == user


async def test_owners(team: Team) -> None:
    users = team.store.users
    agent = await users.add("default", "helper", UserKind.AGENT, "alice")
    assert (agent.owner, agent.kind) == (team.alice.id, UserKind.AGENT)
    with pytest.raises(Invalid, match="needs an owner"):
        await users.add("default", "other", UserKind.PROJECT, None)
    with pytest.raises(Invalid, match="has no owner"):
        await users.add("default", "other", UserKind.PERSON, "alice")
    with pytest.raises(Invalid, match="is of kind agent"):
        await users.add("default", "other", UserKind.AGENT, "helper")
    with pytest.raises(NotFound, match="no such user: 'nobody'"):
        await users.add("default", "other", UserKind.AGENT, "nobody")
    with pytest.raises(Conflict, match="'alice' owns 'helper'"):
        await users.remove(team.alice.id)
    await users.remove(agent.id)
    await users.remove(team.alice.id)


async def test_removing_a_user_is_one_transaction(team: Team) -> None:
    store = team.store
    await store.tokens.add(team.alice.id, "hash", frozenset({Scope.USER}), "", None)
    home = await store.boxes.home_of(team.alice, "bubblewrap", LIMITS)
    await store.boxes.update(home.id, desired=Desired.RUNNING)
    first, second = await team.say(), await team.say()
    [live] = await team.claim()
    before = store.commits
    await store.users.remove(team.alice.id)
    assert store.commits == before + 1
    with pytest.raises(NotFound):
        await store.users.get("default", "alice")
    with pytest.raises(NotFound):
        await store.tokens.find("hash")
    with pytest.raises(NotFound):
        await store.boxes.home_of(team.alice, "bubblewrap", LIMITS)
    assert (await store.boxes.get(home.id)).desired is Desired.STOPPED
    assert live.id == first.run.id
    assert (await team.get(first.run.id)).cancel_requested
    assert (await team.get(second.run.id)).state is RunState.CANCELLED
    assert (await store.threads.by_id(team.thread.id)).members == {team.bob.id}
    again = await store.users.add("default", "alice", UserKind.PERSON, None)
    assert again.id != team.alice.id
    assert (await store.boxes.home_of(again, "bubblewrap", LIMITS)).id != home.id


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_tokens(team: Team) -> None:
    tokens, clock = team.store.tokens, team.clock
    soon = clock.now() + timedelta(minutes=5)
    token = await tokens.add(team.alice.id, "h1", frozenset({Scope.USER, Scope.READ}), "laptop", soon)
    found, user = await tokens.find("h1")
    assert (found.id, found.scopes, found.note, found.expires_at) == (token.id, token.scopes, "laptop", soon)
    assert user == team.alice
    clock.pass_seconds(3600)
    assert (await tokens.find("h1"))[0].expires_at == soon, "expired ones are found too"
    assert [kept.id for kept in await tokens.all(team.alice.id)] == [token.id]
    assert await tokens.all(team.bob.id) == []
    for wrong in ("H1", "", "a\0"):
        with pytest.raises(NotFound):
            await tokens.find(wrong)
    with pytest.raises(Conflict):
        await tokens.add(team.bob.id, "h1", frozenset(), "", None)
    with pytest.raises(NotFound):
        await tokens.add(UserId("usr_none"), "h2", frozenset(), "", None)
    await tokens.remove(token.id)
    with pytest.raises(NotFound):
        await tokens.find("h1")
    with pytest.raises(NotFound):
        await tokens.remove(token.id)
    with pytest.raises(NotFound):
        await tokens.remove(TokenId("tok_none"))


async def test_the_use_of_a_token_is_noted_once_a_minute(team: Team) -> None:
    tokens = team.store.tokens
    token = await tokens.add(team.alice.id, "h1", frozenset(), "", None)
    await tokens.add(team.alice.id, "h2", frozenset(), "", None)
    before = team.store.commits
    first = (await tokens.find("h1"))[0].last_used_at
    assert first == team.clock.now()
    team.clock.pass_seconds(59)
    assert (await tokens.find("h1"))[0].last_used_at == first
    team.clock.pass_seconds(2)
    assert (await tokens.find("h1"))[0].last_used_at == team.clock.now()
    assert [one.last_used_at for one in await tokens.all(team.alice.id)] == [team.clock.now(), None]
    assert team.store.commits == before, "who comes in waits for no write"
    assert (await tokens.get(token.id))[0].last_used_at is None
    for _ in range(2):
        await tokens.note_uses()
        assert team.store.commits == before + 1
        assert (await tokens.get(token.id))[0].last_used_at == team.clock.now()


async def test_another_kernels_later_use_of_a_token_stays(team: Team, tmp_path: Path) -> None:
    tokens = team.store.tokens
    token = await tokens.add(team.alice.id, "h1", frozenset(), "", None)
    await tokens.find("h1")
    outside(tmp_path, "UPDATE tokens SET last_used_at = '2999-06-01 00:00:00.000000' WHERE id = ?", token.id)
    await tokens.note_uses()
    kept = (await tokens.get(token.id))[0].last_used_at
    assert kept is not None and kept.year == 2999


async def test_what_was_not_noted_yet_is_when_the_store_is_closed(tmp_path: Path) -> None:
    async with a_team(tmp_path) as team:
        token = await team.store.tokens.add(team.alice.id, "h1", frozenset(), "", None)
        await team.store.tokens.find("h1")
    async with opened(tmp_path, first=1 << 40) as store:
        assert (await store.tokens.get(token.id))[0].last_used_at == team.clock.now()


# --- boxes -----------------------------------------------------------------------------------------------------------


async def test_a_user_has_one_home(team: Team) -> None:
    boxes = team.store.boxes
    home = await boxes.home_of(team.alice, "bubblewrap", LIMITS)
    assert (home.kind, home.desired, home.observed) == (BoxKind.HOME, Desired.STOPPED, Observed.ABSENT)
    assert (home.uid, home.generation, home.limits, home.tenant) == (0, 0, LIMITS, team.tenant.id)
    assert await boxes.home_of(team.alice, "bubblewrap", Limits()) == home
    assert await boxes.get(home.id) == home
    with pytest.raises(Conflict):
        await boxes.add(team.alice, BoxKind.HOME, "bubblewrap", LIMITS)
    probe = await boxes.add(team.alice, BoxKind.PROBE, "bubblewrap", LIMITS)
    assert {box.id for box in await boxes.all()} == {home.id, probe.id}
    other = await team.store.tenants.add("other")
    assert await boxes.all(other.id) == []
    with pytest.raises(NotFound):
        await boxes.get(BoxId("a" * 16))


async def test_intent_and_observation_of_a_box(team: Team) -> None:
    boxes = team.store.boxes
    home = await boxes.home_of(team.alice, "bubblewrap", LIMITS)
    identity = {"pid": 7, "start": 1 << 40}
    running = await boxes.update(
        home.id, desired=Desired.RUNNING, observed=Observed.RUNNING, uid=4711, identity=identity, started=True
    )
    assert (running.desired, running.observed, running.uid) == (Desired.RUNNING, Observed.RUNNING, 4711)
    assert (running.identity, running.generation, running.started_at) == (identity, 1, team.clock.now())
    assert running.last_active_at is None
    team.clock.pass_seconds(5)
    active = await boxes.update(home.id, active=True, limits=Limits(memory=1 << 28))
    assert (active.last_active_at, active.limits.memory) == (team.clock.now(), 1 << 28)
    assert active.identity == identity
    lost = await boxes.update(home.id, observed=Observed.LOST, identity=identity)
    assert (lost.identity, lost.desired, lost.generation) == (None, Desired.RUNNING, 1)
    assert await boxes.get(home.id) == lost


async def test_a_removed_box_is_there_until_it_is_seen_absent(team: Team) -> None:
    boxes = team.store.boxes
    home = await boxes.home_of(team.alice, "bubblewrap", LIMITS)
    await boxes.update(home.id, observed=Observed.STOPPED)
    await boxes.update(home.id, desired=Desired.REMOVED)
    assert [box.id for box in await boxes.all()] == [home.id]
    new = await boxes.home_of(team.alice, "bubblewrap", LIMITS)
    assert new.id != home.id
    gone = await boxes.update(home.id, observed=Observed.ABSENT)
    assert gone.id == home.id
    assert [box.id for box in await boxes.all()] == [new.id]
    with pytest.raises(NotFound):
        await boxes.update(home.id, observed=Observed.RUNNING)


# --- the whole -------------------------------------------------------------------------------------------------------


async def test_health_and_close(team: Team) -> None:
    health = await team.store.health()
    assert (health["ok"], health["schema"]) == (True, newest())
    assert health["size_bytes"] > 4096
    assert health["commit_ms"] >= 0
    await team.store.close()
    await team.store.close()
    health = await team.store.health()
    assert (health["ok"], health["problem"]) == (False, "the store is closed")
    with pytest.raises(Unavailable):
        await team.store.tenants.all()
    with pytest.raises(Unavailable):
        await team.store.tenants.add("late")
