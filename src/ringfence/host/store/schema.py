"""The tables, as the newest migration leaves them. Must never be used to create them: migrations/ does that.

`tests/contract/test_migrations.py` compares the two. Removed rows keep their row (`removed_at`); names are unique among
live rows only. Times are UTC; JSON is text that Python wrote, so both databases keep it byte for byte.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect


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
        return None if value is None else json_text(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


def json_text(value: Any) -> str:
    """Short JSON; UTF-8 where it can be. ValueError or TypeError: no JSON value."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id(name: str = "id") -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _to(name: str, target: str, *, nullable: bool = False, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, sa.ForeignKey(target), nullable=nullable, primary_key=primary_key)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _int(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _seconds(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=False)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, nullable=False)


def _time(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, Utc, nullable=nullable)


def _unique(name: str, table: sa.Table, columns: list[str], where: str) -> sa.Index:
    """A unique index over some rows only, the same on both databases."""
    condition = sa.text(where)
    return sa.Index(
        name, *(table.c[column] for column in columns), unique=True, sqlite_where=condition, postgresql_where=condition
    )


tenants = sa.Table("tenants", metadata, _id(), _text("name"), _time("created_at", nullable=False), _time("removed_at"))
_unique("uq_tenants_live_name", tenants, ["name"], "removed_at IS NULL")

users = sa.Table(
    "users",
    metadata,
    _id(),
    _to("tenant", "tenants.id"),
    _text("name"),
    _text("kind"),
    _to("owner", "users.id", nullable=True),
    _flag("disabled"),
    _time("created_at", nullable=False),
    _time("removed_at"),
    sa.CheckConstraint("kind IN ('person', 'agent', 'project')", name="kind"),
    sa.CheckConstraint("(kind = 'person') = (owner IS NULL)", name="owner"),
)
_unique("uq_users_live_name", users, ["tenant", "name"], "removed_at IS NULL")

tokens = sa.Table(
    "tokens",
    metadata,
    _id(),
    _to("user", "users.id"),
    _text("secret_hash"),
    sa.Column("scopes", JsonText, nullable=False),
    _text("note"),
    _time("created_at", nullable=False),
    _time("expires_at"),
    _time("last_used_at"),
    _time("removed_at"),
    sa.Index("ix_tokens_user", "user"),
    sa.UniqueConstraint("secret_hash"),
)

boxes = sa.Table(
    "boxes",
    metadata,
    _id(),
    _to("tenant", "tenants.id"),
    _to("user", "users.id"),
    _text("kind"),
    _text("driver"),
    _text("desired"),
    _text("observed"),
    _int("uid"),
    sa.Column("identity", JsonText),
    sa.Column("limits", JsonText, nullable=False),
    _text("image"),
    _int("generation"),
    _time("created_at", nullable=False),
    _time("started_at"),
    _time("last_active_at"),
    _time("removed_at"),
    sa.CheckConstraint("kind IN ('home', 'run', 'skill', 'session', 'scratch', 'probe')", name="kind"),
    sa.CheckConstraint("desired IN ('running', 'stopped', 'removed')", name="desired"),
    sa.CheckConstraint("observed IN ('absent', 'stopped', 'starting', 'running', 'lost')", name="observed"),
    sa.CheckConstraint("identity IS NULL OR observed = 'running'", name="identity"),
    sa.CheckConstraint("removed_at IS NULL OR desired = 'removed'", name="removed"),
    sa.CheckConstraint("uid >= 0", name="uid"),
    sa.Index("ix_boxes_tenant", "tenant"),
)
_unique("uq_boxes_home", boxes, ["tenant", "user"], "kind = 'home' AND desired <> 'removed'")

threads = sa.Table(
    "threads",
    metadata,
    _id(),
    _to("tenant", "tenants.id"),
    _text("name"),
    _flag("parallel"),
    _int("cursor"),  # of the newest event; 0 when there is none
    _time("created_at", nullable=False),
    _time("removed_at"),
    sa.CheckConstraint("cursor >= 0", name="cursor"),
)
_unique("uq_threads_live_name", threads, ["tenant", "name"], "removed_at IS NULL")

members = sa.Table(
    "members",
    metadata,
    _to("thread", "threads.id", primary_key=True),
    _to("user", "users.id", primary_key=True),
    sa.Index("ix_members_user", "user"),
)

messages = sa.Table(
    "messages",
    metadata,
    _id(),
    _to("thread", "threads.id"),
    _text("turn"),
    _to("author", "users.id", nullable=True),
    _text("author_name"),
    _text("text"),
    _int("cursor"),
    sa.Column("attachments", JsonText),  # [{"path", "size"}]; NULL when there are none
    _flag("steer"),  # said to a turn that was there already
    _time("created_at", nullable=False),
    sa.CheckConstraint("NOT steer OR author IS NOT NULL", name="steer"),
    sa.Index("uq_messages_cursor", "thread", "cursor", unique=True),
)
STEER = "steer"  # a query must say it in this word to be given the index, which other messages cost nothing
sa.Index(
    "ix_messages_steer",
    messages.c.turn,
    messages.c.cursor,
    sqlite_where=sa.text(STEER),
    postgresql_where=sa.text(STEER),
)

summaries = sa.Table(
    "summaries",
    metadata,
    _to("thread", "threads.id", primary_key=True),
    _to("actor", "users.id", primary_key=True),
    _int("cursor"),
    _text("text"),
    _time("created_at", nullable=False),
    sa.CheckConstraint("cursor >= 1", name="cursor"),
)

glass = sa.Table(
    "glass",
    metadata,
    _to("thread", "threads.id", primary_key=True),
    sa.Column("via", sa.Text, primary_key=True),  # Actor.via of the operator
    _text("reason"),
    _time("opened_at", nullable=False),
    _time("closes_at", nullable=False),
)

turns = sa.Table(
    "turns",
    metadata,
    _id(),
    _to("thread", "threads.id"),
    _to("actor", "users.id"),
    _to("message", "messages.id"),
    _text("lane"),
    _text("state"),
    _text("reason"),
    _text("reply", nullable=True),
    _text("run", nullable=True),
    _time("created_at", nullable=False),
    _time("ended_at"),
    sa.CheckConstraint("state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')", name="state"),
)

runs = sa.Table(
    "runs",
    metadata,
    _id(),
    _to("turn", "turns.id"),
    _to("tenant", "tenants.id"),
    _to("thread", "threads.id"),
    _to("actor", "users.id"),
    _text("lane"),
    _int("position"),  # the cursor of the turn's message: the order of a lane
    _to("box", "boxes.id", nullable=True),
    _text("state"),
    _text("reason"),
    _int("epoch"),
    _int("attempts"),
    _text("worker", nullable=True),
    _time("lease_until"),
    _time("not_before"),
    _text("token_hash"),
    _flag("cancel_requested"),
    _text("guest_digest", nullable=True),
    _seconds("worked"),
    _time("created_at", nullable=False),
    _time("started_at"),
    _time("ended_at"),
    sa.CheckConstraint("state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')", name="state"),
    sa.CheckConstraint("epoch >= attempts AND attempts >= 0", name="epoch"),
    sa.CheckConstraint("worked >= 0", name="worked"),
    sa.CheckConstraint("(state = 'running') = (worker IS NOT NULL)", name="worker"),
    sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="lease"),
    sa.CheckConstraint("(state IN ('completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)", name="ended"),
    sa.Index("ix_runs_turn", "turn"),
    sa.Index("ix_runs_actor", "actor"),
    sa.Index("ix_runs_tenant_created_at", "tenant", "created_at"),
)
LIVE = "state IN ('queued', 'running', 'parked')"  # a query must say it in these words to be given the index
RUNNING = "state = 'running'"
sa.Index("ix_runs_live", runs.c.lane, runs.c.position, sqlite_where=sa.text(LIVE), postgresql_where=sa.text(LIVE))
_unique("uq_runs_lane", runs, ["lane"], RUNNING)

steps = sa.Table(
    "steps",
    metadata,
    _to("run", "runs.id", primary_key=True),
    sa.Column("n", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("tool"),
    sa.Column("arguments", JsonText, nullable=False),
    _text("digest"),
    _text("effect"),
    _text("state"),
    sa.Column("result", JsonText),
    _time("begun_at", nullable=False),
    _time("ended_at"),
    sa.CheckConstraint("n >= 1", name="n"),
    sa.CheckConstraint("effect IN ('pure', 'idempotent', 'once', 'local')", name="effect"),
    sa.CheckConstraint("state IN ('begun', 'ended', 'interrupted')", name="state"),
    sa.CheckConstraint("(state = 'begun') = (result IS NULL)", name="result"),
)
BEGUN = "state = 'begun'"  # in these words: a run's end looks for what is under way, past 256 KiB of each other step
sa.Index("ix_steps_begun", steps.c.run, sqlite_where=sa.text(BEGUN), postgresql_where=sa.text(BEGUN))

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    _to("run", "runs.id", primary_key=True),
    _text("boundary"),
    _int("step"),
    _int("cursor"),
    _text("state"),
    sa.Column("blobs", JsonText, nullable=False),  # digests that the state refers to
    _time("created_at", nullable=False),
)

blobs = sa.Table(
    "blobs",
    metadata,
    _to("run", "runs.id", primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),  # SHA-256 of the whole in hex, as the run says
    _to("actor", "users.id"),  # of the run
    _int("size"),  # bytes of the whole
    _int("held"),  # bytes that are here
    _text("made"),  # an id of this row: what was checked is still the same when it is
    _flag("checked"),  # the digest is right
    sa.CheckConstraint("held <= size", name="held"),
    sa.CheckConstraint("NOT checked OR held = size", name="checked"),
    sa.Index("ix_blobs_actor", "actor", "size"),  # a user's sum is read from the index alone
)

blob_chunks = sa.Table(
    "blob_chunks",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("n", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["run", "digest"], ["blobs.run", "blobs.digest"], ondelete="CASCADE"),
    sa.CheckConstraint("n >= 0", name="n"),
)

events = sa.Table(
    "events",
    metadata,
    _to("thread", "threads.id", primary_key=True),
    sa.Column("cursor", sa.BigInteger, primary_key=True, autoincrement=False),
    _text("kind"),
    _text("actor", nullable=True),
    _text("turn", nullable=True),
    _text("run", nullable=True),
    sa.Column("body", JsonText, nullable=False),
    _time("created_at", nullable=False),
    sa.CheckConstraint("cursor >= 1", name="cursor"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    _to("tenant", "tenants.id", primary_key=True),
    _to("actor", "users.id", primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    _text("body_hash"),
    _to("message", "messages.id"),
    _time("created_at", nullable=False),
    sa.Index("ix_idempotency_created_at", "created_at"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    _time("at", nullable=False),
    sa.Column("actor", JsonText),
    _text("action"),
    _text("subject"),
    sa.Column("details", JsonText, nullable=False),
    _text("previous"),
    _text("hash"),
    sa.CheckConstraint("seq >= 1", name="seq"),
)

audit_head = sa.Table(
    "audit_head",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    _int("seq"),
    _text("hash"),
    sa.CheckConstraint("id = 1", name="one"),
)
