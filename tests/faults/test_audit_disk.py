"""F49: the volume of the audit is full, or slow. What needs a row in the chain first is not done."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ringfence.host import app
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import DiskFull, Unavailable
from ringfence.host.store import audit as store_audit
from ringfence.host.store.store import SqlStore
from tests.support import volumes
from tests.support.audit_rig import Audited
from tests.support.clocks import HandClock
from tests.support.store import newest

ROOM = 256 * 1024  # some twenty releases of 10 kB, each in the log of SQLite with the pages around it


class Secrets:
    """Something that gives a secret out, as the audit says: the row first."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.given = 0

    async def give(self) -> None:
        await self._store.audit.release(None, "credential:c1", "worker:w1", {"pad": "x" * 10_000})
        self.given += 1


async def released(store: SqlStore) -> int:
    return len(await store.audit.page({Lane.RELEASE}, None, None, 1000))


@pytest.mark.root
async def test_no_room_no_release(small: Path) -> None:
    made = Audited(small, HandClock())
    async with made.kernel("krn_a") as store:
        ballast = volumes.fill(small, but=ROOM)  # whatever an empty database has
        secrets = Secrets(store)
        with pytest.raises(DiskFull):
            for _ in range(500):
                await secrets.give()
        assert secrets.given > 0, "control: there was room before"
        for _ in range(5):
            with pytest.raises(DiskFull):
                await store.audit.release(None, "credential:c1", "worker:w1", {"pad": "x" * 200_000})
            with pytest.raises(DiskFull):
                await store.audit.intent(None, "http.webhook", "run:1/1", {"pad": "x" * 200_000})
        assert await released(store) == secrets.given, "each release has its row, and no row is without one"
        ballast.unlink()
        await secrets.give()
        assert await released(store) == secrets.given
        report = await store.audit.verify()
        assert report.ok, report.as_json()
    assert await made.found() == {}


async def test_a_slow_disk_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process holds the database: the same as a disk that does not answer."""
    made = Audited(tmp_path, HandClock())
    async with made.kernel("krn_a") as store:
        secrets = Secrets(store)
        await secrets.give()
        with closing(sqlite3.connect(made.database)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            with monkeypatch.context() as patch:  # not of those before and after it: they have all the time there is
                patch.setattr(store_audit, "RELEASE_SECONDS", 0.3)
                with pytest.raises(Unavailable, match="nothing is released"):
                    await secrets.give()
            assert secrets.given == 1
            holder.rollback()
        await asyncio.sleep(0.1)
        await secrets.give()
        assert await released(store) >= secrets.given, "a row without a release may be there, never the other way"
        assert (await store.audit.verify()).ok


async def test_a_server_starts_when_its_chain_cannot_be_begun(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its first row is written with the first act that needs one."""
    made = Audited(tmp_path, HandClock())
    async with made.kernel("krn_a", begun=False) as store:
        made.sql("CREATE TRIGGER no_room BEFORE INSERT ON audit_chains BEGIN SELECT RAISE(ABORT, 'no room'); END")
        await app._open_audit(store)
        assert "is not begun" in caplog.text
        made.sql("DROP TRIGGER no_room")
        assert await newest(store.audit, 9) == []
        await store.audit.record(None, "x", "", {})
        [row] = await newest(store.audit, 9)
        assert row["id"] == "krn_a:2"
    assert await made.found() == {}
