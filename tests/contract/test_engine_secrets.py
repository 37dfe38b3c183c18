"""Credentials through the engine: real store, real vault; what workers would be told is recorded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Conflict, Invalid, NameInvalid, NotFound, Refused, TooLarge, Unavailable
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.credentials import Binding, Owner, Use
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import MAX_VALUE
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.kernel.people import Scope
from ringfence.host.store.credentials import SqlCredentials
from tests.support.engine_rig import OPERATOR
from tests.support.outward_rig import Out, out
from tests.support.vault_rig import CANARY, a_vault, put_key

GITHUB = BindingWish("github")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Out]:
    async with out(tmp_path) as made:
        yield made


async def test_stored_bound_and_listed_without_its_value(there: Out) -> None:
    kept = await there.set("alice", wish=GITHUB)
    assert (kept.credential.name, kept.credential.version, kept.user) == ("gh", 1, "alice")
    hosts = [each.host for each in kept.bindings]
    assert {"api.github.com", "github.com"} <= {*hosts}
    assert await there.value(kept.credential.id) == CANARY
    listed = await there.rig.engine.secrets.ls(there.actor("alice"), "default", "alice")
    assert listed == [kept] and CANARY.decode() not in repr(listed)
    assert await there.rig.engine.secrets.ls(there.actor("bob"), "default", "bob") == []
    acts = await there.recorded("secret.")
    assert [each["action"] for each in acts] == ["secret.set", *("secret.bind" for _ in hosts)]
    assert CANARY.decode() not in json.dumps([dict(each) for each in acts], default=str)
    alice = there.actor("alice").user
    assert alice is not None and there.told.reloads == [[alice.id]]


async def test_the_next_version_keeps_bindings_and_reaches_workers(there: Out) -> None:
    first = await there.set("alice", wish=GITHUB)
    again = await there.set("alice", value=b"the-next", wish=GITHUB)
    assert (again.credential.id, again.credential.version) == (first.credential.id, 2)
    assert [each.id for each in again.bindings] == [each.id for each in first.bindings], "stand-ins stay as they are"
    assert await there.value(first.credential.id) == b"the-next"
    assert there.told.revoked == [first.credential.id], "no worker has the version before"


async def test_revoked_for_good(there: Out) -> None:
    kept = await there.set("alice", wish=GITHUB)
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    await secrets.revoke(alice, "default", "alice", "gh")
    assert there.told.revoked == [kept.credential.id]
    assert alice.user is not None and there.told.reloads[-1] == [alice.user.id], "no command is given a stand-in"
    assert len(there.told.reloads) == 2
    assert await secrets.ls(alice, "default", "alice") == []
    with pytest.raises(NotFound):
        await there.value(kept.credential.id)
    with pytest.raises(NotFound):
        await secrets.revoke(alice, "default", "alice", "gh")
    new = await there.set("alice")
    assert new.credential.id != kept.credential.id and new.bindings == []


async def test_a_sealed_vault_takes_nothing_and_gives_up_what_it_has(there: Out, tmp_path: Path) -> None:
    kept = await there.set("alice")
    (tmp_path / "vault" / "master.key").unlink()
    there.rig.with_parts["vault"] = await a_vault(tmp_path, there.rig.store)
    await there.rig.restart()
    parts = (await there.rig.engine.health.status(OPERATOR))["parts"]
    assert parts["vault"]["ok"] is False and "master.key" in parts["vault"]["sealed"]
    before = await there.recorded("secret.set")
    with pytest.raises(Unavailable, match="sealed"):
        await there.set("alice", "other")
    assert await there.recorded("secret.set") == before
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    assert [each.credential.id for each in await secrets.ls(alice, "default", "alice")] == [kept.credential.id]
    await secrets.revoke(alice, "default", "alice", "gh")
    assert await secrets.ls(alice, "default", "alice") == []


@pytest.mark.parametrize(
    ("name", "value", "wish", "error"),
    [
        ("Upper", CANARY, None, NameInvalid),
        ("", CANARY, None, NameInvalid),
        ("~ca", CANARY, None, NameInvalid),
        ("gh", b"", None, Invalid),
        ("gh", b"x" * (MAX_VALUE + 1), None, TooLarge),
        ("gh", b"two\nlines", GITHUB, Invalid),
        ("gh", CANARY, BindingWish("no-such"), Invalid),
        ("gh", CANARY, BindingWish(host="10.0.0.0/8"), Invalid),
        ("gh", CANARY, BindingWish("oauth-refresh", host="a.test"), Invalid),
    ],
)
async def test_what_is_wrong_stores_nothing(
    there: Out, name: str, value: bytes, wish: BindingWish | None, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        await there.set("alice", name, value, wish=wish)
    assert "two" not in str(caught.value), "of the value nothing is said"
    assert await there.rig.engine.secrets.ls(there.actor("alice"), "default", "alice") == []
    assert await there.recorded("secret.") == []


async def test_shared_and_granted(there: Out) -> None:
    secrets, alice, bob = there.rig.engine.secrets, there.actor("alice"), there.actor("bob")
    kept = await there.set("alice", shared=True)
    with pytest.raises(NotFound):
        await secrets.bind(bob, "default", "bob", "gh", GITHUB)
    await secrets.reach(alice, "default", "alice", "gh", GITHUB)
    await secrets.grant(alice, "default", "alice", "gh", "bob", granted=True)
    assert (await secrets.ls(alice, "default", "alice"))[0].granted == ["bob"]
    (seen,) = await secrets.ls(bob, "default", "bob")
    assert (seen.user, seen.granted, seen.credential.owner) == ("alice", [], Owner.SHARED)
    await secrets.bind(bob, "default", "bob", "gh", GITHUB)
    with pytest.raises(NotFound, match="no such credential"):
        await secrets.revoke(bob, "default", "bob", "gh")
    await secrets.grant(alice, "default", "alice", "gh", "bob", granted=False)
    assert await secrets.ls(bob, "default", "bob") == []
    assert bob.user is not None and there.told.reloads[-1] == [bob.user.id], "his worker forgets the binding"
    assert await there.rig.store.credentials.bindings(bob.user.id) == []
    with pytest.raises(Conflict):
        await there.set("alice", shared=False)
    assert await there.value(kept.credential.id) == CANARY


async def test_only_what_is_shared_is_granted_and_only_to_who_is_there(there: Out) -> None:
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    await there.set("alice")
    with pytest.raises(Refused):
        await secrets.grant(alice, "default", "alice", "gh", "bob", granted=True)
    await there.set("alice", "both", shared=True)
    with pytest.raises(NotFound, match="no such user"):
        await secrets.grant(alice, "default", "alice", "both", "nobody", granted=True)


async def test_own_before_the_tenants(there: Out) -> None:
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    of_all = await secrets.set_tenant(OPERATOR, "default", "gh", Secret(b"the key of all"))
    await secrets.reach_tenant(OPERATOR, "default", "gh", BindingWish(host="a.test"))
    assert (of_all.user, of_all.credential.owner) == (None, Owner.TENANT)
    (binding,) = await secrets.bind(alice, "default", "alice", "gh", BindingWish(host="a.test"))
    assert binding.credential == of_all.credential.id
    own = await there.set("alice")
    (binding,) = await secrets.bind(alice, "default", "alice", "gh", BindingWish(host="a.test"))
    assert binding.credential == own.credential.id
    with pytest.raises(Refused):
        await secrets.set_tenant(alice, "default", "mine", Secret(b"x"))
    with pytest.raises(Refused):
        await secrets.revoke_tenant(alice, "default", "gh")
    await secrets.revoke_tenant(OPERATOR, "default", "gh")
    assert [each.credential.id for each in await secrets.all(OPERATOR, "default")] == [own.credential.id]


async def test_bound_once_and_unbound_by_id_or_name(there: Out) -> None:
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    kept = await there.set("alice", wish=GITHUB)
    with pytest.raises(Conflict):
        await secrets.bind(alice, "default", "alice", "gh", GITHUB)
    first, *others = (each.id for each in kept.bindings)
    assert await secrets.unbind(alice, "default", "alice", first) == [first]
    assert await secrets.unbind(alice, "default", "alice", "gh") == others
    with pytest.raises(NotFound):
        await secrets.unbind(alice, "default", "alice", "gh")
    with pytest.raises(NotFound):
        await secrets.unbind(there.actor("bob"), "default", "bob", first)


async def test_mounted_is_ones_own_and_said_where_the_box_is_shown(there: Out) -> None:
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    mounted = BindingWish(use=Use.MOUNTED, environment=("API_KEY",))
    with pytest.raises(Refused, match="operator"):
        await secrets.set(OPERATOR, "default", "alice", "gh", Secret(CANARY), wish=mounted)
    kept = await there.set("alice", "plain", b"several\nlines", wish=mounted)
    assert [(each.use, each.environment) for each in kept.bindings] == [(Use.MOUNTED, ("API_KEY",))]
    await there.set("alice", "spent", wish=BindingWish(host="a.test", use=Use.INJECT))
    shown = await there.rig.engine.boxes.show(alice, "default", "alice")
    assert (shown.mounted, shown.injected) == (["plain"], ["spent"])
    assert [each.mounted for each in await there.rig.engine.boxes.list(OPERATOR, None)] == [["plain"], []]
    await secrets.set_tenant(OPERATOR, "default", "of-all", Secret(CANARY))
    with pytest.raises(Refused):
        await secrets.bind(alice, "default", "alice", "of-all", mounted)
    with pytest.raises(Invalid, match="variable"):
        await secrets.bind(alice, "default", "alice", "plain", replace(mounted, environment=None))


async def test_nothing_is_stored_that_could_not_be_mounted(there: Out) -> None:
    """Control: one's own is."""
    mounted = BindingWish(use=Use.MOUNTED, environment=("API_KEY",))
    with pytest.raises(Refused, match="mounted nowhere"):
        await there.set("alice", "ours", shared=True, wish=mounted)
    assert await there.rig.engine.secrets.ls(there.actor("alice"), "default", "alice") == []
    await there.set("alice", "mine", wish=mounted)


async def test_a_list_of_boxes_asks_of_those_alone_who_have_something_to_say(
    there: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    await there.set("alice", "spent", wish=BindingWish(host="a.test", use=Use.INJECT))
    await there.set("bob", "meant", wish=BindingWish(host="a.test"))
    asked, real = list[str](), SqlCredentials.bindings

    async def bindings(self: SqlCredentials, user: UserId, **more: bool) -> list[Binding]:
        asked.append(user)
        return await real(self, user, **more)

    monkeypatch.setattr(SqlCredentials, "bindings", bindings)
    boxes = await there.rig.engine.boxes.list(OPERATOR, None)
    alice = there.actor("alice").user
    assert alice is not None and asked == [alice.id]
    assert [each.injected for each in boxes] == [["spent"], []]


async def test_a_token_that_may_only_read_changes_nothing(there: Out) -> None:
    await there.set("alice")
    reader = replace(there.actor("alice"), scopes=frozenset({Scope.READ}))
    secrets = there.rig.engine.secrets
    assert len(await secrets.ls(reader, "default", "alice")) == 1
    with pytest.raises(Refused, match="only read"):
        await secrets.revoke(reader, "default", "alice", "gh")
    with pytest.raises(NotFound):
        await secrets.ls(there.actor("bob"), "default", "alice")


async def test_rotation_through_the_engine(there: Out, tmp_path: Path) -> None:
    kept = await there.set("alice")
    put_key(tmp_path, name="master.key.old")
    put_key(tmp_path, b"n" * 32)
    vault = there.rig.engine.vault
    assert await vault.rotate(OPERATOR) == {"rewrapped": 1, "resigned": 0, "left": 0, "damaged": []}
    assert await vault.rotate(OPERATOR) == {"rewrapped": 0, "resigned": 0, "left": 0, "damaged": []}
    assert (await vault.status(OPERATOR))["unreadable"] == 0
    assert await there.value(kept.credential.id) == CANARY
    with pytest.raises(Refused):
        await vault.rotate(there.actor("alice"))
    assert len(await there.recorded("vault.rotate")) == 2


async def test_what_a_removed_user_shared_is_gone_from_workers(there: Out) -> None:
    secrets, bob = there.rig.engine.secrets, there.actor("bob")
    shared = await there.set("alice", shared=True, wish=GITHUB)
    await secrets.grant(there.actor("alice"), "default", "alice", "gh", "bob", granted=True)
    await secrets.bind(bob, "default", "bob", "gh", BindingWish())
    await there.rig.engine.people.user_remove(OPERATOR, "default", "alice")
    assert there.told.revoked == [shared.credential.id]
    assert bob.user is not None and there.told.reloads[-1] == [bob.user.id]
    assert await secrets.ls(bob, "default", "bob") == []
    with pytest.raises(NotFound):
        await there.value(shared.credential.id)
