"""Statements that every turn runs many times: at SQLite's driver, and so for a tenth of what SQLAlchemy takes.

Compiled once, at import. PostgreSQL is given the statement itself: there a round trip takes longer than SQLAlchemy does.
Must never read anything but text and whole numbers: what it gives back is as the driver has it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import exc
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import UpdateBase
from sqlalchemy.sql.selectable import Select

_SAVEPOINT = "ours"  # never one within another

Values = Mapping[str, Any]
"""Every parameter of the statement, by name."""


class Quick:
    """`statement`: with a bind parameter for each of its values; an INSERT is given each column of its table.
    `elsewhere`: how it is said to PostgreSQL, where that differs."""

    def __init__(self, statement: UpdateBase | Select[*tuple[Any, ...]], elsewhere: UpdateBase | None = None) -> None:
        dialect = sqlite.dialect()
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        self.elsewhere = statement if elsewhere is None else elsewhere
        self.text = str(compiled)
        self._columns: list[tuple[str, Callable[[Any], Any] | None]] = [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup or ()
        ]
        self._names = [name for name, _ in self._columns]
        self._made = [(at, process) for at, (_, process) in enumerate(self._columns) if process is not None]

    def rows(self, many: Sequence[Values]) -> Iterable[tuple[Any, ...]]:
        """As SQLite's driver takes them: column by column, since a value that all of them share is made once."""
        return zip(
            *(_column([values[name] for values in many], process) for name, process in self._columns), strict=True
        )

    def row(self, values: Values) -> Sequence[Any]:
        found = [values[name] for name in self._names]
        for at, process in self._made:  # few: most are taken as they are
            found[at] = process(found[at])
        return found


def _column(values: list[Any], process: Callable[[Any], Any] | None) -> list[Any]:
    if process is None:
        return values
    if len(values) > 1 and all(value is values[0] for value in values):
        return [process(values[0])] * len(values)
    return [process(value) for value in values]


def at_driver(connection: Connection, text: str, row: Sequence[Any] = ()) -> sqlite3.Cursor:
    """Of SQLite. sqlalchemy.exc.DBAPIError, as if SQLAlchemy had run it."""
    raw: Any = connection.connection.dbapi_connection
    try:
        cursor: sqlite3.Cursor = raw.execute(text, row)
        return cursor
    except sqlite3.Error as error:
        raise _as_sqlalchemy(error, text) from error


def scalar_at_driver(connection: Connection, quick: Quick, values: Values) -> Any:
    """The first column of the only row; None: there is none."""
    rows = at_driver(connection, quick.text, quick.row(values)).fetchall()
    return rows[0][0] if rows else None


def one_at_driver(connection: Connection, quick: Quick, values: Values) -> Sequence[Any] | None:
    """The only row; None: there is none."""
    rows: list[tuple[Any, ...]] = at_driver(connection, quick.text, quick.row(values)).fetchall()
    return rows[0] if rows else None


def pairs_at_driver(connection: Connection, quick: Quick, values: Values) -> list[tuple[Any, Any]]:
    return at_driver(connection, quick.text, quick.row(values)).fetchall()


def many_at_driver(connection: Connection, quick: Quick, rows: Sequence[Values]) -> None:
    if len(rows) == 1:
        at_driver(connection, quick.text, quick.row(rows[0]))
        return
    raw: Any = connection.connection.dbapi_connection
    try:
        raw.executemany(quick.text, quick.rows(rows))
    except sqlite3.Error as error:
        raise _as_sqlalchemy(error, quick.text) from error


def _as_sqlalchemy(error: sqlite3.Error, text: str) -> Exception:
    return exc.DBAPIError.instance(text, None, error, sqlite3.Error)


class DriverSavepoint:
    """dialect.Savepoint of SQLite. SQLAlchemy's own takes 0.08 ms of each write that has neighbours."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        at_driver(connection, f"SAVEPOINT {_SAVEPOINT}")

    def commit(self) -> None:
        at_driver(self._connection, f"RELEASE {_SAVEPOINT}")

    def rollback(self) -> None:
        at_driver(self._connection, f"ROLLBACK TO {_SAVEPOINT}")
        self.commit()
