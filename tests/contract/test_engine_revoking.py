"""A revocation reaches the workers whatever fails, and is brought to its end by who asks again. Real store, real
vault."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import Desired
from ringfence.host.kernel.errors import DiskFull, Failed, NameInvalid, NotFound, Unavailable
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.store.credentials import SqlCredentials
from ringfence.host.vault.seen import Witnesses
from tests.support.clocks import HandClock
from tests.support.databases import outside
from tests.support.engine_rig import OPERATOR
from tests.support.outward_rig import Out, out
from tests.support.vault_rig import authorities

WISH = BindingWish(host="api.test")


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Out]:
    async with out(tmp_path) as made:
        yield made


def full(self: object, *_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_out_of_the_workers_though_it_cannot_be_noted(there: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again, it goes on to its end; then it is nothing to revoke."""
    kept = await there.set("alice", wish=WISH)
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    with monkeypatch.context() as failing:
        failing.setattr(Witnesses, "revoked", full)
        for times in (1, 2):
            with pytest.raises(DiskFull):
                await secrets.revoke(alice, "default", "alice", "gh")
            assert there.told.revoked == [kept.credential.id] * times
    assert alice.user is not None and [alice.user.id] in there.told.reloads
    assert (await secrets.revoke(alice, "default", "alice", "gh")).id == kept.credential.id
    assert await there.vault.ended(kept.credential.id) and len(there.told.revoked) == 3
    with pytest.raises(NotFound):
        await secrets.revoke(alice, "default", "alice", "gh")


async def test_out_of_the_workers_though_there_is_no_room_for_the_row(
    there: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await there.set("alice", wish=WISH)

    async def no_room(*_: object) -> None:
        raise DiskFull("no space is left")

    with monkeypatch.context() as failing:
        failing.setattr(there.rig.store.audit, "record", no_room)
        with pytest.raises(DiskFull):
            await there.rig.engine.secrets.revoke(there.actor("alice"), "default", "alice", "gh")
    assert there.told.revoked == [kept.credential.id]
    assert await there.value(kept.credential.id)  # the row first: it is not revoked


async def test_out_of_calls_of_models_also_where_boxes_have_no_way_out(there: Out) -> None:
    taken: list[str] = []
    there.rig.with_parts = {"vault": there.vault, "withdraw": taken.append}
    await there.rig.restart()
    kept = await there.set("alice")
    assert taken == []
    await there.set("alice", value=b"another value of it")
    assert taken == [kept.credential.id]
    await there.rig.engine.secrets.revoke(there.actor("alice"), "default", "alice", "gh")
    assert taken == [kept.credential.id] * 2


async def test_what_was_seen_cannot_be_read(there: Out, tmp_path: Path) -> None:
    kept = await there.set("alice", wish=WISH)
    there.vault._witnesses._known.clear()
    (tmp_path / "vault" / "seen" / kept.credential.id).write_text("damaged")
    await there.rig.engine.secrets.revoke(there.actor("alice"), "default", "alice", "gh")
    assert await there.vault.ended(kept.credential.id) and there.told.revoked == [kept.credential.id]


@pytest.mark.parametrize("at", ["the removal", "the end of runs"])
async def test_a_removal_that_was_cut_off_forgets_when_it_is_asked_again(
    there: Out, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    kept = await there.set("alice", shared=True, wish=WISH)
    people = there.rig.engine.people

    async def cut(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as failing:
        failing.setattr(people, "_removed", cut)
        if at == "the removal":
            failing.setattr("ringfence.host.engine.people.forget", cut)
        with pytest.raises(RuntimeError):
            await people.user_remove(OPERATOR, "default", "alice")
    assert await there.vault.ended(kept.credential.id) == (at == "the end of runs")
    await people.user_remove(OPERATOR, "default", "alice")
    assert await there.vault.ended(kept.credential.id) and kept.credential.id in there.told.revoked


async def test_a_tenants_go_with_it(there: Out) -> None:
    engine = there.rig.engine
    await engine.people.tenant_add(OPERATOR, "other")
    kept = await engine.secrets.set_tenant(OPERATOR, "other", "all", Secret(b"a value of all"))
    await engine.people.tenant_remove(OPERATOR, "other")
    assert await there.vault.ended(kept.credential.id)


async def away(*_: object, **__: object) -> None:
    raise Unavailable("the store is away")


async def test_what_cannot_be_forgotten_keeps_nothing_else_from_being_done(
    there: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs end, the box goes, and who asks again brings the rest to its end."""
    kept = await there.set("alice", wish=WISH)
    people, alice, removed = there.rig.engine.people, there.actor("alice").user, list[UserId]()
    assert alice is not None
    [box] = [each for each in await there.rig.store.boxes.all() if each.user == alice.id]

    async def ended(user: UserId) -> None:
        removed.append(user)

    monkeypatch.setattr(people, "_removed", ended)
    with monkeypatch.context() as failing:
        failing.setattr(SqlCredentials, "ended", away)
        with pytest.raises(Unavailable):
            await people.user_remove(OPERATOR, "default", "alice")
    assert removed == [alice.id]
    assert (await there.rig.store.boxes.get(box.id)).desired is Desired.REMOVED
    assert not await there.vault.ended(kept.credential.id)
    await people.user_remove(OPERATOR, "default", "alice")
    assert await there.vault.ended(kept.credential.id)


async def test_a_tenant_that_was_not_forgotten_is_when_it_is_asked_again(
    there: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = there.rig.engine
    await engine.people.tenant_add(OPERATOR, "other")
    kept = await engine.secrets.set_tenant(OPERATOR, "other", "all", Secret(b"a value of all"))
    with monkeypatch.context() as failing:
        failing.setattr(SqlCredentials, "ended", away)
        with pytest.raises(Unavailable):
            await engine.people.tenant_remove(OPERATOR, "other")
    assert not await there.vault.ended(kept.credential.id)
    await engine.people.tenant_remove(OPERATOR, "other")
    assert await there.vault.ended(kept.credential.id)
    for name in ("other", "never"):
        with pytest.raises(NotFound):
            await engine.people.tenant_remove(OPERATOR, name)


async def test_what_is_not_on_record_is_not_done(there: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: asked again, with a row, it is."""
    kept = await there.set("alice", wish=WISH)
    people = there.rig.engine.people
    with monkeypatch.context() as failing:
        failing.setattr(SqlCredentials, "ended", away)
        with pytest.raises(Unavailable):
            await people.user_remove(OPERATOR, "default", "alice")
    with monkeypatch.context() as failing:
        failing.setattr(there.rig.store.audit, "record", away)
        with pytest.raises(Unavailable):
            await people.user_remove(OPERATOR, "default", "alice")
    assert there.told.revoked == [] and not await there.vault.ended(kept.credential.id)
    await people.user_remove(OPERATOR, "default", "alice")
    assert there.told.revoked == [kept.credential.id]


@pytest.mark.parametrize("fails", ["row", "end"])
async def test_half_an_unbind(there: Out, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """No binding ends without its row, and what ended is in force. Control: it ends them all."""
    secrets, alice = there.rig.engine.secrets, there.actor("alice")
    kept = await there.set("alice", wish=BindingWish("github"))
    assert alice.user is not None
    real, real_row = SqlCredentials.unbind, there.rig.store.audit.record
    done: list[str] = []

    async def unbind(self: SqlCredentials, user: object, binding: str) -> None:
        if fails == "end" and done:
            raise DiskFull("full")
        await real(self, user, binding)  # type: ignore[arg-type]
        done.append(binding)

    async def record(actor: object, action: str, *more: object) -> None:
        if fails == "row" and action == "secret.unbind" and len(await there.recorded("secret.unbind")) == 1:
            raise DiskFull("full")
        await real_row(actor, action, *more)  # type: ignore[arg-type]

    reloads = len(there.told.reloads)
    with monkeypatch.context() as failing:
        failing.setattr(SqlCredentials, "unbind", unbind)
        failing.setattr(there.rig.store.audit, "record", record)
        with pytest.raises(DiskFull):
            await secrets.unbind(alice, "default", "alice", "gh")
    left: list[Binding] = await there.rig.store.credentials.bindings(alice.user.id)
    assert len(left) == len(kept.bindings) - (fails == "end")
    assert len(there.told.reloads) - reloads == (fails == "end")
    await secrets.unbind(alice, "default", "alice", "gh")
    assert await there.rig.store.credentials.bindings(alice.user.id) == []


async def test_a_ca_is_no_credential_of_people(there: Out) -> None:
    """By its hidden name neither. Control: the verb of operators gives it up, and the next one has another key."""
    alice, secrets = there.actor("alice"), there.rig.engine.secrets
    assert alice.user is not None
    made = authorities(there.vault, there.rig.store, HandClock())
    one = await made.authority(alice.user.tenant, alice.user.id)
    for actor in (alice, OPERATOR):
        with pytest.raises((NotFound, NameInvalid)):
            await secrets.revoke(actor, "default", "alice", "~ca")
    assert (await made.authority(alice.user.tenant, alice.user.id)).key == one.key
    await made.forget(alice.user.tenant, alice.user.id)
    with pytest.raises(NotFound):
        await secrets.revoke(alice, "default", "alice", "~ca")
    assert (await made.authority(alice.user.tenant, alice.user.id)).key != one.key
    await there.rig.engine.vault.forget_ca(OPERATOR, "default", "alice")
    assert there.told.forgotten == [alice.user.id] and len(await there.recorded("vault.forget_ca")) == 1


@pytest.mark.alone
async def test_a_ca_that_does_not_open_says_what_to_do(there: Out, tmp_path: Path) -> None:
    alice = there.actor("alice").user
    assert alice is not None
    made = authorities(there.vault, there.rig.store, HandClock())
    await made.authority(alice.tenant, alice.id)
    outside(tmp_path, "UPDATE credential_versions SET data = wrapped_key")
    with pytest.raises(Failed) as broken:
        await made.authority(alice.tenant, alice.id)
    assert "forget-ca" in broken.value.remedy
    await made.forget(alice.tenant, alice.id)
    await made.authority(alice.tenant, alice.id)


@pytest.mark.alone
async def test_a_store_that_was_put_back_elsewhere(there: Out, tmp_path: Path) -> None:
    vault = there.rig.engine.vault
    assert (await vault.status(OPERATOR))["restored"] == 0
    outside(tmp_path, "INSERT INTO generations (number, began_at, source) VALUES (7, '2026-01-01 00:00:00', '{}')")
    assert (await vault.status(OPERATOR))["restored"] == 7
    assert await vault.restored(OPERATOR) == 7 and (await vault.status(OPERATOR))["restored"] == 0
    assert len(await there.recorded("vault.restored")) == 1
    with pytest.raises(Unavailable):
        there.rig.with_parts["egress"] = None
        await there.rig.restart()
        await there.rig.engine.vault.forget_ca(OPERATOR, "default", "alice")
