"""The vault over a real store: values there and back, rotation, a sealed start, and the user's CA."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound, TooLarge, Unavailable
from ringfence.host.kernel.ids import UserId
from ringfence.host.kernel.outward.credentials import Credential, Sealed
from ringfence.host.kernel.outward.ports import Rotated
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import MAX_VALUE
from ringfence.host.store.credentials import SqlCredentials
from ringfence.host.vault.sealing import kek_id
from ringfence.host.vault.vault import SealedVault
from tests.support.databases import outside
from tests.support.store import Team, a_team, opened
from tests.support.vault_rig import CANARY, KEY, SECOND, a_vault, authorities, put_key, stored, value_of


@pytest.fixture
async def team(tmp_path: Path) -> AsyncIterator[Team]:
    async with a_team(tmp_path) as made:
        yield made


@pytest.fixture
async def vault(team: Team, tmp_path: Path) -> SealedVault:
    put_key(tmp_path)
    return await a_vault(tmp_path, team.store)


async def test_there_and_back(team: Team, vault: SealedVault, tmp_path: Path) -> None:
    made = await stored(team, vault)
    assert await value_of(team.store, vault, made.id) == CANARY
    after = await vault.put(team.store.credentials, replace(made, version=2), Secret(b"the next"))
    assert after.version == 2
    assert await value_of(team.store, vault, made.id) == b"the next"
    again = await a_vault(tmp_path, team.store)
    assert await value_of(team.store, again, made.id) == b"the next"
    assert vault.sealed == again.sealed == ""
    for value in (b"\0", b"\xff" * MAX_VALUE):
        one = await stored(team, vault, f"v{len(value)}", value)
        assert await value_of(team.store, vault, one.id) == value


async def test_what_is_known_of_a_version_is_asked_without_a_thread(
    team: Team, vault: SealedVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands between a client and its model's first word. And it is asked all the same."""
    made = await stored(team, vault)
    credential, sealed = await team.store.credentials.opening(made.id)
    fresh = await a_vault(tmp_path, team.store)
    assert (await fresh.open(credential, sealed)).reveal() == CANARY, "which read what was seen"

    async def none(*_: object) -> None:
        raise AssertionError("a thread")

    monkeypatch.setattr(asyncio, "to_thread", none)
    assert (await fresh.open(credential, sealed)).reveal() == CANARY
    monkeypatch.undo()
    await fresh.revoke(team.store.credentials, made.id)
    monkeypatch.setattr(asyncio, "to_thread", none)
    with pytest.raises(Failed, match="revoked"):
        await fresh.open(credential, sealed)


async def test_how_long_a_value_may_be(team: Team, vault: SealedVault) -> None:
    with pytest.raises(TooLarge, match="65536"):
        await stored(team, vault, value=b"x" * (MAX_VALUE + 1))
    with pytest.raises(Invalid, match="empty"):
        await stored(team, vault, value=b"")
    assert await team.store.credentials.all(team.tenant.id) == []


async def test_two_next_versions_at_once(team: Team, vault: SealedVault) -> None:
    made = await stored(team, vault)
    values = [vault.put(team.store.credentials, replace(made, version=2), Secret(b"value %d" % n)) for n in range(3)]
    done = await asyncio.gather(*values, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["Conflict", "Conflict", "Credential"]
    winner = next(n for n, one in enumerate(done) if not isinstance(one, BaseException))
    assert await value_of(team.store, vault, made.id) == b"value %d" % winner
    for late in (made, replace(made, version=2)):
        with pytest.raises(Conflict, match="by now"):
            await vault.put(team.store.credentials, late, Secret(b"late"))


async def test_a_revoked_one_stays_revoked(team: Team, vault: SealedVault, tmp_path: Path) -> None:
    made = await stored(team, vault)
    credential, sealed = await team.store.credentials.opening(made.id)
    await vault.revoke(team.store.credentials, made.id)
    await vault.revoke(team.store.credentials, made.id)
    for one in (vault, await a_vault(tmp_path, team.store)):
        with pytest.raises(Failed, match="revoked"):
            await one.open(credential, sealed)
    with pytest.raises(NotFound):
        await vault.revoke(team.store.credentials, "crd_none")
    assert (await stored(team, vault, number=1)).version == 1


# --- a sealed start -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"short", b""])
async def test_without_a_key_it_is_sealed_and_says_so(
    team: Team, vault: SealedVault, tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """K09. Control: with the key the same store opens."""
    made = await stored(team, vault)
    path = put_key(tmp_path, content or b"")
    if content is None:
        path.unlink()
    with caplog.at_level(logging.WARNING, "ringfence.vault"):
        sealed = await a_vault(tmp_path, team.store)
    assert sealed.sealed and sealed.sealed in caplog.text
    for attempt in (
        value_of(team.store, sealed, made.id),
        stored(team, sealed, "other"),
        sealed.rotate(team.store.credentials),
        authorities(sealed, team.store, team.clock).authority(team.tenant.id, team.alice.id),
    ):
        with pytest.raises(Unavailable) as error:
            await attempt
        assert error.value.remedy and "master.key" in error.value.message
    assert await sealed.look(team.store.credentials) == {
        "sealed": sealed.sealed,
        "remedy": error.value.remedy,
        "key": "",
        "old": [],
        "unreadable": 1,
    }
    await sealed.revoke(team.store.credentials, made.id)  # what is to end can be ended
    put_key(tmp_path)
    opened_again = await a_vault(tmp_path, team.store)
    assert not opened_again.sealed
    other = await stored(team, opened_again, "other")
    assert await value_of(team.store, opened_again, other.id) == CANARY


async def test_another_key_opens_nothing_and_names_the_one_that_is_missing(
    team: Team, vault: SealedVault, tmp_path: Path
) -> None:
    made = await stored(team, vault)
    put_key(tmp_path, SECOND)
    other = await a_vault(tmp_path, team.store)
    assert not other.sealed
    with pytest.raises(Unavailable, match=kek_id(KEY)):
        await value_of(team.store, other, made.id)
    assert (await other.look(team.store.credentials))["unreadable"] == 1
    assert await other.rotate(team.store.credentials) == Rotated(0, 1)
    beside = put_key(tmp_path, KEY, "master.key.old")  # put beside it while the server runs
    beside.chmod(0o644)
    with pytest.raises(Unavailable) as passed:
        await value_of(team.store, other, made.id)
    assert f"chmod 600 {beside}" in passed.value.remedy, "it is there, and why it does not count is said"
    beside.chmod(0o600)
    assert await value_of(team.store, other, made.id) == CANARY
    assert await other.look(team.store.credentials) == {
        "sealed": "", "remedy": "", "key": kek_id(SECOND), "old": [kek_id(KEY)], "unreadable": 0
    }  # fmt: skip


async def test_a_version_that_comes_between_is_no_alarm(team: Team, vault: SealedVault) -> None:
    """It was asked for, then the next was stored and noted, then it is opened. Control: `open` alone cannot know."""
    made = await stored(team, vault)
    early = await team.store.credentials.opening(made.id)
    await vault.put(team.store.credentials, replace(made, version=2), Secret(b"2"))
    with pytest.raises(Failed, match="version 2 was"):
        await vault.open(*early)

    class Slow(SqlCredentials):
        def __init__(self) -> None:
            super().__init__(team.store._database, team.store.rolls)
            self.answers = [early]

        async def opening(self, credential: str) -> tuple[Credential, Sealed]:
            return self.answers.pop() if self.answers else await super().opening(credential)

    credential, value = await vault.read(Slow(), made.id)
    assert (credential.version, value.reveal()) == (2, b"2")


async def test_what_was_seen_of_a_revoked_one_goes_with_the_last_key_that_opens_it(
    team: Team, vault: SealedVault, tmp_path: Path
) -> None:
    """Until then it could be put back. One that is stored anew under the name is another, and is noted by itself."""
    credentials = team.store.credentials
    made = await stored(team, vault)
    await vault.revoke(credentials, made.id)
    seen = tmp_path / "vault" / "seen" / made.id
    put_key(tmp_path, name="master.key.old")
    put_key(tmp_path, b"n" * 32)
    await vault.rotate(credentials)
    assert seen.exists()
    (tmp_path / "vault" / "master.key.old").unlink()
    await vault.rotate(credentials)  # this server has had it, and could open what it wrapped
    assert seen.exists()
    later = await a_vault(tmp_path, team.store)
    again = await stored(team, later, number=1)
    await later.rotate(credentials)
    assert not seen.exists()
    assert (again.version, await value_of(team.store, later, again.id)) == (1, CANARY)
    assert (tmp_path / "vault" / "seen" / again.id).exists()


# --- rotation -----------------------------------------------------------------------------------------------------------


async def test_rotation(team: Team, vault: SealedVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.host.vault.vault.PAGE", 2)
    made = [await stored(team, vault, f"n{number}", b"value %d" % number) for number in range(5)]
    credentials = team.store.credentials
    assert await vault.rotate(credentials) == Rotated(0, 0)
    put_key(tmp_path, KEY, "master.key.2025")
    put_key(tmp_path, SECOND)
    before = [(await credentials.opening(one.id))[1] for one in made]
    assert await vault.rotate(credentials) == Rotated(5, 0), "the files are read anew"
    (tmp_path / "vault" / "master.key.2025").unlink()
    fresh = await a_vault(tmp_path, team.store)
    for number, one in enumerate(made):
        assert await value_of(team.store, fresh, one.id) == b"value %d" % number
        _, after = await credentials.opening(one.id)
        assert (after.data, after.mac, after.kek) == (before[number].data, before[number].mac, kek_id(SECOND))
    assert await fresh.rotate(credentials) == Rotated(0, 0)


async def test_a_row_that_does_not_open_keeps_none_behind_it_back(
    team: Team, vault: SealedVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ringfence.host.vault.vault.PAGE", 2)
    made = [await stored(team, vault, f"n{number}") for number in range(5)]
    bad = sorted(one.id for one in made)[1]
    outside(tmp_path, "UPDATE credential_versions SET wrapped_key = data WHERE credential = ?", bad)
    put_key(tmp_path, KEY, "master.key.old")
    put_key(tmp_path, SECOND)
    assert await vault.rotate(team.store.credentials) == Rotated(4, 0, (bad,))
    assert bad in caplog.text
    (tmp_path / "vault" / "master.key.old").unlink()
    fresh = await a_vault(tmp_path, team.store)
    for one in made:
        if one.id != bad:
            assert await value_of(team.store, fresh, one.id) == CANARY


async def test_what_is_stored_after_another_kernels_rotation(team: Team, vault: SealedVault, tmp_path: Path) -> None:
    """It is wrapped by the new key, though this kernel has met no row of it: what was rotated away is worth nothing."""
    put_key(tmp_path, KEY, "master.key.old")
    put_key(tmp_path, SECOND)
    made = await stored(team, vault)
    assert (await team.store.credentials.opening(made.id))[1].kek == kek_id(SECOND)


async def test_a_key_that_was_overwritten_is_rotated_away_in_time(
    team: Team, vault: SealedVault, tmp_path: Path
) -> None:
    """The operator forgot to keep the old one: as long as the server runs it has it."""
    made = await stored(team, vault)
    put_key(tmp_path, SECOND)
    assert await vault.rotate(team.store.credentials) == Rotated(1, 0)
    assert await value_of(team.store, await a_vault(tmp_path, team.store), made.id) == CANARY


async def test_rotation_beside_readers_writers_and_a_second_kernel(
    team: Team, vault: SealedVault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.host.vault.vault.PAGE", 3)
    made = [await stored(team, vault, f"n{number}", b"v0") for number in range(12)]
    put_key(tmp_path, KEY, "master.key.old")
    put_key(tmp_path, SECOND)
    mine = team.store.credentials
    async with opened(tmp_path, team.clock, first=1 << 40) as store:
        other, done = await a_vault(tmp_path, store), asyncio.Event()

        async def read() -> None:
            while not done.is_set():
                for one in made[:11]:
                    assert (await value_of(store, vault, one.id)) in (b"v0", b"v1")

        async def write() -> None:
            for one in made[:6]:
                await vault.put(mine, replace(one, version=2), Secret(b"v1"))
            await vault.revoke(mine, made[11].id)

        async def rotate() -> int:
            both = await asyncio.gather(vault.rotate(mine), other.rotate(store.credentials), write())
            done.set()
            return both[0].rewrapped + both[1].rewrapped

        _, rewrapped = await asyncio.gather(read(), rotate())
        assert 5 <= rewrapped <= 12, "each row once, by one of them; those of the writer perhaps"
    await vault.rotate(mine)  # what the writer wrapped before it had heard of the new key
    (tmp_path / "vault" / "master.key.old").unlink()
    fresh = await a_vault(tmp_path, team.store)
    for number, one in enumerate(made[:11]):
        assert await value_of(team.store, fresh, one.id) == (b"v1" if number < 6 else b"v0")
    assert (await fresh.look(mine))["unreadable"] == 0


# --- the user's CA ------------------------------------------------------------------------------------------------------


async def test_a_users_ca(team: Team, vault: SealedVault, tmp_path: Path) -> None:
    made = authorities(vault, team.store, team.clock)
    home = team.tenant.id
    alices = await made.authority(home, team.alice.id)
    assert await made.authority(home, team.alice.id) == alices
    again = authorities(await a_vault(tmp_path, team.store), team.store, team.clock, 1 << 34)
    assert await again.authority(home, team.alice.id) == alices
    bobs = await made.authority(home, team.bob.id)
    assert bobs.key != alices.key and team.bob.id in _subject(bobs.certificate)
    assert await team.store.credentials.all(home) == []
    with pytest.raises(NotFound):
        await made.authority(home, UserId("usr_none"))
    await team.store.users.remove(team.alice.id)
    with pytest.raises(NotFound):
        await made.authority(home, team.alice.id)


async def test_it_is_made_once(team: Team, vault: SealedVault) -> None:
    made = authorities(vault, team.store, team.clock)
    all_of_them = await asyncio.gather(*(made.authority(team.tenant.id, team.alice.id) for _ in range(5)))
    assert len({one.certificate for one in all_of_them}) == 1


async def test_its_renewal_overlaps(team: Team, vault: SealedVault) -> None:
    """H4. Whoever trusts the first trusts what the second signs: the key and the name are the same."""
    made, home = authorities(vault, team.store, team.clock), team.tenant.id
    first = await made.authority(home, team.alice.id)
    team.clock.jump(timedelta(days=334))
    assert await made.authority(home, team.alice.id) == first
    team.clock.jump(timedelta(days=2))
    renewed = await asyncio.gather(*(made.authority(home, team.alice.id) for _ in range(4)))
    assert {one.key.reveal() for one in renewed} == {first.key.reveal()}
    second = await made.authority(home, team.alice.id)
    assert second.certificate != first.certificate
    assert second.not_after - first.not_after == timedelta(days=336)
    assert _subject(second.certificate) == _subject(first.certificate)
    named = await team.store.credentials.authority(home, team.alice.id)
    assert named.version == 2, "renewed once"
    await made.forget(home, team.alice.id)
    third = await made.authority(home, team.alice.id)
    assert third.key != first.key


def _subject(pem: str) -> str:
    return x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()
