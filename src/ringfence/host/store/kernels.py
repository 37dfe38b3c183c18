"""kernel.kernels.Kernels: one row for each kernel process, with when it was last heard of and which schemas it can use.

Times are of the clock that leases count, so that one kernel's wall clock cannot make another look dead.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.kernels import LATELY_SECONDS, Kernel, at_work, in_the_way
from ringfence.host.store import migrate
from ringfence.host.store.database import Database
from ringfence.host.store.generation import generation_of
from ringfence.host.store.schema import RUNNING, kernels, runs
from ringfence.host.store.transaction import Tx

_KEPT = timedelta(days=30)  # ended ones, for whoever asks what ran; audit chains keep their own names

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_ALL = sa.select(kernels).order_by(kernels.c.started_at.desc(), kernels.c.worker)
_SEEN = (
    sa.update(kernels).where(kernels.c.worker == sa.bindparam("which")).values(ended_at=sa.null()).returning(kernels)
)
_INSERT = sa.insert(kernels).returning(kernels)
_END = sa.update(kernels).where(kernels.c.worker == sa.bindparam("which"), kernels.c.ended_at.is_(None))
_OLD = sa.delete(kernels).where(kernels.c.seen_at < sa.bindparam("before"))
_LEASES = sa.select(runs.c.worker, sa.func.max(runs.c.lease_until)).where(sa.text(RUNNING)).group_by(runs.c.worker)


def kernel_of(row: Row[Any]) -> Kernel:
    return Kernel(
        worker=row.worker,
        version=row.version,
        schema_from=row.schema_from,
        schema_to=row.schema_to,
        installation=row.installation,
        started_at=row.started_at,
        seen_at=row.seen_at,
        ended_at=row.ended_at,
    )


def kernels_of(connection: Connection) -> list[Kernel]:
    """The newest first; none in a database of the first release."""
    if kernels.name not in sa.inspect(connection).get_table_names():
        return []
    return [kernel_of(row) for row in connection.execute(_ALL)]


class SqlKernels:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._schemas = (migrate.oldest_fit(), migrate.newest())

    async def hello(self, worker: str, version: str, installation: str) -> Kernel:
        lowest, highest = self._schemas

        def work(tx: Tx) -> Kernel:
            now = tx.lease_now()
            known = tx.connection.execute(_SEEN, {"which": worker, "seen_at": now}).one_or_none()
            if known is not None:
                return kernel_of(known)
            tx.connection.execute(_OLD, {"before": now - _KEPT})
            row = {
                "worker": worker,
                "version": version,
                "schema_from": lowest,
                "schema_to": highest,
                "installation": installation,
                "started_at": now,
                "seen_at": now,
            }
            return kernel_of(tx.connection.execute(_INSERT, row).one())

        return await self._database.write(work)

    async def bye(self, worker: str) -> None:
        def work(tx: Tx) -> None:
            now = tx.lease_now()
            tx.connection.execute(_END, {"which": worker, "seen_at": now, "ended_at": now})

        await self._database.write(work)

    async def generation(self) -> int:
        return await self._database.read(generation_of)


def check_nobody_needs(connection: Connection, now: datetime, revision: str) -> None:
    """Conflict: a kernel that does not know the contraction `revision` was heard of lately, or holds a lease."""
    known = kernels_of(connection)
    waiting = [(kernel.worker, f"release {kernel.version}") for kernel in in_the_way(known, now, revision)]
    able = {kernel.worker for kernel in known if kernel.schema_to >= revision}
    for worker, until in connection.execute(_LEASES):
        if worker not in able and until is not None and until > now:
            waiting.append((worker, f"a lease until {until:%H:%M:%S}"))
    _refuse(f"schema {revision} takes away what they need", dict(waiting))


def check_nobody_works(connection: Connection, now: datetime) -> None:
    """Conflict: a kernel was heard of lately."""
    _refuse("they work on it", {kernel.worker: kernel.version for kernel in at_work(kernels_of(connection), now)})


def _refuse(why: str, names: dict[str, str]) -> None:
    if names:
        shown = ", ".join(f"{worker} ({what})" for worker, what in sorted(names.items())[:3])
        raise Conflict(
            f"{len(names)} kernel processes stand in the way ({why}): {shown}",
            remedy=f"stop them; one that was killed counts as there for {LATELY_SECONDS:.0f} s",
            kernels=sorted(names),
        )
