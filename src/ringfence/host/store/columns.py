"""What the tables are made of: types that both databases keep alike, and short words for columns.

Times are UTC; JSON is text that Python wrote, so both databases keep it byte for byte. Must know no table.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from ringfence.host.store.text import JsonMade, json_text


class Utc(sa.types.TypeDecorator[datetime]):
    """Aware UTC in Python. SQLite keeps ISO text without a zone, which sorts as time; PostgreSQL a timestamptz."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a time without a zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class JsonText(sa.types.TypeDecorator[Any]):
    """A JSON value in a text column. Lone surrogates and NUL, which no text column takes, are kept as escapes."""

    impl = sa.Text()
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return value if value is None or isinstance(value, JsonMade) else json_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def id_(name: str = "id") -> sa.Column[str]:
    return text(name, primary_key=True)


def to(name: str, target: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, sa.ForeignKey(target), nullable=nullable, primary_key=primary_key)


def text(name: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable, primary_key=primary_key)


def whole(name: str, *, primary_key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, primary_key=primary_key, autoincrement=False)


def seconds(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False)


def flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)


def time(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, Utc, nullable=nullable)


def json_(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, JsonText, nullable=nullable)


def some(name: str, table: sa.Table, columns: list[str], where: str, *, unique: bool = False) -> sa.Index:
    """An index over some rows only, the same on both databases."""
    condition = sa.text(where)
    return sa.Index(
        name,
        *(table.c[column] for column in columns),
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )
