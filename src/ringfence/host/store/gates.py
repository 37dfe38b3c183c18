"""Gates in the store: asked and parked, answered and queued, used or closed; each in one transaction with its run.

Whoever locks both locks the run's row before the gate's. Must never make an answer: it keeps what the engine has authorised,
signed by the function that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import ANEW, Gate, GateAnswer, GateId, GateKind, GateState, Question, expired
from ringfence.host.kernel.ids import RunId, TenantId, UserId
from ringfence.host.store.columns import Utc
from ringfence.host.store.database import Database
from ringfence.host.store.gate_answers import answered, run_out, to_answer
from ringfence.host.store.gate_asking import ask_gate
from ringfence.host.store.gate_rows import BY_ID, CHANGE, LOCKED, RUN_OF, close_gate, found_row, gate_of
from ringfence.host.store.ledger import OPEN, PENDING, gates
from ringfence.host.store.owned import owned
from ringfence.host.store.park import unpark_run
from ringfence.host.store.places import OURS
from ringfence.host.store.run_rows import fenced, locked_run
from ringfence.host.store.schema import runs
from ringfence.host.store.text import cleaned, storable
from ringfence.host.store.transaction import Tx

Sign = Callable[[Gate], str]

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_OPEN_IDS = sa.select(gates.c.id).join(runs, runs.c.id == gates.c.run).where(sa.text(f"gates.{OPEN}"))
_OPEN_OURS = _OPEN_IDS.where(OURS)
# The arguments have up to 128 KiB: a list of a thousand gates does without.
_LISTED = sa.select(*(column for column in gates.c if column.name != "arguments"))
_OF_RUN = sa.select(gates).where(gates.c.run == sa.bindparam("in_run")).order_by(gates.c.created_at, gates.c.id)
_PENDING = sa.select(gates).where(gates.c.run == sa.bindparam("in_run"), sa.text(PENDING)).with_for_update()
_DUE = (
    sa.select(gates.c.id)  # and nothing that could be unreadable
    .where(sa.text(OPEN), gates.c.expires_at <= sa.bindparam("now", type_=Utc))
    .order_by(gates.c.expires_at, gates.c.id)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)


class SqlGates:
    """kernel.ledger.Gates."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ask(self, run: RunId, epoch: int, question: Question, sign: Sign) -> Gate:
        return await self._database.write(lambda tx: ask_gate(tx, run, epoch, question, sign))

    async def get(self, gate: GateId) -> Gate:
        return await self._database.read(lambda connection: gate_of(found_row(connection, BY_ID, gate)))

    async def of_run(self, run: RunId) -> list[Gate]:
        """Oldest first."""
        if not storable(run):
            return []
        return await self._database.read(
            lambda connection: [gate_of(row) for row in owned(connection.execute(_OF_RUN, {"in_run": run}), run=run)]
        )

    async def of_users(self, users: Iterable[UserId], states: Iterable[GateState], limit: int) -> list[Gate]:
        ids = sorted(set(users))
        query = _LISTED.where(sa.or_(gates.c.user.in_(ids), gates.c.owner.in_(ids)))
        return await self._database.read(lambda connection: _listed(connection, query, states, limit))

    async def of_tenant(self, tenant: TenantId, states: Iterable[GateState], limit: int) -> list[Gate]:
        query = _LISTED.where(gates.c.tenant == tenant)
        return await self._database.read(lambda connection: _listed(connection, query, states, limit))

    async def open_here(self) -> list[GateId]:
        world = self._database.world
        one = world.dialect.one_kernel or not world.installation
        query, which = (_OPEN_IDS, {}) if one else (_OPEN_OURS, {"installation": world.installation})
        return list(await self._database.read(lambda connection: connection.execute(query, which).scalars().all()))

    async def disown(self, gate: GateId, genuine: Callable[[Gate], bool]) -> bool:
        def work(tx: Tx) -> bool:
            run = locked_run(tx, RunId(found_row(tx.connection, RUN_OF, gate).run))
            found = gate_of(found_row(tx.connection, LOCKED, gate))
            if found.state is not GateState.OPEN or genuine(found):
                return False
            close_gate(tx, run, found, GateState.EXPIRED, ANEW)
            unpark_run(tx, run)
            return True

        return await self._database.write(work)

    async def answer(
        self,
        gate: GateId,
        answer: GateAnswer,
        by: UserId,
        via: str,
        key: str,
        sign: Sign,
        genuine: Callable[[Gate], bool],
    ) -> tuple[Gate, bool]:
        via, key = cleaned(via), cleaned(key)

        def work(tx: Tx) -> tuple[Gate, bool]:
            run, found, repeated = to_answer(tx, gate, answer, by, key)
            if repeated or found.state is GateState.EXPIRED:
                return found, repeated
            if not genuine(found):
                raise Conflict(
                    "the question is not one that this installation wrote: it takes no answer here",
                    remedy="answer it where its user's box is; of a lost gate.key: restart the server, which asks anew",
                )
            return answered(tx, run, found, answer, by, via, key, sign), False

        return await self._database.write(work)

    async def use(self, run: RunId, epoch: int, gate: GateId, unusable: Callable[[Gate, datetime], str]) -> Gate:
        def work(tx: Tx) -> Gate:
            fenced(tx, run, epoch)
            return use_gate(tx, run, gate, unusable)

        return await self._database.write(work)

    async def void(self, run: RunId, epoch: int, gate: GateId, reason: str) -> Gate:
        def work(tx: Tx) -> Gate:
            row = fenced(tx, run, epoch)
            found = gate_of(found_row(tx.connection, LOCKED, gate))
            if found.run != run or found.state is not GateState.ALLOWED:
                raise Conflict(f"gate {gate} is {found.state.value}")
            return close_gate(tx, row, found, GateState.EXPIRED, cleaned(reason))

        return await self._database.write(work)

    async def expire(self, gate: GateId) -> Gate:
        def work(tx: Tx) -> Gate:
            locked_run(tx, RunId(found_row(tx.connection, RUN_OF, gate).run))
            found = gate_of(found_row(tx.connection, LOCKED, gate))
            is_due = found.state is GateState.OPEN and expired(found, tx.onward_now())
            return run_out(tx, found) if is_due else found

        return await self._database.write(work)

    async def due(self, limit: int) -> list[GateId]:
        asked = {"now": self._database.world.onward.now(), "count": limit}
        return list(await self._database.read(lambda connection: connection.execute(_DUE, asked).scalars().all()))


def _listed(connection: Connection, query: sa.Select[Any], states: Iterable[GateState], limit: int) -> list[Gate]:
    query = query.where(gates.c.state.in_([state.value for state in states]))
    query = query.order_by(gates.c.created_at.desc(), gates.c.id.desc()).limit(max(limit, 0))
    return [gate_of(row, arguments={}) for row in connection.execute(query)]


# --- for the other write functions -----------------------------------------------------------------------------------


def close_gates(tx: Tx, run: Row[Any], reason: str) -> None:
    """The run ends in this transaction: what was asked for it is asked no more."""
    for row in tx.connection.execute(_PENDING, {"in_run": run.id}).all():
        close_gate(tx, run, gate_of(row), GateState.CANCELLED, reason)


def answered_gates(tx: Tx, run: RunId) -> list[Gate]:
    """Of the run: about effects in doubt, answered and not used. Locked."""
    rows = tx.connection.execute(_PENDING, {"in_run": run}).all()
    return [gate_of(row) for row in rows if (row.kind, row.state) == (GateKind.IN_DOUBT, GateState.ALLOWED)]


def use_gate(tx: Tx, run: RunId, gate: GateId, unusable: Callable[[Gate, datetime], str]) -> Gate:
    """The one use of an answered gate, in the transaction of what it is used for. Conflict: it cannot be used, and why."""
    found = gate_of(found_row(tx.connection, LOCKED, gate))
    problem = f"gate {gate} is of another run" if found.run != run else unusable(found, tx.onward_now())
    if problem:
        raise Conflict(problem)
    changed = {"which": gate, "state": GateState.USED.value, "used_at": tx.now()}
    return gate_of(tx.connection.execute(CHANGE, changed).one())
