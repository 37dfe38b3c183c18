"""Where others may have a tenant's or a shared credential sent is its owner's word: real store, real vault, real
release."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.engine.secrets import SecretView
from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound, Refused
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward import reaches
from ringfence.host.kernel.outward.credentials import Binding, Credential, Use
from ringfence.host.kernel.outward.ports import Wanted
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.kernel.people import User
from ringfence.host.vault.release import Counter
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR
from tests.support.outward_rig import Out, out
from tests.support.vault_rig import CANARY

THERE = BindingWish(host="api.test", methods=frozenset({"GET"}), paths=("/v1/**",))
COLLECTOR = BindingWish(host="collector.bob.test")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Out]:
    async with out(tmp_path) as made:
        yield made


def bob_of(there: Out) -> User:
    user = there.actor("bob").user
    assert user is not None
    return user


async def bobs(there: Out, wish: BindingWish, name: str = "all") -> list[Binding]:
    return list(await there.rig.engine.secrets.bind(there.actor("bob"), "default", "bob", name, wish))


async def tenants(there: Out, wish: BindingWish | None = None, name: str = "all") -> SecretView:
    secrets = there.rig.engine.secrets
    made = await secrets.set_tenant(OPERATOR, "default", name, Secret(CANARY))
    return await secrets.reach_tenant(OPERATOR, "default", name, wish) if wish is not None else made


async def released(there: Out, binding: Binding, host: str, user: User | None = None, method: str = "GET") -> bytes:
    counter = Counter(there.vault, there.rig.store.credentials, there.rig.store.audit)
    whose = (user or bob_of(there)).id
    wanted = Wanted(BoxId("b" * 16), whose, binding.credential, binding.id, "inv_1", host, method, "/")
    return (await counter.release(None, wanted)).reveal()


async def test_what_others_use_they_do_not_read(there: Out) -> None:
    """The attack: bound to a host of the binder's own. Control: his own credential goes wherever he says."""
    await tenants(there)
    with pytest.raises(Refused, match="nobody but its owner") as nowhere:
        await bobs(there, COLLECTOR)
    assert "secret reach --tenant-wide" in nowhere.value.remedy
    await there.rig.engine.secrets.reach_tenant(OPERATOR, "default", "all", THERE)
    with pytest.raises(Refused, match=r"api\.test"):
        await bobs(there, COLLECTOR)
    await there.set("bob", "own")
    [own] = await bobs(there, COLLECTOR, "own")
    assert await released(there, own, "collector.bob.test") == CANARY


async def test_a_shared_one_too(there: Out) -> None:
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    await there.set("alice", "all", shared=True, wish=THERE)
    await secrets.grant(alice, "default", "alice", "all", "bob", granted=True)
    with pytest.raises(Refused):
        await bobs(there, COLLECTOR)
    [binding] = await bobs(there, BindingWish())
    assert (binding.host, binding.paths, binding.environment) == ("api.test", ("/v1/**",), ("ALL",))
    assert await released(there, binding, "api.test") == CANARY
    [hers] = await secrets.bind(alice, "default", "alice", "all", BindingWish(host="hers.test"))
    assert hers.host == "hers.test", "her own goes where she says"
    with pytest.raises(Refused, match="nobody else's"):
        await there.set("alice", "mine")
        await secrets.reach(alice, "default", "alice", "mine", THERE)


@pytest.mark.parametrize(
    "wider",
    [
        replace(THERE, host="**.api.test"),
        replace(THERE, host="other.test"),
        replace(THERE, ports=(443, 8443)),
        replace(THERE, methods=frozenset({"GET", "POST"})),
        replace(THERE, methods=frozenset()),
        replace(THERE, paths=()),
        replace(THERE, paths=("/v1/**", "/oauth/token")),
        replace(THERE, header="x-key"),
        replace(THERE, use=Use.INJECT),
        replace(THERE, ranges=True),
    ],
)
async def test_no_part_of_a_binding_is_wider(there: Out, wider: BindingWish) -> None:
    """Control: it is bound once the owner says so much."""
    await tenants(there, THERE)
    with pytest.raises(Refused):
        await bobs(there, wider)
    await there.rig.engine.secrets.reach_tenant(OPERATOR, "default", "all", wider)
    assert len(await bobs(there, wider)) == 1


async def test_a_path_where_the_owner_names_none(there: Out) -> None:
    """It would let a request out that asks for a token (E15): to name paths is the owner's."""
    await tenants(there, BindingWish(host="api.test"))
    with pytest.raises(Refused):
        await bobs(there, BindingWish(host="api.test", paths=("/oauth/token",)))


async def test_fewer_hosts_and_uses_are_the_binders(there: Out) -> None:
    await tenants(there, BindingWish(host="*.api.test", uses=5))
    with pytest.raises(Refused):
        await bobs(there, BindingWish(host="a.api.test"))
    [binding] = await bobs(there, BindingWish(host="a.api.test", uses=5, environment=("MINE",)))
    assert (binding.host, binding.environment) == ("a.api.test", ("MINE",))


async def test_the_store_refuses_by_itself(there: Out) -> None:
    """The second wall: whatever the engine would let through."""
    kept = await tenants(there, THERE)
    with pytest.raises(Refused):
        await there.rig.store.credentials.bind(bob_of(there).id, Binding("", kept.credential.id, "collector.bob.test"))


async def test_the_vault_refuses_by_itself(there: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third: a binding that came in past both. Control: without it, the value goes there."""
    kept = await tenants(there, THERE)
    monkeypatch.setattr(reaches, "check_within", lambda *_: None)
    binding = Binding("", kept.credential.id, "collector.bob.test")
    made = await there.rig.store.credentials.bind(bob_of(there).id, binding)
    with pytest.raises(Refused, match=r"collector\.bob"):
        await released(there, made, "collector.bob.test")
    with pytest.raises(Refused):
        await released(there, made, "api.test", method="POST")
    monkeypatch.setattr(reaches, "sends", lambda *_: True)
    assert await released(there, made, "collector.bob.test") == CANARY


@pytest.mark.alone
async def test_a_reach_that_was_altered_opens_nothing(there: Out, tmp_path: Path) -> None:
    """Who writes in the database says another host, and bob binds it. Control: as it was, it opens."""
    kept = await tenants(there, THERE)
    wide = kept.credential.reach.replace("api.test", "collector.bob.test")
    outside(tmp_path, "UPDATE credentials SET reach = ? WHERE id = ?", wide, kept.credential.id)
    with pytest.raises(Failed, match="not what was sealed"):
        await bobs(there, replace(THERE, host="collector.bob.test"))
    outside(tmp_path, "UPDATE credentials SET reach = 'no JSON' WHERE id = ?", kept.credential.id)
    assert len(await there.rig.engine.secrets.ls(there.actor("bob"), "default", "bob")) == 1
    with pytest.raises((Failed, Refused)):
        await bobs(there, BindingWish())
    outside(tmp_path, "UPDATE credentials SET reach = ? WHERE id = ?", kept.credential.reach, kept.credential.id)
    assert len(await bobs(there, BindingWish())) == 1


async def test_what_others_bound_ends_with_the_reach(there: Out) -> None:
    secrets = there.rig.engine.secrets
    kept = await tenants(there, THERE)
    await secrets.reach_tenant(OPERATOR, "default", "all", BindingWish(host="b.test"))
    assert {each.host for each in await bobs(there, BindingWish())} == {"api.test", "b.test"}
    told = len(there.told.reloads)
    gone = await secrets.reach_tenant(OPERATOR, "default", "all", None)
    assert (gone.credential.reach, gone.credential.version) == ("", 4)
    assert await there.rig.store.credentials.bindings(bob_of(there).id) == []
    assert there.told.reloads[told:] == [[bob_of(there).id]] and there.told.revoked[-1] == kept.credential.id
    assert await there.value(kept.credential.id) == CANARY
    acts = [each for each in await there.recorded("secret.reach")]
    assert len(acts) == 3


async def test_the_next_value_reaches_as_far(there: Out) -> None:
    secrets = there.rig.engine.secrets
    await tenants(there, THERE)
    again = await secrets.set_tenant(OPERATOR, "default", "all", Secret(b"the next value"))
    assert [each.host for each in reaches.places(again.credential)] == ["api.test"]
    assert len(await bobs(there, BindingWish())) == 1


async def test_the_key_of_a_model_is_bound_by_operators_alone(there: Out) -> None:
    """Else it would be spent beside the gateway and its budgets. Control: another name, the same reach."""
    there.rig.config = replace(there.rig.config, model_keys=frozenset({"gpt-key"}))
    await there.rig.restart()
    wish = BindingWish(host="api.openai.test")
    for name in ("gpt-key", "other-key"):
        await tenants(there, wish, name)
    with pytest.raises(Refused, match="key of a model"):
        await bobs(there, BindingWish(), "gpt-key")
    assert len(await bobs(there, BindingWish(), "other-key")) == 1
    made = await there.rig.engine.secrets.bind(OPERATOR, "default", "bob", "gpt-key", BindingWish())
    assert len(made) == 1


@pytest.mark.parametrize(
    "value", [b"sk-first\nsk-second", "\ufeffsk-of-a-file".encode(), b"sk-one # of the team", b"\n"]
)
async def test_the_key_of_a_model_is_stored_when_it_can_be_sent(there: Out, value: bytes) -> None:
    """And else refused at once, not at a command's first request; short ones are for servers that look at none. Control: any
    other name."""
    there.rig.config = replace(there.rig.config, model_keys=frozenset({"gpt-key"}))
    await there.rig.restart()
    secrets = there.rig.engine.secrets
    await secrets.set_tenant(OPERATOR, "default", "other-key", Secret(value))
    for good in (b"EMPTY", b"sk-with-a-line-end\n"):
        await secrets.set_tenant(OPERATOR, "default", "gpt-key", Secret(good))
    with pytest.raises(Invalid, match="one line of visible ASCII") as raised:
        await secrets.set_tenant(OPERATOR, "default", "gpt-key", Secret(value))
    assert "sk-" not in f"{raised.value.message}{raised.value.remedy}"
    with pytest.raises(Invalid):
        await secrets.set(OPERATOR, "default", "bob", "gpt-key", Secret(value))
    [found] = [each for each in await secrets.all(OPERATOR, "default") if each.credential.name == "gpt-key"]
    assert found.credential.version == 2, "nothing of it was stored"


async def test_two_that_were_granted_under_one_name(there: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store lets none come about; were there two, neither is taken for the other."""
    await there.set("bob", "one")
    found = (await there.rig.store.credentials.visible(bob_of(there).id))[0]

    async def two(user: object) -> list[Credential]:
        return [found, replace(found, id="crd_other")]

    monkeypatch.setattr(there.rig.store.credentials, "visible", two)
    with pytest.raises(Conflict, match="were granted"):
        await bobs(there, BindingWish(host="a.test"), "one")


async def test_a_name_is_no_id(there: Out) -> None:
    with pytest.raises(Invalid):
        await there.set("bob", "crd_22222222222222222222")


@pytest.mark.parametrize("value", [b"e", b"1234567"])
async def test_a_value_that_would_mask_whole_answers(there: Out, value: bytes) -> None:
    """Of a binding to a request's head. Control: what is mounted may be as short as it is, and eight bytes are
    enough."""
    secrets, bob = there.rig.engine.secrets, there.actor("bob")
    with pytest.raises(Invalid, match="masked"):
        await there.set("bob", "short", value, wish=COLLECTOR)
    with pytest.raises(NotFound):
        await secrets.revoke(bob, "default", "bob", "short")
    await there.set("bob", "short", value)
    with pytest.raises(Invalid, match="masked"):
        await bobs(there, COLLECTOR, "short")
    assert len(await bobs(there, BindingWish(use=Use.MOUNTED, environment=("PIN",)), "short")) == 1
    await there.set("bob", "short", value)
    await there.set("bob", "short", b"12345678")
    assert len(await bobs(there, COLLECTOR, "short")) == 1
    with pytest.raises(Invalid, match="masked"):
        await there.set("bob", "short", value)
