"""How boxes rest, quarantine, verbs under way and what a box was made of and is bound to; whose runs wait; copies of trees; what boxes used day by day.

Expands: columns that an older release leaves as they are, and three tables that it does not know. A box that rests is one that runs, or
is stopped, to an older release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision: str | None = "0006"
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    for name in ("rest", "quarantine", "verb", "image_wanted", "image_bound"):
        op.add_column("boxes", sa.Column(name, sa.Text(), nullable=False, server_default=""))
    for name in ("rested_at", "quarantined_at", "verb_until"):
        op.add_column("boxes", _time(name))
    op.add_column("boxes", _text("made_of", nullable=True))
    op.add_column("users", sa.Column("held", sa.Text(), nullable=False, server_default=""))
    _snapshots()
    _box_days()


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _time(name: str, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def _refers(table: str, *columns: tuple[str, str]) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint([column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}"))
        for column, target in columns
    ]


_WHOSE = (("tenant", "tenants"), ("user", "users"), ("box", "boxes"))


def _snapshots() -> None:
    op.create_table(
        "snapshots",
        *(_text(name) for name in ("id", "tenant", "user", "box", "name", "kind", "state", "image", "installation")),
        *(_number(name) for name in ("entries", "bytes", "stored")),
        _text("digest"),
        _time("created_at", nullable=False),
        _time("removed_at"),
        sa.CheckConstraint("kind IN ('asked', 'archive', 'before')", name=op.f("ck_snapshots_kind")),
        sa.CheckConstraint("state IN ('making', 'whole')", name=op.f("ck_snapshots_state")),
        sa.CheckConstraint("entries >= 0 AND bytes >= 0 AND stored >= 0", name=op.f("ck_snapshots_sizes")),
        *_refers("snapshots", *_WHOSE),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index("ix_snapshots_box", "snapshots", ["box", "created_at"], unique=False)
    for name, columns, where in (
        ("uq_snapshots_name", ["user", "name"], "removed_at IS NULL AND name <> ''"),
        ("uq_snapshots_archive", ["box"], "removed_at IS NULL AND kind = 'archive' AND state = 'whole'"),
    ):
        condition = sa.text(where)
        op.create_index(name, "snapshots", columns, unique=True, sqlite_where=condition, postgresql_where=condition)


def _box_days() -> None:
    op.create_table(
        "box_days",
        *(_text(name) for name in ("day", "box", "tenant", "user")),
        *(_number(name) for name in ("active_ms", "running_ms", "cpu_ms", "memory_mib_ms", "disk_mib_ms")),
        *(_number(name) for name in ("egress_up", "egress_down", "starts", "pauses")),
        *_refers("box_days", *_WHOSE),
        sa.PrimaryKeyConstraint("day", "box", name=op.f("pk_box_days")),
    )
    op.create_table(
        "box_meters",
        _text("box"),
        _number("at_ms"),
        _text("of"),
        _number("cpu_usec"),
        _text("batch"),
        *_refers("box_meters", ("box", "boxes")),
        sa.PrimaryKeyConstraint("box", name=op.f("pk_box_meters")),
    )
    op.create_index("ix_box_days_user", "box_days", ["user", "day"], unique=False)
    op.create_index("ix_box_days_tenant", "box_days", ["tenant", "day"], unique=False)
