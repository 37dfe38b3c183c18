"""How soon a restarted server has decided about the runs that its former self held, with many finished ones behind it.

The database is made from one finished turn and one that was under way, both written by the store's own functions, and
copied row by row. Then the real server starts on it, where another had worked before. The time goes from its start until none of the expired runs is held
any more: each is queued, parked or ended by then.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ringfence.bench.cluster import Cluster
from ringfence.bench.durable_kernel import STEPS, turn
from ringfence.bench.figures import Row, at_most
from ringfence.bench.machine import peak_bytes
from ringfence.bench.throwaway import CommandFailed, Installation, installation
from ringfence.host.app import DEFAULT_TENANT, FIRST_OPERATOR, SystemClock, SystemIds
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.ids import ThreadId, UserId
from ringfence.host.kernel.runs import Effect
from ringfence.host.store.dialects import dialect_of
from ringfence.host.store.schema import checkpoints, events, members, messages, runs, steps, threads, turns
from ringfence.host.store.store import SqlStore, open_store

MOST_SECONDS = 5.0
PATIENCE_SECONDS = 120.0
_GONE = "krn_gone"
_LEFT = f"SELECT count(*) FROM runs WHERE state = 'running' AND worker = '{_GONE}'"
_DECIDED = "SELECT count(*) FROM runs WHERE epoch >= 1 AND state <> 'completed'"
Table = Any  # of the store's schema: its toolkit is the store's own
_LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
# Of one turn, in an order in which each row finds what it refers to.
_OF_A_TURN = {
    messages: messages.c.turn,
    turns: turns.c.id,
    runs: runs.c.turn,
    events: events.c.turn,
    steps: steps.c.run,
    checkpoints: checkpoints.c.run,
}
_SHIFTED = ("cursor", "position")
_LOOK_SECONDS = 0.1  # psql takes 50 ms of a core each time, which is the server's too
_AT_ONCE = 5000  # rows in one statement


@dataclass(frozen=True, slots=True)
class Restart:
    finished: int
    expired: int  # at least one; each in a lane of its own


def measure(say: Callable[[str], None], plan: Restart, server: Cluster | None) -> Row:
    """On PostgreSQL where a `server` is given, else on SQLite. CommandFailed."""
    kind = "SQLite" if server is None else "PostgreSQL"
    say(f"restart with {plan.finished} finished and {plan.expired} expired runs on {kind}")
    settings = "max_runs = 1\n"  # what is decided is claimed again at once: one box is enough for that
    if server is None:
        return _restarted(plan, kind, settings, None)
    server.folder.chmod(0o711)  # the server's own account is to reach the socket
    url = server.create("restart")
    try:
        return _restarted(plan, kind, f'{settings}database = "{url}"\n', (server, url))
    finally:
        server.drop("restart")


def _restarted(plan: Restart, kind: str, settings: str, shared: tuple[Cluster, str] | None) -> Row:
    with installation(settings=settings, name="bench", started=False) as made:
        made.start()  # the former self: a first start copies the runtime, 130 MiB, which a restarted server has
        if made.stop() != 0:
            raise CommandFailed("the server's former self did not end in order")
        url = shared[1] if shared is not None else f"sqlite:///{made.home}/db/ringfence.db"
        asyncio.run(_fill(url, plan))
        ask = _asked(made, shared)
        if ask(_LEFT) != plan.expired:
            raise CommandFailed("the runs to be found expired are not there")
        begun = time.perf_counter()
        made.start()
        ready = time.perf_counter() - begun
        while ask(_LEFT):
            if time.perf_counter() - begun > PATIENCE_SECONDS:
                raise CommandFailed(f"runs are still undecided after {PATIENCE_SECONDS:.0f} s")
            time.sleep(_LOOK_SECONDS)
        seconds = time.perf_counter() - begun
        details = {"ready_seconds": round(ready, 3), "finished": plan.finished, "expired": plan.expired}
        details |= {"decided": ask(_DECIDED), "peak_mib": round(peak_bytes(made.kernel_pid()) / (1 << 20), 1)}
        name = f"restart on {kind} until {plan.expired} expired runs are decided, {plan.finished} finished"
        return at_most(name, seconds, "s", MOST_SECONDS, **details)


def _asked(made: Installation, shared: tuple[Cluster, str] | None) -> Callable[[str], int]:
    def of_file(question: str) -> int:
        with closing(sqlite3.connect(f"file:{made.home}/db/ringfence.db?mode=ro", uri=True, timeout=30)) as connection:
            return int(connection.execute(question).fetchone()[0])

    if shared is None:
        return of_file
    server = shared[0]
    return lambda question: int(server.sql("restart", question)[0][0])


async def _fill(url: str, plan: Restart) -> None:
    store = await open_store(url, SystemClock(), SystemIds())
    try:
        user = await store.users.get(DEFAULT_TENANT, FIRST_OPERATOR)
        first = (await store.threads.add(user.tenant, "b0", [user.id], False)).id
        await _begun(store, first, user.id, whole=True)
        await _begun(store, first, user.id, whole=False)
    finally:
        await store.close()
    pool = dialect_of(url, 30.0).pool("write")
    try:
        await pool.run(lambda connection: _copy(connection, first, plan))
    finally:
        await pool.close()


async def _begun(store: SqlStore, thread: ThreadId, user: UserId, *, whole: bool) -> None:
    """A turn of `durable_kernel`; or one whose server was gone during its first command."""
    await store.turns.accept(thread, user, "what is to be done", "queue", None)
    (run,) = await store.runs.claim(_GONE, 1, lambda run: "")
    if whole:
        await turn(store, run)
        return
    arguments = {"command": "ls -l"}
    await store.steps.save_checkpoint(run.id, run.epoch, "before_model", 0, "s" * 4000)
    sealed = digest("shell", arguments, Effect.LOCAL)
    await store.steps.begin(run.id, run.epoch, 1, "shell", arguments, sealed, Effect.LOCAL)


@dataclass(frozen=True, slots=True)
class Template:
    """The rows of one turn."""

    rows: Mapping[Table, Sequence[Mapping[str, Any]]]
    before: int  # the thread's cursor
    cursors: int  # that it took

    def copy(self, thread: str, after: int) -> Iterator[tuple[Table, dict[str, Any]]]:
        """With ids of its own, in another thread whose cursor is `after`."""
        old = next(iter(self.rows[turns]))
        fresh, mint = {str(old["thread"]): thread}, SystemIds()
        for prefix, table in (("trn", turns), ("run", runs), ("msg", messages)):
            fresh |= {str(row["id"]): mint.new(prefix) for row in self.rows[table]}
        for table, rows in self.rows.items():
            for row in rows:
                yield table, {name: self._value(name, value, fresh, after) for name, value in row.items()}

    def _value(self, name: str, value: Any, fresh: Mapping[str, str], after: int) -> Any:
        if name in _SHIFTED:
            return value - self.before + after
        if name == "lease_until" and value is not None:
            return _LONG_AGO
        if isinstance(value, str):
            return fresh.get(value, value)
        if isinstance(value, dict):
            text = json.dumps(value)
            for old, new in fresh.items():
                text = text.replace(old, new)
            return json.loads(text)
        return value


def _copy(connection: Any, first: ThreadId, plan: Restart) -> None:
    with connection.begin():
        connection.execute(runs.update().where(runs.c.worker == _GONE).values(lease_until=_LONG_AGO))
        finished, expired = _templates(connection, first)
        thread = dict(connection.execute(threads.select().where(threads.c.id == first)).mappings().one())
        member = dict(connection.execute(members.select().where(members.c.thread == first)).mappings().one())
        rows: dict[Table, list[dict[str, Any]]] = {threads: [], members: [], **{table: [] for table in _OF_A_TURN}}
        lanes = max(plan.expired - 1, 1)  # the first thread has its own two turns
        for n in range(lanes):
            share = len(range(n, plan.finished - 1, lanes))
            turns_here = [finished] * share + [expired] * (plan.expired > 1)
            fresh, cursor = SystemIds().new("thr"), 0
            for template in turns_here:
                for table, row in template.copy(fresh, cursor):
                    rows[table].append(row)
                cursor += template.cursors
            rows[threads].append({**thread, "id": fresh, "name": f"b{n + 1}", "cursor": cursor})
            rows[members].append({**member, "thread": fresh})
        for table, some in rows.items():
            for at in range(0, len(some), _AT_ONCE):
                connection.execute(table.insert(), some[at : at + _AT_ONCE])


def _templates(connection: Any, thread: ThreadId) -> list[Template]:
    """The finished turn and the other one."""
    made: list[Template] = []
    before = 0
    for row in connection.execute(turns.select().where(turns.c.thread == thread).order_by(turns.c.created_at)):
        rows = {
            table: [
                dict(found)
                for found in connection.execute(
                    table.select().where(column == (row.run if column.name == "run" else row.id))
                ).mappings()
            ]
            for table, column in _OF_A_TURN.items()
        }
        last = max(event["cursor"] for event in rows[events])
        made.append(Template(rows, before, last - before))
        before = last
    if len(made) != 2 or len(made[0].rows[steps]) != STEPS:
        raise CommandFailed("the two turns to copy are not there")
    return made
