"""Gates, their answers, and the ledger of effects (decisions 0036 to 0038); which runs have another tree.

Expands: three tables that older releases do not know, and a column that they leave false.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision: str | None = "0004"
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    op.add_column("runs", sa.Column("other_tree", sa.Boolean(), nullable=False, server_default=sa.false()))
    _gates()
    _gate_indexes()
    _gate_answers()
    _effects()


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _time(name: str, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def _gates() -> None:
    references = (("tenant", "tenants"), ("user", "users"), ("owner", "users"), ("thread", "threads"), ("run", "runs"))
    op.create_table(
        "gates",
        *(_text(name) for name in ("id", "tenant", "user")),
        _text("owner", nullable=True),
        *(_text(name) for name in ("thread", "turn", "run")),
        _number("n"),
        *(_text(name) for name in ("kind", "tool", "arguments", "digest", "policy", "sealed", "shown", "obligations")),
        sa.Column("wall", sa.Boolean(), nullable=False),
        _text("mac"),
        _time("created_at", nullable=False),
        _time("expires_at"),
        *(_text(name) for name in ("state", "reason")),
        *(_text(name, nullable=True) for name in ("answer", "answered_by")),
        _text("answered_via"),
        _time("answered_at"),
        _text("answer_mac"),
        _time("used_at"),
        sa.CheckConstraint("n >= 1", name=op.f("ck_gates_n")),
        sa.CheckConstraint("kind IN ('approval', 'auth', 'setup', 'in_doubt')", name=op.f("ck_gates_kind")),
        sa.CheckConstraint(
            "state IN ('open', 'allowed', 'denied', 'expired', 'cancelled', 'used')", name=op.f("ck_gates_state")
        ),
        sa.CheckConstraint("(answered_at IS NULL) = (answer IS NULL)", name=op.f("ck_gates_answered")),
        sa.CheckConstraint("(state = 'used') = (used_at IS NOT NULL)", name=op.f("ck_gates_used")),
        sa.CheckConstraint("state <> 'open' OR answer IS NULL", name=op.f("ck_gates_open")),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_gates_{column}"))
            for column, table in (*references, ("answered_by", "users"))
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_gates")),
    )


def _gate_indexes() -> None:
    op.create_index("ix_gates_run", "gates", ["run", "n"], unique=False)
    op.create_index("ix_gates_user", "gates", ["user", "created_at"], unique=False)
    op.create_index("ix_gates_owner", "gates", ["owner", "created_at"], unique=False)
    for name, columns, where, unique in (
        ("uq_gates_step", ["run", "n"], "state IN ('open', 'allowed')", True),
        ("ix_gates_open", ["expires_at"], "state = 'open'", False),
    ):
        condition = sa.text(where)
        op.create_index(name, "gates", columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def _gate_answers() -> None:
    op.create_table(
        "gate_answers",
        *(_text(name) for name in ("gate", "key", "answer", "by", "via")),
        _time("at", nullable=False),
        sa.ForeignKeyConstraint(["gate"], ["gates.id"], name=op.f("fk_gate_answers_gate")),
        sa.ForeignKeyConstraint(["by"], ["users.id"], name=op.f("fk_gate_answers_by")),
        sa.PrimaryKeyConstraint("gate", "key", name=op.f("pk_gate_answers")),
    )


def _effects() -> None:
    op.create_table(
        "effects",
        _text("run"),
        _number("n"),
        *(_text(name) for name in ("user", "capability", "key", "arguments", "digest", "sealed", "policy")),
        _text("gate", nullable=True),
        *(_text(name) for name in ("state", "outcome")),
        _number("epoch"),
        _number("tries"),
        _text("intent", nullable=True),
        _time("intended_at", nullable=False),
        _time("sent_at"),
        _time("ended_at"),
        sa.CheckConstraint("n >= 1", name=op.f("ck_effects_n")),
        sa.CheckConstraint("tries >= 0", name=op.f("ck_effects_tries")),
        sa.CheckConstraint(
            "state IN ('intended', 'sent', 'done', 'not_done', 'unknown')", name=op.f("ck_effects_state")
        ),
        sa.CheckConstraint("(state IN ('done', 'not_done')) = (ended_at IS NOT NULL)", name=op.f("ck_effects_ended")),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_effects_{column}"))
            for column, table in (("run", "runs"), ("user", "users"), ("gate", "gates"))
        ),
        sa.PrimaryKeyConstraint("run", "n", name=op.f("pk_effects")),
    )
    op.create_index("uq_effects_key", "effects", ["key"], unique=True)
    op.create_index("uq_effects_gate", "effects", ["gate"], unique=True)
