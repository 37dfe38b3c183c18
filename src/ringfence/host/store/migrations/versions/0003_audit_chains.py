"""The audit as one chain for each kernel process (decision 0035).

Expands: the tables of the one chain stay where they are, closed. A release that knows only them goes on writing them, and the
next kernel of this release signs what it wrote.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    _chains()
    _rows()


def _chains() -> None:
    op.create_table(
        "audit_chains",
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("news", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("closed_by", sa.Text(), nullable=True),
        sa.Column("cut_seq", sa.BigInteger(), nullable=False),
        sa.Column("cut_hash", sa.Text(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.CheckConstraint("seq >= 0 AND cut_seq >= 0 AND cut_seq <= seq", name=op.f("ck_audit_chains_seq")),
        sa.PrimaryKeyConstraint("chain", name=op.f("pk_audit_chains")),
    )
    op.create_index("ix_audit_chains_closed_by", "audit_chains", ["closed_by"], unique=False)


def _rows() -> None:
    op.create_table(
        "audit_rows",
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("ref", sa.Text(), nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("mac", sa.Text(), nullable=False),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_audit_rows_seq")),
        sa.CheckConstraint("lane IN ('act', 'release', 'intent', 'chain')", name=op.f("ck_audit_rows_lane")),
        sa.PrimaryKeyConstraint("chain", "seq", name=op.f("pk_audit_rows")),
    )
    op.create_index("ix_audit_rows_at", "audit_rows", ["at"], unique=False)
    op.create_index("ix_audit_rows_ref", "audit_rows", ["ref"], unique=False)
