"""What a support bundle says of the database: its form, how many rows there are of what, and how each box stands.

Numbers, states, times, and ids that we made. It must never read a column that holds what somebody wrote, named or stored.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.store import life, spending  # noqa: F401  tables of the schema that are named nowhere else here
from ringfence.host.store.ledger import gates
from ringfence.host.store.schema import boxes, kernels, metadata, runs, turns, users

# Of boxes: no identity, no words of an operator about a quarantine.
_BOX = ("id", "kind", "driver", "desired", "observed", "rest", "verb", "uid", "generation", "limits", "installation")
_TIMES = ("created_at", "started_at", "last_active_at", "rested_at", "quarantined_at", "verb_until")
_KERNEL = ("worker", "version", "schema_from", "schema_to", "installation", "started_at", "seen_at", "ended_at")
_MOST_BOXES, _MOST_KERNELS = 2000, 50


def support_facts(connection: Connection) -> dict[str, Any]:
    there = set(sa.inspect(connection).get_table_names())
    tables = [table for table in metadata.sorted_tables if table.name in there]
    return {
        "dialect": connection.dialect.name,
        "rows": {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in tables
        },
        "columns": {table.name: [column.name for column in table.columns] for table in tables},
        "foreign_tables": len(there - {table.name for table in tables}),
        "runs": _numbers(connection, runs.c.state, runs.c.reason),
        "turns": _numbers(connection, turns.c.state),
        "gates": _numbers(connection, gates.c.kind, gates.c.state),
        "users": _numbers(connection, users.c.kind, users.c.removed_at.is_(None).label("live")),
        "boxes": _boxes(connection),
        "kernels": _kernels(connection),
    }


def _numbers(connection: Connection, *by: sa.ColumnElement[Any]) -> list[dict[str, Any]]:
    """Reasons of runs are words of ours (kernel.runs), or a loop's own: whoever packs this leaves those out."""
    query = sa.select(*by, sa.func.count().label("rows")).group_by(*by).order_by(*by)
    return [{name: _plain(value) for name, value in row._mapping.items()} for row in connection.execute(query)]


def _boxes(connection: Connection) -> list[dict[str, Any]]:
    query = sa.select(*(boxes.c[name] for name in (*_BOX, *_TIMES))).order_by(boxes.c.id)
    rows = connection.execute(query.where(boxes.c.removed_at.is_(None)).limit(_MOST_BOXES))
    return [{name: _plain(value) for name, value in row._mapping.items()} for row in rows]


def _kernels(connection: Connection) -> list[dict[str, Any]]:
    query = sa.select(*(kernels.c[name] for name in _KERNEL)).order_by(kernels.c.started_at.desc()).limit(_MOST_KERNELS)
    return [{name: _plain(value) for name, value in row._mapping.items()} for row in connection.execute(query)]


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
