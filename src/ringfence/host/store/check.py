"""`ringfence db check`: whether a database is whole, from its pages to what must hold between its rows.

Reads one snapshot and changes nothing, so it may run beside a server. Answers what it found, never raises for it: a page
that cannot be read is a finding. It must never mend anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import Keys
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.runs import redrivable
from ringfence.host.store import migrate
from ringfence.host.store.audit_verify import Walk
from ringfence.host.store.check_models import MODELS
from ringfence.host.store.check_outward import OUTWARD
from ringfence.host.store.check_rows import RULES, Rule
from ringfence.host.store.failures import cut_short, translate
from ringfence.host.store.run_rows import run_of
from ringfence.host.store.schema import LIVE, blobs, checkpoints, metadata, runs

T = TypeVar("T")
MOST = 20  # findings of one rule that are named; the last says how many more there are


@dataclass(frozen=True, slots=True)
class Finding:
    rule: str
    id: str  # what to look at: a row's id, a table, a page
    says: str


@dataclass(frozen=True, slots=True)
class Examined:
    findings: list[Finding]  # empty: whole; in the order of mending: what comes first may be the cause of what follows
    notes: list[str]  # what could not be looked at here, and is no fault of the database


def examine(connection: Connection, keys: Keys, installation: str = "") -> Examined:
    """`keys`: of the audit. `installation`: this one, where several share the database. Inside the caller's transaction,
    which goes on whatever is found. DBAPIError: the connection was lost, or a statement stopped from outside, which says
    nothing of the rows."""
    notes: list[str] = []
    looks: dict[str, Callable[[Connection], list[Finding]]] = {
        "pages": _pages,
        "schema": _schema,
        "references": _references,
        "rows": _rows,
        "blobs": _blobs,
        "audit": lambda connection: _audit(connection, keys, installation, notes),
    }
    found: list[Finding] = []
    for what, look in looks.items():
        try:
            with _apart(connection):
                found += look(connection)
        except (
            sa.exc.SQLAlchemyError,
            RingfenceError,
            ValueError,
        ) as error:  # ValueError: a text that is no JSON, no time
            if cut_short(error):
                raise
            found.append(Finding("readable", what, translate(error).message))
    return Examined(found, notes)


def _apart(connection: Connection) -> AbstractContextManager[object]:
    """A failed statement ends a transaction of PostgreSQL, unless a savepoint was before it."""
    return nullcontext() if connection.dialect.name == "sqlite" else connection.begin_nested()


# Rows of several tables that one transaction writes: pages of two databases together cannot keep all of these.
_TOGETHER = frozenset({"events_gapless", "message_event", "turn_run", "run_turn", "run_position", "steps_gapless"})


def mixed_up(connection: Connection) -> list[Finding]:
    """What a -wal of another database would leave behind; a part of `examine` that needs no key. SQLite."""
    tables = sa.inspect(connection).get_table_names()
    if tables and migrate.VERSION_TABLE not in tables:
        return [
            Finding("schema", "database", f"it has tables ({', '.join(sorted(tables)[:3])}), none of them ringfence's")
        ]
    found = [*_pages(connection), *_references(connection)]
    if not found and "cuts" in tables:
        found = [each for rule in RULES if rule.name in _TOGETHER for each in _ask(connection, rule)]
    return found


def named(ids: Iterator[str], rule: str, says: str) -> list[Finding]:
    """At most MOST by name, then how many more."""
    found = [Finding(rule, each, says) for each, _ in zip(ids, range(MOST), strict=False)]
    more = sum(1 for _ in ids)
    return [*found, Finding(rule, f"... and {more} more", says)] if more else found


def _pages(connection: Connection) -> list[Finding]:
    if connection.dialect.name != "sqlite":
        return []
    said = (str(row[0]) for row in connection.exec_driver_sql(f"PRAGMA integrity_check({MOST})"))
    return [Finding("pages", "database", line) for line in said if line != "ok"]


def _references(connection: Connection) -> list[Finding]:
    """PostgreSQL enforces them always, SQLite in each of our connections, but not in those of others."""
    if connection.dialect.name != "sqlite":
        query = sa.text("SELECT conrelid::regclass || ' ' || conname FROM pg_constraint WHERE NOT convalidated")
        return named((str(row[0]) for row in connection.execute(query)), "constraint", "it has never been validated")
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check")
    rows = (f"{row[0]} row {row[1]} -> {row[2]}" for row in broken)
    return named(rows, "reference", "the row refers to one that is not there")


def _schema(connection: Connection) -> list[Finding]:
    """Tables, columns, indexes and checks that this release's schema has and the database has not."""
    at = migrate.current(connection)
    if at != migrate.newest():
        says = f"the database is at schema {at}, this release at {migrate.newest()}: its form is not compared"
        return [Finding("schema", "database", "it is empty") if at is None else Finding("schema", at, says)]
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names())
    return [
        Finding("schema", table.name, says)
        for table in metadata.sorted_tables
        for says in (_lacking(inspector, table) if table.name in there else ["the table is missing"])
    ]


def _earlier(connection: Connection) -> bool:
    """Whether rows are of an earlier schema than the rules, which `_schema` says. Those of a later one, where this release
    still fits, keep them."""
    at = migrate.current(connection)
    return at is None or at in [migration.revision for migration in migrate.chain()[:-1]]


def _lacking(inspector: sa.Inspector, table: sa.Table) -> list[str]:
    return [
        *_missing("column", table.columns.keys(), inspector.get_columns(table.name)),
        *_missing("index", _indexes(table), inspector.get_indexes(table.name)),
        *_missing("check", _checks(table), inspector.get_check_constraints(table.name)),
    ]


def _indexes(table: sa.Table) -> list[str]:
    return [str(index.name) for index in table.indexes]


def _checks(table: sa.Table) -> list[str]:
    made = (each for each in table.constraints if isinstance(each, sa.CheckConstraint))
    return [f"ck_{table.name}_{name}" if not name.startswith("ck_") else name for name in (str(c.name) for c in made)]


def _missing(what: str, wanted: list[str], there: Sequence[Mapping[str, Any]]) -> list[str]:
    """`there`: as SQLAlchemy reflects them."""
    names = {str(each["name"]) for each in there}
    return [f"the {what} {name} is missing" for name in sorted(set(wanted) - names)]


def _rows(connection: Connection) -> list[Finding]:
    if _earlier(connection):
        return []
    return [finding for rule in (*RULES, *OUTWARD, *MODELS) for finding in _ask(connection, rule)]


def _ask(connection: Connection, rule: Rule) -> list[Finding]:
    rows = connection.execute(sa.text(rule.query))
    return named((str(row.id) for row in rows), rule.name, rule.says)


def _blobs(connection: Connection) -> list[Finding]:
    """What the checkpoint of a run that may go on refers to must be there, whole and of its digest (I6)."""
    if _earlier(connection):
        return []
    whole: set[tuple[str, str]] = {
        (row.run, row.digest)
        for row in connection.execute(sa.select(blobs.c.run, blobs.c.digest).where(blobs.c.checked))
    }
    open_runs = sa.select(checkpoints.c.blobs, runs).join(runs, runs.c.id == checkpoints.c.run)
    waiting = open_runs.where(sa.or_(sa.text(f"runs.{LIVE}"), runs.c.state == "failed"))

    def lost() -> Iterator[str]:
        for row in connection.execute(waiting):
            if row.state == "failed" and redrivable(run_of(row)):
                continue  # why it is not tried again
            yield from (f"{row.id} {digest}" for digest in row.blobs if (row.id, digest) not in whole)

    return named(lost(), "checkpoint_blob", "the checkpoint refers to a blob that is not there or not whole")


class _Here:
    """audit_verify.Reader within the caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self, question: Callable[[Connection], T]) -> T:
        return question(self._connection)


def _audit(connection: Connection, keys: Keys, installation: str, notes: list[str]) -> list[Finding]:
    if "audit_chains" not in sa.inspect(connection).get_table_names():
        return []  # an earlier schema: said above
    walk = Walk(_Here(connection), keys, installation=installation).run()
    try:
        walk.send(None)  # it waits for nothing: each of its reads is answered at once
    except StopIteration as end:
        report = end.value
    notes += [one.says for one in report.unchecked.values()]
    found = (f"{each.chain} {each.seq}: {each.what}" for _, each in sorted(report.first.items()))
    return named(found, "audit", "the audit was changed, or is not whole")
