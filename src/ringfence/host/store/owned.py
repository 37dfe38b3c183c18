"""Row keys checked on read: the rows that a query gave are those of whom it was asked for.

The second wall behind a query's own filter (decision 0028, drill D-6): it reads the keys that the rows themselves carry.
Questions that are asked for one user, tenant, thread or run, and whose answer holds what somebody said, did or owns, pass
their rows through here; numbers, yes and no, and the lanes do not. It must never be built from the query that it checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Failed


def owned(rows: Iterable[Row[Any]], **keys: str) -> list[Row[Any]]:
    """The rows as they came. Failed: one of them has another value in a column of `keys`; none is given out then."""
    given = list(rows)
    for row in given:
        for column, value in keys.items():
            if row._mapping[column] != value:
                raise _strange(column)
    return given


def _strange(column: str) -> Failed:
    return Failed(
        f"the store found a row of another {column}: nothing was given out",
        remedy="report this: a query lost its filter",
    )


def owned_by(rows: Iterable[Row[Any]], column: str, keys: Iterable[str]) -> dict[str, list[Row[Any]]]:
    """The rows as they came, by their `column`; of each of `keys`. Failed: one is of none of them."""
    found: dict[str, list[Row[Any]]] = {key: [] for key in keys}
    for row in rows:
        if row._mapping[column] not in found:
            raise _strange(column)
        found[row._mapping[column]].append(row)
    return found


def owned_row(row: Row[Any] | None, **keys: str) -> Row[Any] | None:
    """The same for one row, or none."""
    return None if row is None else owned([row], **keys)[0]
