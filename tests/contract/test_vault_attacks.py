"""K07 and K08: whoever writes to the database alone puts no older value back, and moves none to another row. Each attack with
its control: the same one with that wall away is what it would be worth.
"""

from __future__ import annotations

import gzip
import hmac
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Conflict, Failed, Refused, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.credentials import Credential, Sealed
from ringfence.host.kernel.outward.ports import Wanted
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault import sealing, seen
from ringfence.host.vault.generations import agree
from ringfence.host.vault.release import Counter
from ringfence.host.vault.vault import SealedVault
from tests.support.clocks import HandClock
from tests.support.databases import is_postgres, outside
from tests.support.store import Team, a_team
from tests.support.store_work import Db, a_signed_team, signed
from tests.support.vault_rig import CANARY, a_vault, authorities, binding, put_key, stored, value_of


@dataclass
class Stage:
    """An attacker at the database: keeps rows, and puts them back as they were."""

    team: Team
    vault: SealedVault
    folder: Path

    async def value(self, credential: str) -> bytes:
        return await value_of(self.team.store, self.vault, credential)

    async def kept(self, credential: str) -> tuple[Credential, Sealed]:
        return await self.team.store.credentials.opening(credential)

    async def next(self, credential: Credential, value: bytes) -> Credential:
        draft = replace(credential, version=credential.version + 1)
        return await self.vault.put(self.team.store.credentials, draft, Secret(value))

    def put_back(self, row: Sealed, mac: str | None = None, credential: str | None = None) -> None:
        """The version as it was, and the credential says that it is the newest."""
        which = credential or row.credential
        self.sql("DELETE FROM credential_versions WHERE credential = ?", which)
        self.sql(
            "INSERT INTO credential_versions (credential, version, kek, wrapped_key, data, created_at) "
            f"VALUES (?, ?, ?, {self._blob(row.wrapped_key)}, {self._blob(row.data)}, '2026-01-01 00:00:00')",
            which,
            row.version,
            row.kek,
        )
        self.sql("UPDATE credentials SET version = ? WHERE id = ?", row.version, which)
        if mac is not None:
            self.sql("UPDATE credentials SET mac = ? WHERE id = ?", mac, which)

    def sql(self, statement: str, *values: Any) -> None:
        outside(self.folder, statement, *values)

    def _blob(self, data: bytes) -> str:
        return f"'\\x{data.hex()}'" if is_postgres(self.folder) else f"x'{data.hex()}'"

    async def restarted(self) -> SealedVault:
        return await a_vault(self.folder, self.team.store)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    put_key(tmp_path)
    async with a_team(tmp_path) as team:
        yield Stage(team, await a_vault(tmp_path, team.store), tmp_path)


# --- K07: an older version -----------------------------------------------------------------------------------------------


async def test_k07_the_whole_of_an_older_version_is_put_back(stage: Stage) -> None:
    """Both rows as they were, MAC included: the database is whole in itself. What was seen outside of it tells, also after a
    restart. Control: without the witnesses it opens."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    await stage.next(made, b"the new one")
    stage.put_back(old, old.mac)
    for vault in (stage.vault, await stage.restarted()):
        with pytest.raises(Failed, match="version 1 is there, and version 2 was"):
            await value_of(stage.team.store, vault, made.id)
    shutil.rmtree(stage.folder / "vault" / "seen")
    assert await value_of(stage.team.store, await stage.restarted(), made.id) == CANARY


async def test_k07_the_version_alone_is_put_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody who has no copy of the old MAC, at a host whose vault has never seen the new version. Control: without the
    MAC it opens."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    await stage.next(made, b"the new one")
    stage.put_back(old)
    shutil.rmtree(stage.folder / "vault" / "seen")
    elsewhere = await stage.restarted()
    with pytest.raises(Failed, match="not what was sealed"):
        await value_of(stage.team.store, elsewhere, made.id)
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: True)
    assert await value_of(stage.team.store, elsewhere, made.id) == CANARY


async def test_k07_an_older_value_under_the_new_number(stage: Stage) -> None:
    """Control: the row under its own number is the attack above."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    _, new = await stage.kept((await stage.next(made, b"the new one")).id)
    for mac in (old.mac, new.mac):
        stage.put_back(replace(old, version=2), mac)
        with pytest.raises(Failed, match="not what was sealed"):
            await stage.value(made.id)
    stage.put_back(new, new.mac)
    assert await stage.value(made.id) == b"the new one"


async def test_k07_nothing_is_stored_on_top_of_an_older_one(stage: Stage) -> None:
    """Else the next `set` would make the numbers of before free for the values of before."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    second = await stage.next(made, b"2")
    await stage.next(second, b"3")
    stage.put_back(old, old.mac)
    with pytest.raises(Failed, match="older than what was seen"):
        await stage.next(made, b"2 again")
    assert (await stage.team.store.credentials.get(made.id)).version == 1
    await stage.vault.revoke(stage.team.store.credentials, made.id)
    fresh = await stored(stage.team, stage.vault, number=1)
    assert await stage.value(fresh.id) == CANARY


async def test_k07_what_was_revoked_does_not_come_back(stage: Stage) -> None:
    """Control: without what was seen it does."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    await stage.vault.revoke(stage.team.store.credentials, made.id)
    stage.put_back(old, old.mac)
    stage.sql("UPDATE credentials SET revoked_at = NULL")
    for vault in (stage.vault, await stage.restarted()):
        with pytest.raises(Failed, match="revoked"):
            await value_of(stage.team.store, vault, made.id)
    (stage.folder / "vault" / "seen" / made.id).unlink()
    assert await value_of(stage.team.store, await stage.restarted(), made.id) == CANARY


async def test_k07_the_database_says_that_it_was_restored(stage: Stage) -> None:
    """With the older rows comes one that says a higher generation, which a restore alone may. Control: once an operator of this
    host agrees, they open, for that is what a restore is."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    await stage.next(made, b"the new one")
    stage.put_back(old, old.mac)
    stage.sql("INSERT INTO generations (number, began_at, source) VALUES (99, '2026-01-01 00:00:00', '{}')")
    for vault in (stage.vault, await stage.restarted()):
        with pytest.raises(Failed, match="version 1 is there, and version 2 was"):
            await value_of(stage.team.store, vault, made.id)
    (stage.folder / "vault" / "seen" / "generation").write_text("no number")
    with pytest.raises(Failed):
        await value_of(stage.team.store, await stage.restarted(), made.id)
    again = await stage.restarted()
    await again.restored(99)
    assert await value_of(stage.team.store, again, made.id) == CANARY
    assert await value_of(stage.team.store, await stage.restarted(), made.id) == CANARY


async def test_a_name_that_is_used_again_is_another_credential(stage: Stage) -> None:
    """The first version of the new one has the number, name and owner of the first of the revoked one."""
    made = await stored(stage.team, stage.vault)
    _, old = await stage.kept(made.id)
    await stage.vault.revoke(stage.team.store.credentials, made.id)
    again = await stored(stage.team, stage.vault, value=b"after it had leaked", number=1)
    stage.put_back(old, old.mac, again.id)
    with pytest.raises(Failed, match="not what was sealed"):
        await stage.value(again.id)


# --- K08: another's value -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["another user's", "the same user's"])
async def test_k08_a_value_is_moved_to_another_row(stage: Stage, whose: str) -> None:
    """The attacker's own credential with a binding to a host of his, and the victim's value in it. Control: his own opens."""
    victim = await stored(stage.team, stage.vault, "prod")
    attacker = stage.team.bob if whose == "another user's" else stage.team.alice
    mine = await stored(stage.team, stage.vault, "mine", b"of the attacker", attacker)
    _, moved = await stage.kept(victim.id)
    _, own = await stage.kept(mine.id)
    for mac in (own.mac, moved.mac):
        stage.put_back(moved, mac, mine.id)
        with pytest.raises(Failed, match="not what was sealed"):
            await stage.value(mine.id)
    stage.put_back(replace(moved, wrapped_key=own.wrapped_key), own.mac, mine.id)
    with pytest.raises(Failed):
        await stage.value(mine.id)
    stage.put_back(own, own.mac)
    assert await stage.value(mine.id) == b"of the attacker"
    assert await stage.value(victim.id) == CANARY


async def test_k08_a_row_is_given_to_somebody_else(stage: Stage) -> None:
    """Control: as it was it opens."""
    made = await stored(stage.team, stage.vault)
    bob = stage.team.bob.id
    for change, undo in (
        (f"\"user\" = '{bob}'", f"\"user\" = '{stage.team.alice.id}'"),
        ("owner = 'shared'", "owner = 'user'"),
        ("name = 'other'", "name = 'token'"),
        ("kind = 'oauth_refresh'", "kind = 'opaque'"),
        ("reach = '[]'", "reach = ''"),
    ):
        stage.sql(f"UPDATE credentials SET {change}")
        with pytest.raises(Failed, match="not what was sealed"):
            await stage.value(made.id)
        stage.sql(f"UPDATE credentials SET {undo}")
        assert await stage.value(made.id) == CANARY


async def test_k08_a_ca_is_made_an_ordinary_credential(stage: Stage) -> None:
    """It is listed and bound then, and its key would be sent to the host of a binding. Control: as a CA it opens, and the counter
    gives it to nobody."""
    made = authorities(stage.vault, stage.team.store, stage.team.clock)
    await made.authority(stage.team.tenant.id, stage.team.alice.id)
    stage.sql("UPDATE credentials SET kind = 'opaque'")
    [shown] = await stage.team.store.credentials.visible(stage.team.alice.id)
    bound = await stage.team.store.credentials.bind(stage.team.alice.id, binding(shown, "evil.test"))
    counter = Counter(stage.vault, stage.team.store.credentials, stage.team.store.audit)
    wanted = Wanted(BoxId("b" * 16), stage.team.alice.id, shown.id, bound.id, "inv_1", "evil.test", "GET", "/")
    with pytest.raises(Failed, match="not what was sealed"):
        await counter.release(None, wanted)
    stage.sql("UPDATE credentials SET kind = 'authority'")
    assert b"PRIVATE KEY" in await stage.value(shown.id)
    with pytest.raises(Refused, match="nobody"):
        await counter.release(None, wanted)


async def test_the_key_id_is_a_hint_and_no_more(stage: Stage) -> None:
    made = await stored(stage.team, stage.vault)
    put_key(stage.folder, b"o" * 32, "master.key.old")
    stage.sql("UPDATE credential_versions SET kek = ?", sealing.kek_id(b"o" * 32))
    with pytest.raises(Failed):
        await value_of(stage.team.store, await stage.restarted(), made.id)
    stage.sql("UPDATE credential_versions SET kek = '../../etc/passwd'")
    with pytest.raises(Unavailable):
        await stage.value(made.id)


async def test_a_witness_that_cannot_be_read_opens_nothing(stage: Stage) -> None:
    made = await stored(stage.team, stage.vault)
    path = stage.folder / "vault" / "seen" / made.id
    kept = path.read_bytes()
    for text in (b"", b"[]", b'{"version": "x"}'):
        path.write_bytes(text)
        with pytest.raises(Unavailable) as error:
            await value_of(stage.team.store, await stage.restarted(), made.id)
        assert str(path) in error.value.remedy
    path.write_bytes(kept)
    assert await value_of(stage.team.store, await stage.restarted(), made.id) == CANARY
    witnesses = seen.Witnesses(stage.folder / "vault" / "seen", 1)
    for name in ("../master.key", "crd_/../x", "", "crd_", "x"):
        with pytest.raises(Failed):
            witnesses.check(name, 1)


# --- a restored store -----------------------------------------------------------------------------------------------------


@pytest.mark.alone
async def test_a_restored_store_is_declared_and_older(tmp_path: Path) -> None:
    """Values of the backup open again, the ones since are gone, and what was revoked since stays so."""
    put_key(tmp_path)
    clock = HandClock()
    db = Db(tmp_path, clock)
    async with a_signed_team(tmp_path, clock) as team:
        vault = await a_vault(tmp_path, team.store)
        kept, changed, ended = [await stored(team, vault, name, name.encode()) for name in ("kept", "changed", "ended")]
        backup = await db.backup()
        await vault.put(team.store.credentials, replace(changed, version=2), Secret(b"since"))
        await vault.revoke(team.store.credentials, ended.id)
        late = await stored(team, vault, "late")
    facts = await db.restore(backup)
    assert facts["findings"] == []
    async with signed(tmp_path, clock, 1 << 40) as store:
        with pytest.raises(Failed, match="version 1 is there"):  # the database alone says so
            await value_of(store, await a_vault(tmp_path, store), changed.id)
        agree(tmp_path / "vault" / "seen", facts["generation"])  # as `db restore` does on its host
        vault = await a_vault(tmp_path, store)
        assert await value_of(store, vault, kept.id) == b"kept"
        assert await value_of(store, vault, changed.id) == b"changed"
        with pytest.raises(Failed, match="revoked"):
            await value_of(store, vault, ended.id)
        again = await vault.put(store.credentials, replace(changed, version=2), Secret(b"anew"))
        assert await value_of(store, vault, again.id) == b"anew"
        assert [one.id for one in await store.credentials.all(team.tenant.id)] == sorted(
            [kept.id, changed.id, ended.id]
        ), f"{late.id} was not there yet"
        with pytest.raises(Conflict):
            await vault.put(store.credentials, replace(changed, version=3, name="other"), Secret(b"x"))


@pytest.mark.alone
async def test_k02_a_backup_holds_no_value_and_no_key(tmp_path: Path) -> None:
    put_key(tmp_path)
    clock = HandClock()
    async with a_signed_team(tmp_path, clock) as team:
        vault = await a_vault(tmp_path, team.store)
        await stored(team, vault)
        backup = await Db(tmp_path, clock).backup()
    text = gzip.decompress(backup)
    assert b"credential_versions" in text, "control: it has the rows"
    for leak in (CANARY, b"k" * 32, CANARY.hex().encode()):
        assert leak not in text
