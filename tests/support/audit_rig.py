"""A store whose audit is signed, opened by one kernel after another, and a hand on its file from outside."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ringfence.host.kernel.audit import GENESIS, Keys, row_hash
from ringfence.host.kernel.audit_check import Report
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.store import SqlStore, open_store
from tests.support.clocks import CountingIds, HandClock
from tests.support.databases import address

KEY = b"k" * 32
Row = dict[str, Any]


@dataclass
class Audited:
    """One installation: a database and a vault beside it."""

    folder: Path
    clock: HandClock
    keys: Keys = Keys(KEY)  # noqa: RUF009  frozen
    count: int = 0

    @property
    def database(self) -> Path:
        return self.folder / "ringfence.db"

    @property
    def witnesses(self) -> Path:
        return self.folder / "witnesses"

    @asynccontextmanager
    async def kernel(self, worker: str = "", *, begun: bool = True) -> AsyncIterator[SqlStore]:
        """A server's store, from its start to its orderly end."""
        self.count += 1
        name = worker or f"krn_{self.count}"
        signer = Signer(name, self.keys, self.witnesses)
        ids = CountingIds(self.count << 40)
        store = await open_store(address(self.folder), self.clock, ids, signer=signer)
        try:
            if begun:
                await store.audit.open()
            yield store
        finally:
            await store.close()

    async def acts(self, number: int, worker: str = "") -> None:
        """A server that records `number` acts, and ends."""
        async with self.kernel(worker) as store:
            for each in range(number):
                await store.audit.record(None, "box.start", f"box:{each}", {"n": each})
                self.clock.pass_seconds(1)

    async def verify(self) -> Report:
        """As on a stopped store: it writes nothing."""
        async with self.kernel("reader", begun=False) as store:
            return await store.audit.verify()

    async def found(self) -> dict[str, tuple[int, str]]:
        """chain -> (first bad row, what is wrong)."""
        report = await self.verify()
        return {chain: (each.seq, each.wrong.value) for chain, each in report.first.items()}

    def sql(self, *statements: str) -> None:
        """From outside, all in one transaction."""
        with closing(sqlite3.connect(self.database)) as outside:
            for statement in statements:
                outside.execute(statement)
            outside.commit()

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database)) as outside:
            return outside.execute(query).fetchall()

    def rechain(self, chain: str, after: int) -> str:
        """What somebody without the key can do: makes every hash behind row `after` right again, the head's too. The
        newest hash."""
        with closing(sqlite3.connect(self.database)) as outside:
            outside.row_factory = sqlite3.Row
            known = outside.execute(
                "SELECT hash FROM audit_rows WHERE chain = ? AND seq = ?", [chain, after]
            ).fetchone()
            previous = known["hash"] if known is not None else GENESIS
            rows = outside.execute("SELECT * FROM audit_rows WHERE chain = ? AND seq > ? ORDER BY seq", [chain, after])
            seq = after
            for row in rows.fetchall():
                seq += 1
                at = datetime.fromisoformat(row["at"]).replace(tzinfo=self.clock.now().tzinfo)
                actor = json.loads(row["actor"]) if row["actor"] else None
                said = (row["lane"], actor, row["action"], row["subject"], row["ref"], json.loads(row["details"]))
                fresh = row_hash(previous, (chain, seq), at, *said)
                where = [seq, previous, fresh, chain, row["seq"]]
                outside.execute("UPDATE audit_rows SET seq=?, previous=?, hash=? WHERE chain=? AND seq=?", where)
                previous = fresh
            outside.execute("UPDATE audit_chains SET seq=?, hash=? WHERE chain=?", [seq, previous, chain])
            outside.commit()
        return previous


async def three_kernels(folder: Path) -> Audited:
    """krn_1 with 6 rows (opening, 4 acts, end), krn_2 and krn_3 with 4."""
    made = Audited(folder, HandClock())
    for number in (4, 2, 2):
        await made.acts(number)
    return made
