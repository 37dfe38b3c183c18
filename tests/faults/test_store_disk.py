"""F17: a full disk. Nothing is acknowledged that is not written, what is stored can be read, and it works again."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import DiskFull, NotFound
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.blobs import CHUNK_BYTES
from ringfence.host.store.store import open_store
from tests.support import volumes
from tests.support.left_behind import contents, left_behind
from tests.support.store import CountingIds, HandClock, a_team, address, opened

pytestmark = pytest.mark.root

ROOM = 768 * 1024  # eight messages at once take half of it: 20 kB each, and in their events once more


@pytest.mark.parametrize("at_once", [1, 8])
async def test_a_full_disk(small: Path, at_once: int) -> None:
    async with a_team(small) as team:
        ballast = volumes.fill(small, but=ROOM)  # whatever an empty database has
        told: dict[int, str] = {}
        full: list[DiskFull] = []
        for number in range(200):
            text = f"{number} " + "x" * 20_000
            results = await asyncio.gather(*(team.say(text) for _ in range(at_once)), return_exceptions=True)
            for result in results:
                if isinstance(result, DiskFull):
                    full.append(result)
                else:
                    assert not isinstance(result, BaseException), result
                    told[result.message.cursor] = result.message.text
            if full:
                break
        assert full
        assert "df -h" in full[0].remedy
        assert full[0].http_status == 507
        health = await team.store.health()
        assert not health["ok"]
        assert "no space" in health["problem"]

        async def check() -> None:
            events = await team.store.events.after(team.thread.id, 0, 10_000)
            assert [event.cursor for event in events] == list(range(1, len(events) + 1))
            kept = {event.cursor: event.body["text"] for event in events if event.kind is EventKind.MESSAGE}
            assert {cursor: kept.get(cursor) for cursor in told} == told
            assert len(kept) == len(told), "nothing is kept that was refused"

        assert told
        await check()
        for _ in range(3):
            with pytest.raises(DiskFull):
                await team.say("x" * 200_000)
        await check()
        ballast.unlink()
        after = await team.say("room again")
        told[after.message.cursor] = "room again"
        await check()
        assert (await team.store.health())["ok"]
    async with opened(small, first=1 << 40) as store:
        [tenant] = await store.tenants.all()
        messages = await store.threads.messages(team.thread.id, None, 10_000)
        assert tenant.id == team.tenant.id
        assert {message.cursor: message.text for message in messages} == told


async def test_a_blob_on_a_full_disk(small: Path) -> None:
    """What was acknowledged is there, what was refused is not counted, and the loop sends the rest when there is room."""
    ballast, data = small / "ballast", bytes(4 * CHUNK_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    async with a_team(small) as team:
        run, put = await team.running(), team.store.blobs.put
        ballast.write_bytes(bytes(900_000))
        sent = 0
        with pytest.raises(DiskFull):
            for sent in range(4):
                await put(run.id, 1, digest, sent, len(data), data[:CHUNK_BYTES])
        for n in range(sent):
            assert await team.store.blobs.get(run.id, 1, digest, n) == (data[:CHUNK_BYTES], len(data))
        with pytest.raises(NotFound):
            await team.store.blobs.get(run.id, 1, digest, sent)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=16m", small], check=True)
        for n in range(sent, 4):
            await put(run.id, 1, digest, n, len(data), data[:CHUNK_BYTES])
        assert await team.store.blobs.whole(run.id, 1, digest) == data


async def test_no_room_to_make_it(small: Path) -> None:
    (small / "ballast").write_bytes(bytes((2 << 20) - 8192))
    with pytest.raises(DiskFull):
        await open_store(address(small), HandClock(), CountingIds())
    (small / "ballast").unlink()
    async with opened(small) as store:
        await store.tenants.add("made")


async def test_no_room_to_look_at_what_a_kill_left(
    small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full volume is why servers are started again: one that cannot copy what it would look at starts all the same."""
    made = await left_behind(tmp_path / "made", 4, 0)
    for name, content in contents(made).items():
        (small / name).write_bytes(content)
    room = os.statvfs(small)
    (small / "ballast").write_bytes(bytes((room.f_bavail - 50) * room.f_frsize))
    async with opened(small, first=1 << 40) as store:
        assert len(await store.tenants.all()) == 1
    assert "no room to look" in caplog.text
    assert not list(small.glob(".looking-*"))
