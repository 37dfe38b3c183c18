"""Access tokens: got for a refresh token at a real TLS endpoint, stored before they are used, by one kernel at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import DiskFull
from ringfence.host.kernel.outward import grants
from ringfence.host.kernel.outward.renewals import Turn
from ringfence.host.kernel.outward.renewing import AFTER_401, AHEAD
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault import renewing
from ringfence.host.vault.renewing import LEASE
from tests.support.databases import outside
from tests.support.renewing_rig import PATIENCE, Stage, Watched, a_stage, text
from tests.support.token_server import FIRST, HOST, reply
from tests.support.vault_rig import a_vault


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with a_stage(tmp_path) as made:
        yield made


# --- in time ---------------------------------------------------------------------------------------------------------


async def test_one_token_until_shortly_before_its_end(stage: Stage) -> None:
    counter = stage.kernel()
    first = await stage.lend(counter)
    assert (text(first), first.version) == ("access-1", 2)
    assert first.keep is not None and first.keep == pytest.approx(3600 - AHEAD, abs=5)
    assert stage.server.seen[0].form == {
        "grant_type": "refresh_token", "refresh_token": FIRST, "client_id": "app", "client_secret": "app-s3cret",
    }  # fmt: skip
    stage.tick(3600 - AHEAD - 10)
    assert text(await stage.lend(counter)) == "access-1" and stage.server.asked == 1
    stage.tick(20)
    second = await stage.lend(counter)
    assert (text(second), second.version, stage.server.asked) == ("access-2", 3, 2)
    stage.tick(7200)
    assert text(await stage.lend(counter)) == "access-3"


async def test_each_token_is_a_version_and_each_question_a_release(stage: Stage) -> None:
    await stage.lend(stage.kernel())
    credential, stored = await stage.stored()
    assert credential.version == 2 and stored.access is not None and stored.access.token == Secret(b"access-1")
    rows = await stage.team.store.audit.page({Lane.RELEASE}, None, None, 10)
    assert [row["details"]["to"] for row in rows] == [f"box:{'b' * 16}", f"tokens:{HOST}"], "newest first"
    assert (rows[1]["details"]["version"], rows[0]["details"]["version"]) == (1, 2)
    [told] = await stage.acts("secret.renewed")
    assert told["details"]["expires_at"].startswith("2026-01-01T01:")
    for row in (*rows, told):
        for secret in (FIRST, "access-1", "app-s3cret"):
            assert secret not in json.dumps(row, default=str)


async def test_another_server_goes_on_with_what_is_stored(stage: Stage, tmp_path: Path) -> None:
    await stage.lend(stage.kernel())
    after = stage.kernel("krn_2", vault=await a_vault(tmp_path, stage.team.store))
    assert text(await stage.lend(after)) == "access-1" and stage.server.asked == 1


async def test_while_one_is_good_a_service_that_is_slow_or_gone_holds_nobody_up(stage: Stage) -> None:
    counter = stage.kernel()
    await stage.lend(counter)
    stage.tick(3600 - AHEAD + 1)
    stage.server.gate.clear()
    assert text(await stage.lend(counter)) == "access-1"
    stage.server.gate.set()
    async with asyncio.timeout(PATIENCE):
        while text(await stage.lend(counter)) != "access-2":
            await asyncio.sleep(0.05)
    stage.tick(3600 - AHEAD + 1)
    stage.server.raw = lambda _: reply(503, {})
    kept = await stage.lend(counter)
    assert text(kept) == "access-2" and kept.keep is not None and kept.keep <= 30
    stage.tick(AHEAD)
    assert "503" in await stage.refused(counter, "no access token now")


async def test_a_clock_that_was_turned_back(stage: Stage, tmp_path: Path) -> None:
    """The stored end says nothing then: a server that starts with such a clock asks anew."""
    await stage.lend(stage.kernel())
    credential, stored = await stage.stored()
    assert stored.access is not None
    ahead = replace(stored.access, obtained_at=stored.access.obtained_at.replace(year=2030))
    ahead = replace(ahead, expires_at=stored.access.expires_at.replace(year=2030))
    value = grants.sealed(replace(stored, access=ahead))
    await stage.vault.put(stage.team.store.credentials, replace(credential, version=3), value)
    assert text(await stage.lend(stage.kernel("krn_2"))) == "access-2"


@pytest.mark.parametrize("seconds", [0, -60, "-1"])
async def test_a_token_that_has_ended_when_it_comes(stage: Stage, seconds: object) -> None:
    """None is lent, it is not asked for over and over, and the refresh token that came with it counts."""
    stage.server.expires_in, stage.server.rotates = seconds, True
    counter = stage.kernel()
    await stage.refused(counter, "an access token that has ended already")
    await stage.refused(counter, "an access token that has ended already")
    assert stage.server.asked == 1
    assert (await stage.stored())[1].grant.refresh_token == Secret(b"refresh-2")
    stage.server.expires_in = 3600
    stage.tick(61)
    assert text(await stage.lend(counter)) == "access-2"


# --- a 401 -----------------------------------------------------------------------------------------------------------


async def test_a_401_is_one_question_and_a_young_token_none(stage: Stage) -> None:
    counter = stage.kernel()
    first = await stage.lend(counter)
    again = await stage.lend(counter, refused=first.version)
    assert again.version == first.version and stage.server.asked == 1, "it is too young for that to be its end"
    stage.tick(AFTER_401)
    second = await stage.lend(counter, refused=first.version)
    assert (text(second), stage.server.asked) == ("access-2", 2)
    late = await stage.lend(counter, refused=first.version)
    assert (text(late), stage.server.asked) == ("access-2", 2), "who had the old one is given what is there"
    for _ in range(5):
        await stage.lend(counter, refused=second.version)
    assert stage.server.asked == 2


async def test_a_401_and_a_refused_grant(stage: Stage) -> None:
    """The old token may do elsewhere: it is good by the clock. The owner is told."""
    counter = stage.kernel()
    first = await stage.lend(counter)
    stage.tick(AFTER_401)
    stage.server.good.clear()
    again = await stage.lend(counter, refused=first.version)
    assert again.version == first.version
    assert [row["action"] for row in await stage.acts()] == ["secret.renewed", "secret.refused"]


# --- one question at a time ------------------------------------------------------------------------------------------


async def test_many_at_once_are_one_question(stage: Stage) -> None:
    counter = stage.kernel()
    stage.server.gate.clear()
    asking = [asyncio.ensure_future(stage.lend(counter)) for _ in range(8)]
    async with asyncio.timeout(PATIENCE):
        while not stage.server.asked:
            await asyncio.sleep(0.01)
    stage.server.gate.set()
    assert {text(each) for each in await asyncio.gather(*asking)} == {"access-1"}
    assert stage.server.asked == 1


async def test_two_kernels_are_one_question(stage: Stage, tmp_path: Path) -> None:
    stage.server.rotates = True
    other = await a_vault(tmp_path, stage.team.store)
    kernels = [stage.kernel("krn_1"), stage.kernel("krn_2", vault=other)]
    stage.server.gate.clear()
    asking = [asyncio.ensure_future(stage.lend(each)) for each in kernels * 3]
    async with asyncio.timeout(PATIENCE):
        while not stage.server.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # a second question would come in that time
    assert stage.server.asked == 1
    stage.server.gate.set()
    assert {text(each) for each in await asyncio.gather(*asking)} == {"access-1"}
    assert stage.server.asked == 1, "a second one would have been refused: the token was exchanged"


async def test_without_turns_two_kernels_would_lose_the_grant(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test before: what the turn is for."""
    real = stage.team.store.renewals.take

    async def always(credential: str, version: int, holder: str, seconds: float) -> Any:
        return replace(await real(credential, version, holder, seconds), turn=Turn.MINE)

    monkeypatch.setattr(stage.team.store.renewals, "take", always)
    stage.server.rotates = True
    other = await a_vault(tmp_path, stage.team.store)
    stage.server.gate.clear()
    asking = [asyncio.ensure_future(stage.lend(each)) for each in (stage.kernel("a"), stage.kernel("b", vault=other))]
    async with asyncio.timeout(PATIENCE):
        while stage.server.asked < 2:
            await asyncio.sleep(0.01)
    stage.server.gate.set()
    await asyncio.gather(*asking, return_exceptions=True)
    assert len(stage.server.issued) == 1 and stage.server.asked == 2


async def test_who_leaves_ends_no_question(stage: Stage) -> None:
    """The box has gone; the old refresh token is worth nothing by now."""
    stage.server.rotates = True
    counter = stage.kernel()
    asking = await stage.asking(counter)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    stage.server.gate.set()
    await stage.made[0].close()
    _, stored = await stage.stored()
    assert stored.grant.refresh_token == Secret(b"refresh-2") and stage.server.asked == 1


# --- what rotates ----------------------------------------------------------------------------------------------------


async def test_a_rotated_refresh_token_is_stored_before_its_access_token_is_used(stage: Stage) -> None:
    stage.server.rotates = True
    counter = stage.kernel()
    for number in (1, 2, 3):
        assert text(await stage.lend(counter)) == f"access-{number}"
        credential, stored = await stage.stored()
        assert (credential.version, stored.grant.refresh_token) == (
            number + 1,
            Secret(f"refresh-{number + 1}".encode()),
        )
        stage.tick(3600)
    assert [each.form["refresh_token"] for each in stage.server.seen] == [FIRST, "refresh-2", "refresh-3"]
    rows = await asyncio.to_thread(outside, stage.team.folder, "SELECT version FROM credential_versions")
    assert rows == [(4,)], "those before are gone"


async def test_no_room_for_it_and_nothing_is_lent_or_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.server.rotates = True
    full = [True]

    def put() -> None:
        if full[0]:
            raise DiskFull("no space left", remedy="make room")

    monkeypatch.setattr(renewing, "_AGAIN", (0.01, 0.01))
    counter = stage.kernel()
    one = stage.made[0]
    one._credentials = Watched(one._credentials, put)
    await stage.refused(counter, "could not be stored")
    assert (await stage.stored())[0].version == 1 and len(stage.server.issued) == 1
    full[0] = False
    stage.tick(60)
    assert text(await stage.lend(counter)) == "access-1", "what was given is not asked for again"
    assert stage.server.asked == 1
    assert (await stage.stored())[1].grant.refresh_token == Secret(b"refresh-2")


async def test_killed_between_answer_and_store(stage: Stage, tmp_path: Path) -> None:
    """Nothing can be kept of an answer that nobody wrote down. It is said, and to whom; no other kernel asks before the turn
    of the killed one has ended."""
    stage.server.rotates = True
    killed = asyncio.Event()

    def kill() -> None:
        killed.set()
        raise asyncio.CancelledError  # the task does nothing any more, as in a process that is gone

    counter = stage.kernel("krn_1")
    one = stage.made.pop()
    one._credentials = Watched(one._credentials, kill)
    asking = asyncio.ensure_future(counter.lend(None, stage.wanted()))
    async with asyncio.timeout(PATIENCE):
        await killed.wait()
    await asyncio.gather(asking, return_exceptions=True)
    assert (await stage.stored())[0].version == 1
    after = stage.kernel("krn_2", vault=await a_vault(tmp_path, stage.team.store))
    standing = await stage.team.store.renewals.standing([stage.credential.id])
    assert standing[stage.credential.id].turn is Turn.BUSY
    stage.tick(LEASE + 1)
    told = await stage.refused(after, "the refresh token was refused")
    assert "invalid_grant" in told and "was cut off" in told and "secret set" in told
    [row] = await stage.acts("secret.refused")
    assert "was cut off" in row["details"]["why"]
    stage.server.good.add("refresh-new")
    await stage.replaced(refresh_token="refresh-new")
    assert text(await stage.lend(after)) == "access-2"


async def test_killed_and_the_service_takes_the_old_one_once_more(stage: Stage, tmp_path: Path) -> None:
    """RFC 9700 4.14.2 leaves services room for that: then nothing is lost."""

    def kill() -> None:
        raise asyncio.CancelledError

    counter = stage.kernel("krn_1")
    one = stage.made.pop()
    one._credentials = Watched(one._credentials, kill)
    await asyncio.gather(counter.lend(None, stage.wanted()), return_exceptions=True)
    stage.tick(LEASE + 1)
    after = stage.kernel("krn_2", vault=await a_vault(tmp_path, stage.team.store))
    assert text(await stage.lend(after)) == "access-2"
