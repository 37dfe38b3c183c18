"""kernel.models.ports.ModelUsage on the database.

A reservation is taken under the lock of the rows that say what is left, so two calls never get the same room, on one
kernel or on several. What was reserved and what was used are exchanged in one transaction. Must never let a sum fall
behind its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import Exhausted, Refused
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.kernels import at_work
from ringfence.host.kernel.models.ports import Call, Caller, Fit, Going, Standing
from ringfence.host.kernel.models.usage import NO_LIMIT, Amount, BudgetLimits, Spent, Usage
from ringfence.host.kernel.runs import RUN_FINAL
from ringfence.host.store.audit import in_time
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.columns import Utc
from ringfence.host.store.database import Database
from ringfence.host.store.kernels import kernels_of
from ringfence.host.store.model_keys import go, standing
from ringfence.host.store.quick import Quick
from ringfence.host.store.schema import runs, users
from ringfence.host.store.spending import RESERVED, model_calls, model_spent
from ringfence.host.store.transaction import Tx

_LOST = 500  # calls that one sweep ends
# Those of a reservation and its end stand between a client and its model's first word: at the driver (quick.py).
_RUN = Quick(sa.select(runs.c.actor, runs.c.state).where(runs.c.id == sa.bindparam("which")))
_USER = Quick(
    sa.select(users.c.id).where(
        users.c.id == sa.bindparam("which"), users.c.tenant == sa.bindparam("in_tenant"), users.c.removed_at.is_(None)
    )
)
_SPENT = Quick(
    sa.select(model_spent.c.tokens, model_spent.c.micros)
    .where(model_spent.c.of == sa.bindparam("whose"), model_spent.c.period == sa.bindparam("at_period"))
    .with_for_update()
)
_FIRST = Quick(sa.insert(model_spent))
_KINDS = ("input", "output", "cache_read", "cache_write")
_SUMS = ("tokens", "micros", "calls", *_KINDS, "paid")
_NOTHING: Mapping[str, int] = MappingProxyType(dict.fromkeys(_SUMS, 0))
_MORE = Quick(
    sa.update(model_spent)
    .where(model_spent.c.of == sa.bindparam("whose"), model_spent.c.period == sa.bindparam("at_period"))
    .values({name: model_spent.c[name] + sa.bindparam(f"more_{name}", type_=sa.BigInteger) for name in _SUMS})
)
_CALL = Quick(sa.insert(model_calls))
_USED = (*_KINDS, "micros")
_END = Quick(
    sa.update(model_calls)
    .where(model_calls.c.id == sa.bindparam("which"))
    .values({name: sa.bindparam(f"new_{name}") for name in (*_USED, "state", "outcome", "ended_at")})
)
_OPEN = Quick(
    sa.select(
        *(model_calls.c[name] for name in ("user", "run", "period", "reserved_tokens", "reserved_micros")),
    )
    .where(model_calls.c.id == sa.bindparam("which"), sa.text(RESERVED))
    .with_for_update()
)
# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_RESERVED = sa.select(model_calls.c.id, model_calls.c.worker).where(sa.text(RESERVED)).order_by(model_calls.c.id)
_SHOWN = sa.select(model_spent).where(
    model_spent.c.of == sa.bindparam("whose"), model_spent.c.period == sa.bindparam("at_period")
)
_OLD = (
    sa.select(model_calls.c.id)
    .where(model_calls.c.ended_at < sa.bindparam("before", type_=Utc))
    .order_by(model_calls.c.ended_at)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)


class SqlModelUsage:
    """kernel.models.ports.ModelUsage."""

    def __init__(self, database: Database, chain: Chain) -> None:
        """`chain`: of the audit."""
        self._database, self._chain = database, chain

    async def standing(self, caller: Caller, name: str) -> Standing:
        dialect = self._database.world.dialect
        return await self._database.read(lambda connection: standing(connection, dialect, caller, name))

    async def reserve(self, call: Call, limits: BudgetLimits, fit: Fit, going: Going | None = None) -> Amount:
        def work(tx: Tx) -> Amount:
            given = _reserve(tx, call, limits, fit)
            if going is not None:
                go(tx, self._chain, call.caller, going)
            return given

        writing = self._database.write(work)
        return await (writing if going is None else in_time(writing))

    async def settle(self, call: str, usage: Usage, micros: int, outcome: str) -> bool:
        return await self._database.write(lambda tx: _end(tx, call, usage, micros, "settled", outcome))

    async def sweep(self, worker: str, live: Callable[[], Collection[str]]) -> int:
        """Reads first: an empty sweep costs no commit."""

        def question(connection: Connection) -> list[str]:
            world = self._database.world
            here = at_work(kernels_of(connection), world.dialect.lease_now(connection, world.lease_clock))
            others = {kernel.worker for kernel in here} - {worker}
            return [row.id for row in connection.execute(_RESERVED).all() if row.worker not in others]

        reserved = await self._database.read(question)
        ours = live()
        gone = [call for call in reserved if call not in ours][:_LOST]
        if not gone:
            return 0
        return await self._database.write(lambda tx: sum(_lose(tx, call) for call in gone))

    async def of_run(self, run: RunId) -> Spent:
        return await self._shown(run, "")

    async def of_user(self, user: UserId, period: str) -> Spent:
        return await self._shown(user, period)

    async def _shown(self, whose: str, period: str) -> Spent:
        asked = {"whose": whose, "at_period": period}
        row = await self._database.read(lambda connection: connection.execute(_SHOWN, asked).one_or_none())
        return Spent() if row is None else _spent(row)


def _reserve(tx: Tx, call: Call, limits: BudgetLimits, fit: Fit) -> Amount:
    caller, period = call.caller, limits.period_of(tx.onward_now())
    _check_caller(tx, call)
    scopes: list[tuple[str, str, Amount, str]] = [(caller.user, period, limits.user, f"the user's of {period}")]
    if caller.run is not None:
        scopes.append((caller.run, "", limits.run, "the run's"))
    room, words = Amount(NO_LIMIT, NO_LIMIT), ""
    for whose, at, limit, name in scopes:  # in one order, so that two kernels do not wait for each other in a ring
        spent = _locked(tx, whose, at)
        left = limit - spent
        if left.tokens < room.tokens or left.micros < room.micros:
            words = f"{name}: {spent.tokens} of {limit.tokens} tokens" if limit.tokens < NO_LIMIT else name
        room = room.least(left)
    given = fit(room)
    if given is None:
        raise Exhausted(
            f"the budget for models is used up ({words}, what is under way included)",
            remedy="ask the operator, or wait for the next period",
        )
    more = {"tokens": given.tokens, "micros": given.micros, "calls": 1}
    _add(tx, [(whose, at) for whose, at, _, _ in scopes], more)
    values: dict[str, Any] = {
        "id": call.id,
        "tenant": caller.tenant,
        "user": caller.user,
        "run": caller.run,
        "alias": call.alias,
        "front": call.front,
        "worker": call.worker,
        "period": period,
        "state": "reserved",
        "outcome": "",
        "reserved_tokens": given.tokens,
        "reserved_micros": given.micros,
        "opened_at": tx.now(),
        "ended_at": None,
    }
    tx.world.dialect.many(tx.connection, _CALL, [values | dict.fromkeys(_USED, 0)])
    return given


def _check_caller(tx: Tx, call: Call) -> None:
    """Refused."""
    caller, dialect = call.caller, tx.world.dialect
    if dialect.scalar(tx.connection, _USER, {"which": caller.user, "in_tenant": caller.tenant}) is None:
        raise Refused("there is no such user any more")
    if caller.run is None:
        return
    for actor, state in dialect.pairs(tx.connection, _RUN, {"which": caller.run}):
        if actor == caller.user and state not in RUN_FINAL:
            return
    raise Refused(f"run {caller.run} has ended: its calls of models end with it")


def _locked(tx: Tx, whose: str, period: str) -> Amount:
    """What is spent and reserved, as it stays until the commit but for us. Another kernel that makes the same row
    loses the race, or we do: the write is run again."""
    asked = {"whose": whose, "at_period": period}
    for tokens, micros in tx.world.dialect.pairs(tx.connection, _SPENT, asked):
        return Amount(tokens, micros)
    tx.world.dialect.many(tx.connection, _FIRST, [{"of": whose, "period": period, **_NOTHING}])
    return Amount()


def _add(tx: Tx, scopes: Sequence[tuple[str, str]], more: Mapping[str, int]) -> None:
    """`scopes`: (whose, period). `more`: of any of _SUMS."""
    added = {f"more_{name}": value for name, value in {**_NOTHING, **more}.items()}
    rows = [{"whose": whose, "at_period": period, **added} for whose, period in scopes]
    tx.world.dialect.many(tx.connection, _MORE, rows)


def _lose(tx: Tx, call: str) -> bool:
    """Nobody knows what it used: all that was reserved, as input."""
    row = tx.world.dialect.one(tx.connection, _OPEN, {"which": call})
    if row is None:
        return False
    _, _, _, tokens, micros = row
    return _end(tx, call, Usage(input=tokens), micros, "lost", "lost")


def _end(tx: Tx, call: str, usage: Usage, micros: int, state: str, outcome: str) -> bool:
    row = tx.world.dialect.one(tx.connection, _OPEN, {"which": call})
    if row is None:
        return False
    user, run, period, reserved_tokens, reserved_micros = row
    used = (usage.input, usage.output, usage.cache_read, usage.cache_write, micros)
    ended = {"which": call, "new_state": state, "new_outcome": outcome, "new_ended_at": tx.now()}
    values = {f"new_{name}": value for name, value in zip(_USED, used, strict=True)}
    tx.world.dialect.many(tx.connection, _END, [ended | values])
    scopes = [(user, period), *([(run, "")] if run is not None else [])]
    more = {"tokens": usage.tokens - reserved_tokens, "micros": micros - reserved_micros, "paid": micros}
    _add(tx, scopes, more | dict(zip(_KINDS, used, strict=False)))
    return True


def _spent(row: Row[Any]) -> Spent:
    """What is shown comes from what refuses: it stays when the calls are taken away."""
    usage = Usage(row.input, row.output, row.cache_read, row.cache_write)
    return Spent(row.calls, usage, row.paid, Amount(row.tokens - usage.tokens, row.micros - row.paid))


# --- for the other write functions -----------------------------------------------------------------------------------


def old_calls(connection: Connection, before: Any, limit: int) -> list[str]:
    """Ended before that, oldest first."""
    return list(connection.execute(_OLD, {"before": before, "count": limit}).scalars())


def drop_calls(tx: Tx, which: Collection[str]) -> int:
    return tx.connection.execute(sa.delete(model_calls).where(model_calls.c.id.in_(which))).rowcount
