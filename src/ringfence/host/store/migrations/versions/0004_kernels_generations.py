"""Kernel processes that work on the store, generations of the store, and from which cursor a cut thread is kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    _kernels()
    _generations()
    _cuts()


def _kernels() -> None:
    op.create_table(
        "kernels",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("schema_from", sa.Text(), nullable=False),
        sa.Column("schema_to", sa.Text(), nullable=False),
        sa.Column("installation", sa.Text(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("worker", name=op.f("pk_kernels")),
    )


def _generations() -> None:
    generations = op.create_table(
        "generations",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_generations")),
        sa.CheckConstraint("number >= 1", name=op.f("ck_generations_number")),
    )
    op.execute(sa.insert(generations).values(number=1, began_at=sa.func.current_timestamp()))


def _cuts() -> None:
    op.create_table(
        "cuts",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("kept_from", sa.BigInteger(), nullable=False),
        sa.Column("cut_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_cuts_thread")),
        sa.PrimaryKeyConstraint("thread", name=op.f("pk_cuts")),
        sa.CheckConstraint("kept_from >= 1", name=op.f("ck_cuts_kept_from")),
    )
