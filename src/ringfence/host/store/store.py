"""The durable store: one object with a part for each noun. Opened by `open_store`, closed by `close`."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.store import migrate
from ringfence.host.store.audit import SqlAudit
from ringfence.host.store.blobs import SqlBlobs
from ringfence.host.store.boxes import SqlBoxes
from ringfence.host.store.database import Database
from ringfence.host.store.dialects import LeaseClock
from ringfence.host.store.engine import open_engines
from ringfence.host.store.events import SqlEvents
from ringfence.host.store.people import SqlTenants, SqlUsers
from ringfence.host.store.reads import SqlReads
from ringfence.host.store.runs import SqlRuns
from ringfence.host.store.steps import SqlSteps
from ringfence.host.store.threads import SqlThreads
from ringfence.host.store.tokens import SqlTokens
from ringfence.host.store.transaction import World
from ringfence.host.store.turns import SqlTurns

BUSY_SECONDS = 30.0  # how long another process may hold the database before a write is refused


class SqlStore:
    """kernel.ports.Store on SQLAlchemy."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tenants = SqlTenants(database)
        self.users = SqlUsers(database)
        self.tokens = SqlTokens(database)
        self.boxes = SqlBoxes(database)
        self.threads = SqlThreads(database)
        self.turns = SqlTurns(database)
        self.runs = SqlRuns(database)
        self.blobs = SqlBlobs(database)
        self.steps = SqlSteps(database, self.blobs)
        self.events = SqlEvents(database)
        self.reads = SqlReads(database)
        self.audit = SqlAudit(database)

    @property
    def commits(self) -> int:
        """Transactions written since the store was opened."""
        return self._database.writer.commits

    async def health(self) -> dict[str, Any]:
        """Also "problem" (text) when not ok: the last commit failed, reads fail, or the store is closed."""
        writer = self._database.writer
        facts = {"ok": False, "schema": "", "size_bytes": 0, "commit_ms": round(writer.commit_ms, 3)}

        def question(connection: Connection) -> dict[str, Any]:
            return {
                "schema": migrate.current(connection) or "",
                "size_bytes": self._database.world.dialect.size(connection),
            }

        try:
            facts |= await self._database.read(question)
        except RingfenceError as error:
            return {**facts, "problem": error.message}
        if writer.failure is not None:
            return {**facts, "problem": writer.failure.message}
        if not writer.running:
            return {**facts, "problem": "the writer has ended"}
        return {**facts, "ok": True}

    async def close(self) -> None:
        """Writes what is queued, then closes every connection. Idempotent."""
        await self._database.close()


async def open_store(url: str, clock: Clock, ids: Ids, *, busy_seconds: float = BUSY_SECONDS) -> SqlStore:
    """Opens or makes the database and brings its schema up to date.

    `url`: `sqlite:////absolute/file.db` (its folder exists) or `postgresql://user@host/name`.
    Unavailable: foreign, damaged, of a newer release, locked, unreachable. DiskFull. Invalid: the url.
    """
    engines = await open_engines(url, busy_seconds)
    return SqlStore(Database(engines, World(engines.dialect, clock, LeaseClock(clock), Onward(clock), ids)))
