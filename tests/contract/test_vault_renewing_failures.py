"""Access tokens that are not to be had: refused grants, services that are slow, silent or hostile, grants that end meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import DiskFull, NotFound, Unavailable
from ringfence.host.kernel.outward.renewals import Turn
from ringfence.host.vault.release import Counter
from tests.support.databases import outside
from tests.support.renewing_rig import Stage, a_stage, text
from tests.support.token_server import FIRST, HOST, reply


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with a_stage(tmp_path) as made:
        yield made


async def test_a_refused_grant_is_asked_for_no_more_until_its_owner_stores_another(stage: Stage) -> None:
    stage.server.good = {"refresh-2"}
    counter, other = stage.kernel(), stage.kernel("krn_2")
    told = await stage.refused(counter, "the refresh token was refused for 'cloud'")
    assert "invalid_grant" in told and "ringfence secret set U NAME" in told
    stage.tick(86400)
    for each in (counter, other):
        assert "invalid_grant" in await stage.refused(each, "the refresh token was refused")
    assert stage.server.asked == 1
    [row] = await stage.acts()
    assert (row["action"], row["details"]["name"]) == ("secret.refused", "cloud")
    standing = (await stage.team.store.renewals.standing([stage.credential.id]))[stage.credential.id]
    assert (standing.turn, standing.again_at) == (Turn.REFUSED, None) and HOST in standing.why
    await stage.replaced(refresh_token="refresh-2")
    assert text(await stage.lend(other)) == "access-1"
    assert await stage.team.store.renewals.standing([stage.credential.id]) == {}


async def test_back_off_that_every_kernel_keeps(stage: Stage) -> None:
    stage.server.raw = lambda _: reply(500, {})
    counter, other = stage.kernel(), stage.kernel("krn_2")
    for number, seconds in enumerate((5, 10, 20), 1):
        for each in (counter, other, counter):
            await stage.refused(each, "answered 500")
        assert stage.server.asked == number
        stage.tick(seconds - 1)
        await stage.refused(other, "answered 500")
        assert stage.server.asked == number
        stage.tick(1.5)
    assert [row["action"] for row in await stage.acts()] == ["secret.not_renewed"], "once, and not at each try"
    stage.server.raw = None
    assert text(await stage.lend(other)) == "access-1"


async def test_a_service_that_says_when(stage: Stage) -> None:
    stage.server.raw = lambda _: reply(429, {"error": "slow_down"}, "Retry-After: 120")
    counter = stage.kernel()
    await stage.refused(counter, "slow_down")
    stage.server.raw = None
    stage.tick(119)
    await stage.refused(counter, "slow_down")
    stage.tick(2)
    assert text(await stage.lend(counter)) == "access-1"


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (reply(302, b"", "Location: https://evil.test/refresh-1"), "a redirect is not followed"),
        (reply(200, b"x" * 100_000), "gave more than"),
        (reply(200, b"<html>refresh-1 app-s3cret</html>"), "no JSON object"),
        (reply(400, {"error": "refresh-1"}), "another error"),
        (b"refresh-1\r\n\r\n", "not HTTP/1.1"),
        (reply(200, {"access_token": "a\r\nX: y"}), "no access token that could stand in a header"),
        (reply(200, {"access_token": "seven77"}), "too short to be masked"),
        (reply(200, {"access_token": "a", "token_type": "DPoP"}), "a proof with each request"),
    ],
)  # fmt: skip
async def test_hostile_answers(stage: Stage, raw: bytes, why: str) -> None:
    stage.server.raw = lambda _: raw
    counter = stage.kernel()
    await stage.refused(counter, why)
    assert stage.server.asked == 1
    rows = json.dumps(
        [*await stage.acts(), *await stage.team.store.audit.page({Lane.RELEASE}, None, None, 10)], default=str
    )
    assert FIRST not in rows and "app-s3cret" not in rows
    stage.server.raw = None
    stage.tick(61)
    assert text(await stage.lend(counter)) == "access-1"


async def test_one_that_never_answers(stage: Stage) -> None:
    stage.server.raw = lambda _: None
    counter = stage.kernel(seconds=0.3)
    await stage.refused(counter, "did not answer in 0.3 s")
    stage.server.raw, stage.server.good = None, set()
    stage.tick(6)
    assert "was cut off" in await stage.refused(counter, "the refresh token was refused"), (
        "that answer may have had another"
    )


async def test_no_row_no_question(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release lane has it before the refresh token leaves."""

    async def full(*_: object) -> None:
        raise DiskFull("no space left", remedy="make room")

    counter = stage.kernel()
    with monkeypatch.context() as patch:
        patch.setattr(stage.team.store.audit, "release", full)
        await stage.refused(counter, "no space left")
    assert stage.server.asked == 0
    stage.tick(6)
    assert text(await stage.lend(counter)) == "access-1"


async def test_revoked_while_it_is_asked_for(stage: Stage) -> None:
    counter = stage.kernel()
    asking = await stage.asking(counter)
    await stage.vault.revoke(stage.team.store.credentials, stage.credential.id)
    stage.server.gate.set()
    with pytest.raises(NotFound):
        await asking
    for table in ("credential_renewals", "credential_versions"):
        assert await asyncio.to_thread(outside, stage.team.folder, f"SELECT credential FROM {table}") == []


async def test_stored_anew_by_its_owner_while_it_is_asked_for(stage: Stage) -> None:
    """His word is the later one."""
    stage.server.rotates = True
    counter = stage.kernel()
    asking = await stage.asking(counter)
    await stage.replaced(refresh_token="refresh-his")
    stage.server.gate.set()
    with pytest.raises(Unavailable):
        await asking
    stage.server.good.add("refresh-his")
    assert text(await stage.lend(counter)) == "access-2"
    assert stage.server.seen[-1].form["refresh_token"] == "refresh-his"


async def test_nothing_asks_where_nothing_may(stage: Stage) -> None:
    store = stage.team.store
    with pytest.raises(Unavailable):
        await stage.lend(Counter(stage.vault, store.credentials, store.audit))
    assert stage.server.asked == 0
