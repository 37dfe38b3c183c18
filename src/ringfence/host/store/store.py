"""The durable store: one object with a part for each noun. Opened by `open_store`, closed by `close`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.failpoints import Failpoints, Quiet
from ringfence.host.kernel.kernels import at_work
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.outward.rolls import Seals
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.kernel.retention import Keep
from ringfence.host.store import migrate
from ringfence.host.store.audit import SqlAudit
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.blobs import SqlBlobs
from ringfence.host.store.boxes import SqlBoxes
from ringfence.host.store.credentials import SqlCredentials
from ringfence.host.store.database import Database
from ringfence.host.store.dialect import LeaseClock
from ringfence.host.store.effects import SqlEffects
from ringfence.host.store.egress_rules import SqlEgressRules
from ringfence.host.store.engine import open_engines
from ringfence.host.store.events import SqlEvents
from ringfence.host.store.exporting import SqlExporting
from ringfence.host.store.gates import SqlGates
from ringfence.host.store.generation import generation_of
from ringfence.host.store.invocations import SqlInvocations
from ringfence.host.store.kernels import SqlKernels, kernels_of
from ringfence.host.store.model_usage import SqlModelUsage
from ringfence.host.store.people import SqlTenants, SqlUsers
from ringfence.host.store.reads import SqlReads
from ringfence.host.store.references import SqlReferences
from ringfence.host.store.renewals import SqlRenewals
from ringfence.host.store.retention import SqlRetention
from ringfence.host.store.rolls import SqlRolls
from ringfence.host.store.runs import SqlRuns
from ringfence.host.store.snapshots import SqlSnapshots
from ringfence.host.store.steps import SqlSteps
from ringfence.host.store.threads import SqlThreads
from ringfence.host.store.tokens import SqlTokens
from ringfence.host.store.transaction import World
from ringfence.host.store.turns import SqlTurns
from ringfence.host.store.unkeyed import Unkeyed
from ringfence.host.store.usage import SqlUsage
from ringfence.host.store.wal_watch import WalWatch

BUSY_SECONDS = 30.0  # how long another process may hold the database before a write is refused


class SqlStore:
    """kernel.ports.Store on SQLAlchemy."""

    def __init__(self, database: Database, signer: Signer | None = None) -> None:
        self._database = database
        self.audit = SqlAudit(database, signer)
        self.tenants = SqlTenants(database)
        self.users = SqlUsers(database, self.audit.chain)
        self.tokens = SqlTokens(database)
        self.boxes = SqlBoxes(database)
        self.threads = SqlThreads(database)
        self.turns = SqlTurns(database)
        self.runs = SqlRuns(database, self.audit.chain)
        self.blobs = SqlBlobs(database)
        self.steps = SqlSteps(database, self.blobs)
        self.gates = SqlGates(database)
        self.effects = SqlEffects(database, self.audit.chain)
        self.events = SqlEvents(database)
        self.rolls = SqlRolls(database)
        self.credentials = SqlCredentials(database, self.rolls)
        self.renewals = SqlRenewals(database)
        self.egress_rules = SqlEgressRules(database, self.rolls)
        self.invocations = SqlInvocations(database)
        self.references = SqlReferences(database)
        self.model_usage = SqlModelUsage(database, self.audit.chain)
        self.usage = SqlUsage(database)
        self.exporting = SqlExporting(database)
        self.snapshots = SqlSnapshots(database)
        self.reads = SqlReads(database)
        self.kernels = SqlKernels(database)
        self.retention = SqlRetention(database, self.audit)
        self.reserve = database.reserve
        self.log = WalWatch(database.world.dialect, database.world.clock)
        self.onward = database.world.onward

    @property
    def commits(self) -> int:
        """Transactions written since the store was opened."""
        return self._database.writer.commits

    @property
    def shared(self) -> bool:
        return not self._database.world.dialect.one_kernel

    async def health(self) -> dict[str, Any]:
        """Also "kind", "generation", "kernels" (at work), "reserve" ("kept", "released", "missing" or "none");
        "problem" (text) when not ok:
        the last commit failed, reads fail, the reserve is in use, or the store is closed. SQLite: "wal_bytes", and
        "wal_warning" (text) when the log is too large."""
        writer = self._database.writer
        facts = {
            "ok": False,
            "kind": self._database.world.dialect.url.get_backend_name(),
            "schema": "",
            "size_bytes": 0,
            "commit_ms": round(writer.commit_ms, 3),
            "reserve": self.reserve.state,
        }

        def question(connection: Connection) -> dict[str, Any]:
            return {
                "schema": migrate.current(connection) or "",
                "size_bytes": self._database.world.dialect.size(connection),
                "generation": generation_of(connection),
                "kernels": len(at_work(kernels_of(connection), self._lease_now(connection))),
            }

        try:
            facts |= await self._database.read(question)
        except RingfenceError as error:
            return {**facts, "problem": error.message}
        facts |= await self.log.facts()
        if writer.failure is not None:
            return {**facts, "problem": writer.failure.message}
        if self.reserve.low:  # what may be written while it is gone is no sign that there is room
            return {**facts, "problem": "no space left: its reserve is released, and new work is refused"}
        if not writer.running:
            return {**facts, "problem": "the writer has ended"}
        return {**facts, "ok": True}

    def _lease_now(self, connection: Connection) -> datetime:
        world = self._database.world
        return world.dialect.lease_now(connection, world.lease_clock)

    async def close(self) -> None:
        """Ends the chain of the audit, writes what is queued, then closes every connection. Idempotent."""
        with suppress(RingfenceError):  # when somebody came last is for people
            await self.tokens.note_uses()
        with suppress(RingfenceError):  # a chain without its last row is closed by the next kernel all the same
            await self.audit.end()
        await self._database.close()


async def open_store(
    url: str,
    clock: Clock,
    ids: Ids,
    *,
    busy_seconds: float = BUSY_SECONDS,
    signer: Signer | None = None,
    keep: Keep | None = None,
    installation: str = "",
    failpoints: Failpoints | None = None,
    seals: Seals | None = None,
) -> SqlStore:
    """Opens or makes the database and brings its schema up to date.

    `url`: `sqlite:////absolute/file.db` (its folder exists) or `postgresql://user@host/name`. `signer`: who signs the
    audit; without one its rows have no MAC, and a walk with a key says so. `keep`: how long what is over is kept.
    `installation`: whose boxes are here, where several share the database. `failpoints`: of tests; None: Quiet.
    `seals`: who signs and judges rolls; without, no binding, rule or grant can be added, and none counts.
    Unavailable: foreign, damaged, of a newer release, locked, unreachable. DiskFull. Invalid: the url.
    """
    engines = await open_engines(url, busy_seconds)
    days = timedelta(days=(keep or Keep()).keys_days)
    world = World(
        engines.dialect,
        clock,
        LeaseClock(clock),
        Onward(clock),
        ids,
        days,
        installation,
        failpoints or Quiet(),
        seals or Unkeyed(),
    )
    return SqlStore(Database(engines, world), signer)
