"""`ringfence db restore`: the rows of a backup in an empty database, and a new generation of the store.

What the backup has as at work is nobody's any more: leases and run tokens are void, and epochs begin so much higher
that a kernel or a loop of before is StaleEpoch. Its boxes may have gone on since: every run that has begun is marked as
one whose tree is another (trees.py), and left to the redrive table. What was asked then may have been answered since:
it is closed, and whatever may have gone out is taken as sent, so that evidence is looked for. It must never start
anything, and never touch the database that is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.capabilities import key_of
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Invalid, Refused, Unavailable
from ringfence.host.kernel.gates import GateState
from ringfence.host.kernel.kernels import EPOCH_JUMP
from ringfence.host.kernel.runs import Effect, RunState
from ringfence.host.store import migrate
from ringfence.host.store.backup import audit_heads, kind_of, tables_of
from ringfence.host.store.backup_format import Manifest, Reading, TableHead
from ringfence.host.store.generation import begin_generation
from ringfence.host.store.ledger import PENDING, effects, gates
from ringfence.host.store.outward import OPEN, invocations
from ringfence.host.store.schema import BEGUN, LIVE, boxes, kernels, runs, steps, turns
from ringfence.host.store.trees import LOST, MARK

_BATCH = 200  # rows of one INSERT
PUT_BACK = "the database was put back from a backup; the answer may have been used since"
_NOT_INTENDED = (
    sa.select(
        steps,
        runs.c.actor,
        runs.c.epoch,
        gates.c.sealed,
        gates.c.policy,
        gates.c.digest.label(
            "asked"
        ),  # of the call as it would go out: a policy may have taken arguments from the step's
        gates.c.arguments.label("going"),
    )
    .join(runs, runs.c.id == steps.c.run)
    .outerjoin(gates, sa.and_(gates.c.run == steps.c.run, gates.c.n == steps.c.n, sa.text(f"gates.{PENDING}")))
    .outerjoin(effects, sa.and_(effects.c.run == steps.c.run, effects.c.n == steps.c.n))
    .where(sa.text(f"steps.{BEGUN}"), steps.c.effect == Effect.ONCE.value, effects.c.run.is_(None))
)


def check_manifest(manifest: Manifest, installation: str) -> None:
    """Refused: another installation's. Unavailable: of a newer release. Invalid: it cannot have been written so."""
    known = [migration.revision for migration in migrate.chain()]
    if manifest.schema not in known:
        raise Unavailable(
            f"the backup has schema {manifest.schema}, which is newer than this release knows ({known[-1]})",
            remedy=f"restore it with release {manifest.release} or a later one",
        )
    if manifest.floor not in known[: known.index(manifest.schema) + 1]:
        raise Invalid(
            f"the backup's first line is damaged: a floor {manifest.floor} above its schema {manifest.schema}",
            remedy="take another copy of it, or an older backup",
        )
    if manifest.installation != installation:
        raise Refused(
            f"the backup is of installation {manifest.installation}, this is {installation}: its boxes are not here",
            remedy="put back installation.json and vault/ of that installation first",
        )


def fill(connection: Connection, backup: Reading) -> int:
    """Every row, in a database that is empty, at the schema of the backup; how many. Invalid: the backup is not whole.
    Inside the caller's transaction, which he commits only when all is well."""
    migrate.upgrade_to(connection, backup.manifest.schema)
    tables = {table.name: table for table in tables_of(connection)}
    for table in reversed(list(tables.values())):
        connection.execute(sa.delete(table))  # what migrations put there is in the backup too
    table_now: sa.Table | None = None
    batch: list[dict[str, Any]] = []
    for part in backup.parts():
        if isinstance(part, TableHead):
            _insert(connection, table_now, batch)
            table_now, batch = _same(tables, part), []
            continue
        assert table_now is not None
        batch.append(dict(zip(table_now.columns.keys(), part, strict=True)))
        if len(batch) >= _BATCH:
            _insert(connection, table_now, batch)
            batch = []
    _insert(connection, table_now, batch)
    if set(backup.rows) != set(tables):
        raise Invalid("the backup lacks tables of its own schema", remedy="take another copy of it")
    if audit_heads(connection) != backup.manifest.audit:
        raise Invalid("the backup's audit ends elsewhere than its manifest says", remedy="take another copy of it")
    return sum(backup.sealed.rows.values())


def _same(tables: Mapping[str, sa.Table], head: TableHead) -> sa.Table:
    """The table as it is here, with its columns in the order of the backup's. Invalid: it has others."""
    table = tables.get(head.name)
    if table is None:
        raise Invalid(f"the backup has a table that its schema has not: {head.name}", remedy="take another copy of it")
    here = {column.name: kind_of(column) for column in table.columns}
    if here != dict(head.columns) or len(here) != len(head.columns):
        raise Invalid(f"the backup's table {head.name} has other columns", remedy="take another copy of it")
    return sa.Table(head.name, sa.MetaData(), *(sa.Column(name, table.c[name].type) for name, _ in head.columns))


def _insert(connection: Connection, table: sa.Table | None, batch: list[dict[str, Any]]) -> None:
    if table is None or not batch:
        return
    if connection.dialect.name == "sqlite":  # its DATETIME keeps UTC without a zone
        batch = [{name: _plain(value) for name, value in row.items()} for row in batch]
    try:
        connection.execute(sa.insert(table), batch)
    except sa.exc.IntegrityError as error:  # the database is empty: nobody else's rows are in the way
        raise Invalid(
            f"the backup is damaged: its rows of {table.name} are twice in it, empty where they may not be, or refer to "
            "what is not there",
            remedy="take another copy of it, or an older backup",
        ) from error


def _plain(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def fence(connection: Connection, number: int, at: datetime, source: Mapping[str, Any], installation: str) -> int:
    """Begins generation `number`, of `installation`'s backup. How many live runs are left to the redrive table, now or
    when their lane comes to them. The schema is this release's."""
    begin_generation(connection, number, at, source)
    connection.execute(sa.update(runs).values(epoch=runs.c.epoch + EPOCH_JUMP, token_hash=""))
    connection.execute(sa.update(kernels).where(kernels.c.ended_at.is_(None)).values(ended_at=at))
    # Of a time when a database had one installation: on a server that several share, they would be everybody's.
    connection.execute(sa.update(boxes).where(boxes.c.installation == "").values(installation=installation))
    # A port that a command had then may be another's by now: nothing goes out by it until somebody is given it anew.
    connection.execute(sa.update(invocations).where(sa.text(OPEN)).values(closed_at=at))
    _take_as_sent(connection, at)
    _close_questions(connection)
    connection.execute(MARK)
    connection.execute(sa.update(runs).where(runs.c.state == RunState.RUNNING.value).values(**LOST))
    for table in (turns, runs):
        parked = sa.update(table).where(table.c.state == RunState.PARKED.value)
        connection.execute(parked.values(state=RunState.QUEUED.value, reason=""))
    connection.execute(sa.update(runs).where(sa.text(LIVE), runs.c.other_tree).values(not_before=None))
    return int(connection.execute(sa.select(sa.func.count()).where(sa.text(LIVE), runs.c.other_tree)).scalar_one())


def _take_as_sent(connection: Connection, at: datetime) -> None:
    """What was intended then, or was about to be, may have been sent since: evidence is asked for under its key. Of a
    step that had not come to its intent the question about it says what it refers to; where there is none, nothing can
    be found out, and that is what its run ends with."""
    values = {"state": EffectState.SENT.value, "sent_at": effects.c.intended_at}
    connection.execute(sa.update(effects).where(effects.c.state == EffectState.INTENDED.value).values(**values))
    for step in connection.execute(_NOT_INTENDED).all():
        digest = step.asked or step.digest
        row = {
            "run": step.run,
            "n": step.n,
            "user": step.actor,
            "capability": step.tool,
            "key": key_of(step.run, step.n, digest),
            "arguments": step.going if step.asked else step.arguments,
            "digest": digest,
            "sealed": step.sealed or "",
            "policy": step.policy or "",
            "gate": None,
            "state": EffectState.SENT.value,
            "outcome": {},
            "epoch": step.epoch,
            "tries": 0,
            "intent": None,
            "intended_at": at,
            "sent_at": at,
        }
        connection.execute(sa.insert(effects), row)


def _close_questions(connection: Connection) -> None:
    """Answers that nothing had used may have been used since; questions may have been answered."""
    for before, after in ((GateState.ALLOWED, GateState.EXPIRED), (GateState.OPEN, GateState.CANCELLED)):
        values = {"state": after.value, "reason": PUT_BACK}
        connection.execute(sa.update(gates).where(gates.c.state == before.value).values(**values))
