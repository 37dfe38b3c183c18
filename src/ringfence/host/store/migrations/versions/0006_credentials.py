"""Credentials and their sealed versions, grants and bindings; rules of the way out; rolls of what counts; invocations; calls of models.

Expands: eleven tables that older releases do not know.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision: str | None = "0005"
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    _credentials()
    _versions()
    _grants()
    _renewals()
    _bindings()
    _rules()
    _rolls()
    _news()
    _invocations()
    _model_calls()
    _model_spent()


def _text(name: str, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _time(name: str, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def _refers(table: str, **columns: str) -> list[sa.ForeignKeyConstraint]:
    return [
        sa.ForeignKeyConstraint([column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}"))
        for column, target in columns.items()
    ]


def _some(name: str, table: str, columns: list[str], where: str, *, unique: bool = True) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def _credentials() -> None:
    op.create_table(
        "credentials",
        _text("id"),
        _text("tenant"),
        _text("owner"),
        _text("user", nullable=True),
        _text("name"),
        _number("version"),
        _text("kind"),
        _text("reach"),
        _text("mac"),
        _time("created_at", nullable=False),
        _time("updated_at", nullable=False),
        _time("revoked_at"),
        sa.CheckConstraint("owner IN ('user', 'tenant', 'shared')", name=op.f("ck_credentials_owner")),
        sa.CheckConstraint("(owner = 'tenant') = (\"user\" IS NULL)", name=op.f("ck_credentials_user")),
        sa.CheckConstraint("kind IN ('opaque', 'oauth_refresh', 'authority')", name=op.f("ck_credentials_kind")),
        sa.CheckConstraint("version >= 1", name=op.f("ck_credentials_version")),
        *_refers("credentials", tenant="tenants", user="users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credentials")),
    )
    op.create_index("ix_credentials_tenant", "credentials", ["tenant"], unique=False)
    live = 'revoked_at IS NULL AND "user" IS'
    _some("uq_credentials_user", "credentials", ["user", "name"], f"{live} NOT NULL")
    _some("uq_credentials_tenant", "credentials", ["tenant", "name"], f"{live} NULL")


def _versions() -> None:
    op.create_table(
        "credential_versions",
        _text("credential"),
        _number("version"),
        _text("kek"),
        sa.Column("wrapped_key", sa.LargeBinary(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        _time("created_at", nullable=False),
        sa.CheckConstraint("version >= 1", name=op.f("ck_credential_versions_version")),
        *_refers("credential_versions", credential="credentials"),
        sa.PrimaryKeyConstraint("credential", "version", name=op.f("pk_credential_versions")),
    )


def _grants() -> None:
    op.create_table(
        "credential_grants",
        _text("credential"),
        _text("user"),
        _time("created_at", nullable=False),
        *_refers("credential_grants", credential="credentials", user="users"),
        sa.PrimaryKeyConstraint("credential", "user", name=op.f("pk_credential_grants")),
    )
    op.create_index("ix_credential_grants_user", "credential_grants", ["user"], unique=False)


def _renewals() -> None:
    op.create_table(
        "credential_renewals",
        _text("credential"),
        _number("version"),
        _text("holder"),
        _time("until"),
        _number("failures"),
        _time("again_at"),
        _text("why"),
        _number("cut"),
        sa.CheckConstraint("(holder = '') = (until IS NULL)", name=op.f("ck_credential_renewals_until")),
        *_refers("credential_renewals", credential="credentials"),
        sa.PrimaryKeyConstraint("credential", name=op.f("pk_credential_renewals")),
    )


def _bindings() -> None:
    op.create_table(
        "credential_bindings",
        *(_text(name) for name in ("id", "user", "credential", "body", "digest")),
        _time("created_at", nullable=False),
        _time("removed_at"),
        *_refers("credential_bindings", user="users", credential="credentials"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credential_bindings")),
    )
    op.create_index("ix_credential_bindings_credential", "credential_bindings", ["credential"], unique=False)
    _some("uq_credential_bindings_live", "credential_bindings", ["user", "digest"], "removed_at IS NULL")


def _rules() -> None:
    op.create_table(
        "egress_rules",
        _text("id"),
        _text("tenant", nullable=True),
        _text("user", nullable=True),
        *(_text(name) for name in ("scope", "body", "digest")),
        _time("created_at", nullable=False),
        _time("removed_at"),
        sa.CheckConstraint("scope = COALESCE(\"user\", tenant, '')", name=op.f("ck_egress_rules_scope")),
        sa.CheckConstraint('"user" IS NULL OR tenant IS NOT NULL', name=op.f("ck_egress_rules_layer")),
        *_refers("egress_rules", tenant="tenants", user="users"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_egress_rules")),
    )
    _some("uq_egress_rules_live", "egress_rules", ["scope", "digest"], "removed_at IS NULL")


def _rolls() -> None:
    op.create_table(
        "rolls",
        _text("of"),
        _number("edition"),
        *(_text(name) for name in ("entries", "kek", "mac")),
        sa.CheckConstraint("edition >= 1", name=op.f("ck_rolls_edition")),
        sa.PrimaryKeyConstraint("of", name=op.f("pk_rolls")),
    )


def _news() -> None:
    op.create_table(
        "outward_news",
        _text("of"),
        _number("n"),
        sa.PrimaryKeyConstraint("of", name=op.f("pk_outward_news")),
    )
    op.create_index("ix_outward_news_n", "outward_news", ["n"], unique=False)


def _invocations() -> None:
    op.create_table(
        "invocations",
        *(_text(name) for name in ("id", "tenant", "user", "box", "key")),
        _text("run", nullable=True),
        _number("epoch"),
        _number("port"),
        _time("opened_at", nullable=False),
        _time("closed_at"),
        sa.CheckConstraint("port BETWEEN 100 AND 1021", name=op.f("ck_invocations_port")),
        sa.CheckConstraint("epoch >= 0", name=op.f("ck_invocations_epoch")),
        *_refers("invocations", tenant="tenants", user="users", box="boxes", run="runs"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invocations")),
    )
    op.create_index("ix_invocations_closed_at", "invocations", ["closed_at"], unique=False)
    op.create_index("ix_invocations_user", "invocations", ["user"], unique=False)
    _some("uq_invocations_port", "invocations", ["box", "port"], "closed_at IS NULL")


def _model_calls() -> None:
    op.create_table(
        "model_calls",
        *(_text(name) for name in ("id", "tenant", "user")),
        _text("run", nullable=True),
        *(_text(name) for name in ("alias", "front", "worker", "period", "state", "outcome")),
        *(_number(name) for name in ("reserved_tokens", "reserved_micros", "input", "output")),
        *(_number(name) for name in ("cache_read", "cache_write", "micros")),
        _time("opened_at", nullable=False),
        _time("ended_at"),
        sa.CheckConstraint("state IN ('reserved', 'settled', 'lost')", name=op.f("ck_model_calls_state")),
        sa.CheckConstraint("front IN ('loop', 'openai', 'anthropic')", name=op.f("ck_model_calls_front")),
        sa.CheckConstraint("(state = 'reserved') = (ended_at IS NULL)", name=op.f("ck_model_calls_ended")),
        sa.CheckConstraint(
            "reserved_tokens >= 0 AND reserved_micros >= 0 AND micros >= 0", name=op.f("ck_model_calls_amounts")
        ),
        *_refers("model_calls", tenant="tenants", user="users", run="runs"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_calls")),
    )
    op.create_index("ix_model_calls_ended_at", "model_calls", ["ended_at"], unique=False)
    _some("ix_model_calls_reserved", "model_calls", ["worker"], "state = 'reserved'", unique=False)


def _model_spent() -> None:
    op.create_table(
        "model_spent",
        _text("of"),
        _text("period"),
        *(_number(n) for n in ("tokens", "micros", "calls", "input", "output", "cache_read", "cache_write", "paid")),
        sa.CheckConstraint(
            "input + output + cache_read + cache_write <= tokens AND paid <= micros AND paid >= 0",
            name=op.f("ck_model_spent_amounts"),
        ),
        sa.PrimaryKeyConstraint("of", "period", name=op.f("pk_model_spent")),
    )
