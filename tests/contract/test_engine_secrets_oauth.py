"""Grants among credentials: stored as such, bound by any recipe, and how their renewal stands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, Invalid
from ringfence.host.kernel.outward import grants
from ringfence.host.kernel.outward.credentials import Use
from ringfence.host.kernel.outward.grants import KIND
from ringfence.host.kernel.outward.renewals import Turn
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish
from tests.support.engine_rig import OPERATOR
from tests.support.outward_rig import Out, out
from tests.support.vault_rig import CANARY

GRANT = {"token_url": "https://auth.test/token", "client_id": "app", "refresh_token": "canary-refresh"}
VALUE = json.dumps(GRANT).encode()
REFRESH = BindingWish("oauth-refresh", host="api.test", environment=("CLOUD_TOKEN",))
GITHUB = BindingWish("github")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Out]:
    async with out(tmp_path) as made:
        yield made


async def test_a_recipe_says_that_it_is_one(there: Out) -> None:
    made = await there.set("alice", "cloud", VALUE, wish=REFRESH)
    assert made.credential.kind == KIND
    [bound] = made.bindings
    assert (bound.host, bound.environment, bound.recipe) == ("api.test", ("CLOUD_TOKEN",), "oauth-refresh")
    assert grants.opened(Secret(await there.value(made.credential.id))) == grants.given(Secret(VALUE))
    [row] = await there.recorded("secret.set")
    assert row["details"]["kind"] == KIND and "canary-refresh" not in json.dumps(dict(row), default=str)


async def test_so_does_whoever_stores_it_for_others_to_bind(there: Out) -> None:
    made = await there.set("alice", "cloud", VALUE, oauth=True)
    assert (made.credential.kind, made.bindings) == (KIND, [])
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    bound = await secrets.bind(alice, "default", "alice", "cloud", GITHUB)
    assert {each.host for each in bound} >= {"api.github.com", "github.com"}, "the access token, wherever it is taken"


async def test_what_is_stored_again_is_a_grant_again(there: Out) -> None:
    await there.set("alice", "cloud", VALUE, wish=REFRESH)
    again = await there.set("alice", "cloud", json.dumps({**GRANT, "refresh_token": "canary-2"}).encode())
    assert (again.credential.kind, again.credential.version) == (KIND, 2)
    with pytest.raises(Invalid) as caught:
        await there.set("alice", "cloud", CANARY)
    assert CANARY.decode() not in str(caught.value)
    assert grants.opened(Secret(await there.value(again.credential.id))).grant.refresh_token == Secret(b"canary-2")


async def test_one_name_is_of_one_kind(there: Out) -> None:
    await there.set("alice", "gh", wish=GITHUB)
    for more in ({"oauth": True}, {"wish": REFRESH}):
        with pytest.raises(Conflict, match="one value"):
            await there.set("alice", "gh", VALUE, **more)
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    with pytest.raises(Invalid, match="no grant"):
        await secrets.bind(alice, "default", "alice", "gh", REFRESH)
    assert (await secrets.ls(alice, "default", "alice"))[0].credential.version == 1


async def test_it_is_not_mounted(there: Out) -> None:
    mounted = BindingWish(use=Use.MOUNTED, environment=("T",))
    with pytest.raises(Invalid, match="access token"):
        await there.set("alice", "cloud", VALUE, oauth=True, wish=mounted)
    await there.set("alice", "cloud", VALUE, oauth=True)
    with pytest.raises(Invalid, match="access token"):
        await there.rig.engine.secrets.bind(there.actor("alice"), "default", "alice", "cloud", mounted)


async def test_how_its_renewal_stands(there: Out) -> None:
    made = await there.set("alice", "cloud", VALUE, wish=REFRESH)
    await there.set("alice", "gh", wish=GITHUB)
    secrets, alice, renewals = there.rig.engine.secrets, there.actor("alice"), there.rig.store.renewals

    async def standing() -> list[object]:
        found = await secrets.ls(alice, "default", "alice")
        assert await secrets.all(OPERATOR, "default")
        return [each.renewal.turn if each.renewal is not None else None for each in found]

    assert await standing() == [None, None]
    assert (await renewals.take(made.credential.id, 1, "krn_1", 30)).turn is Turn.MINE
    assert await standing() == [Turn.BUSY, None]
    await renewals.failed(made.credential.id, 1, "krn_2", "somebody else's word", 5, cut=False)
    assert await standing() == [Turn.BUSY, None]
    await renewals.failed(made.credential.id, 1, "krn_1", "auth.test: it answered 503", 3600, cut=False)
    assert await standing() == [Turn.LATER, None]
    assert (await renewals.take(made.credential.id, 1, "krn_1", 30)).turn is Turn.LATER
    await there.set("alice", "cloud", VALUE)
    assert (await renewals.take(made.credential.id, 2, "krn_1", 30)).turn is Turn.MINE, "another version, another try"
    await renewals.failed(made.credential.id, 2, "krn_1", "auth.test: invalid_grant", None, cut=False)
    assert await standing() == [Turn.REFUSED, None]
    await there.set("alice", "cloud", VALUE)
    assert await standing() == [None, None]
    assert (await renewals.take(made.credential.id, 2, "krn_1", 30)).turn is Turn.OVERTAKEN
