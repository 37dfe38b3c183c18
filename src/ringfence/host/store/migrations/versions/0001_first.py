"""The first schema: people, boxes, threads, turns, runs, steps, blobs, events, audit.

Frozen with the first release: a later change is a later file.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None
kind = "expand"


def upgrade() -> None:
    _tenants()
    _users()
    _tokens()
    _boxes()
    _threads()
    _members()
    _messages()
    _summaries()
    _glass()
    _turns()
    _runs()
    _run_indexes()
    _steps()
    _checkpoints()
    _blobs()
    _blob_chunks()
    _events()
    _idempotency()
    _audit()
    _audit_head()


def _tenants() -> None:
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
    )
    op.create_index(
        "uq_tenants_live_name",
        "tenants",
        ["name"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )


def _users() -> None:
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("disabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(kind = 'person') = (owner IS NULL)", name=op.f("ck_users_owner")),
        sa.CheckConstraint("kind IN ('person', 'agent', 'project')", name=op.f("ck_users_kind")),
        sa.ForeignKeyConstraint(["owner"], ["users.id"], name=op.f("fk_users_owner")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_users_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
    )
    op.create_index(
        "uq_users_live_name",
        "users",
        ["tenant", "name"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )


def _tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("secret_hash", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["user"], ["users.id"], name=op.f("fk_tokens_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("secret_hash", name=op.f("uq_tokens_secret_hash")),
    )
    op.create_index("ix_tokens_user", "tokens", ["user"], unique=False)


def _boxes() -> None:
    op.create_table(
        "boxes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("desired", sa.Text(), nullable=False),
        sa.Column("observed", sa.Text(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("identity", sa.Text(), nullable=True),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("image", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_active_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("desired IN ('running', 'stopped', 'removed')", name=op.f("ck_boxes_desired")),
        sa.CheckConstraint("identity IS NULL OR observed = 'running'", name=op.f("ck_boxes_identity")),
        sa.CheckConstraint(
            "kind IN ('home', 'run', 'skill', 'session', 'scratch', 'probe')", name=op.f("ck_boxes_kind")
        ),
        sa.CheckConstraint(
            "observed IN ('absent', 'stopped', 'starting', 'running', 'lost')", name=op.f("ck_boxes_observed")
        ),
        sa.CheckConstraint("removed_at IS NULL OR desired = 'removed'", name=op.f("ck_boxes_removed")),
        sa.CheckConstraint("uid >= 0", name=op.f("ck_boxes_uid")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_boxes_tenant")),
        sa.ForeignKeyConstraint(["user"], ["users.id"], name=op.f("fk_boxes_user")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_boxes")),
    )
    op.create_index("ix_boxes_tenant", "boxes", ["tenant"], unique=False)
    op.create_index(
        "uq_boxes_home",
        "boxes",
        ["tenant", "user"],
        unique=True,
        sqlite_where=sa.text("kind = 'home' AND desired <> 'removed'"),
        postgresql_where=sa.text("kind = 'home' AND desired <> 'removed'"),
    )


def _threads() -> None:
    op.create_table(
        "threads",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("parallel", sa.Boolean(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("cursor >= 0", name=op.f("ck_threads_cursor")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_threads_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_threads")),
    )
    op.create_index(
        "uq_threads_live_name",
        "threads",
        ["tenant", "name"],
        unique=True,
        sqlite_where=sa.text("removed_at IS NULL"),
        postgresql_where=sa.text("removed_at IS NULL"),
    )


def _members() -> None:
    op.create_table(
        "members",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_members_thread")),
        sa.ForeignKeyConstraint(["user"], ["users.id"], name=op.f("fk_members_user")),
        sa.PrimaryKeyConstraint("thread", "user", name=op.f("pk_members")),
    )
    op.create_index("ix_members_user", "members", ["user"], unique=False)


def _messages() -> None:
    op.create_table(
        "messages",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=True),
        sa.Column("author_name", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("attachments", sa.Text(), nullable=True),
        sa.Column("steer", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("NOT steer OR author IS NOT NULL", name=op.f("ck_messages_steer")),
        sa.ForeignKeyConstraint(["author"], ["users.id"], name=op.f("fk_messages_author")),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_messages_thread")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_messages")),
    )
    op.create_index("uq_messages_cursor", "messages", ["thread", "cursor"], unique=True)
    op.create_index(
        "ix_messages_steer",
        "messages",
        ["turn", "cursor"],
        unique=False,
        sqlite_where=sa.text("steer"),
        postgresql_where=sa.text("steer"),
    )


def _summaries() -> None:
    op.create_table(
        "summaries",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("cursor >= 1", name=op.f("ck_summaries_cursor")),
        sa.ForeignKeyConstraint(["actor"], ["users.id"], name=op.f("fk_summaries_actor")),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_summaries_thread")),
        sa.PrimaryKeyConstraint("thread", "actor", name=op.f("pk_summaries")),
    )


def _glass() -> None:
    op.create_table(
        "glass",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closes_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_glass_thread")),
        sa.PrimaryKeyConstraint("thread", "via", name=op.f("pk_glass")),
    )


def _turns() -> None:
    op.create_table(
        "turns",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reply", sa.Text(), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')", name=op.f("ck_turns_state")
        ),
        sa.ForeignKeyConstraint(["actor"], ["users.id"], name=op.f("fk_turns_actor")),
        sa.ForeignKeyConstraint(["message"], ["messages.id"], name=op.f("fk_turns_message")),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_turns_thread")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_turns")),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("turn", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("box", sa.Text(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("token_hash", sa.Text(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("guest_digest", sa.Text(), nullable=True),
        sa.Column("worked", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name=op.f("ck_runs_lease")),
        sa.CheckConstraint("(state = 'running') = (worker IS NOT NULL)", name=op.f("ck_runs_worker")),
        sa.CheckConstraint(
            "(state IN ('completed', 'failed', 'cancelled')) = (ended_at IS NOT NULL)", name=op.f("ck_runs_ended")
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')", name=op.f("ck_runs_state")
        ),
        sa.CheckConstraint("epoch >= attempts AND attempts >= 0", name=op.f("ck_runs_epoch")),
        sa.CheckConstraint("worked >= 0", name=op.f("ck_runs_worked")),
        sa.ForeignKeyConstraint(["actor"], ["users.id"], name=op.f("fk_runs_actor")),
        sa.ForeignKeyConstraint(["box"], ["boxes.id"], name=op.f("fk_runs_box")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_runs_tenant")),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_runs_thread")),
        sa.ForeignKeyConstraint(["turn"], ["turns.id"], name=op.f("fk_runs_turn")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )


def _run_indexes() -> None:
    op.create_index("ix_runs_actor", "runs", ["actor"], unique=False)
    op.create_index(
        "ix_runs_live",
        "runs",
        ["lane", "position"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running', 'parked')"),
        postgresql_where=sa.text("state IN ('queued', 'running', 'parked')"),
    )
    op.create_index("ix_runs_tenant_created_at", "runs", ["tenant", "created_at"], unique=False)
    op.create_index("ix_runs_turn", "runs", ["turn"], unique=False)
    op.create_index(
        "uq_runs_lane",
        "runs",
        ["lane"],
        unique=True,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tool", sa.Text(), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("(state = 'begun') = (result IS NULL)", name=op.f("ck_steps_result")),
        sa.CheckConstraint("effect IN ('pure', 'idempotent', 'once', 'local')", name=op.f("ck_steps_effect")),
        sa.CheckConstraint("state IN ('begun', 'ended', 'interrupted')", name=op.f("ck_steps_state")),
        sa.CheckConstraint("n >= 1", name=op.f("ck_steps_n")),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_steps_run")),
        sa.PrimaryKeyConstraint("run", "n", name=op.f("pk_steps")),
    )
    op.create_index(
        "ix_steps_begun",
        "steps",
        ["run"],
        unique=False,
        sqlite_where=sa.text("state = 'begun'"),
        postgresql_where=sa.text("state = 'begun'"),
    )


def _checkpoints() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("boundary", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("blobs", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_checkpoints_run")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_checkpoints")),
    )


def _blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("made", sa.Text(), nullable=False),
        sa.Column("checked", sa.Boolean(), nullable=False),
        sa.CheckConstraint("NOT checked OR held = size", name=op.f("ck_blobs_checked")),
        sa.CheckConstraint("held <= size", name=op.f("ck_blobs_held")),
        sa.ForeignKeyConstraint(["actor"], ["users.id"], name=op.f("fk_blobs_actor")),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_blobs_run")),
        sa.PrimaryKeyConstraint("run", "digest", name=op.f("pk_blobs")),
    )
    op.create_index("ix_blobs_actor", "blobs", ["actor", "size"], unique=False)


def _blob_chunks() -> None:
    op.create_table(
        "blob_chunks",
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("n >= 0", name=op.f("ck_blob_chunks_n")),
        sa.ForeignKeyConstraint(
            ["run", "digest"], ["blobs.run", "blobs.digest"], name=op.f("fk_blob_chunks_run"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run", "digest", "n", name=op.f("pk_blob_chunks")),
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("thread", sa.Text(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("turn", sa.Text(), nullable=True),
        sa.Column("run", sa.Text(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("cursor >= 1", name=op.f("ck_events_cursor")),
        sa.ForeignKeyConstraint(["thread"], ["threads.id"], name=op.f("fk_events_thread")),
        sa.PrimaryKeyConstraint("thread", "cursor", name=op.f("pk_events")),
    )


def _idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["actor"], ["users.id"], name=op.f("fk_idempotency_actor")),
        sa.ForeignKeyConstraint(["message"], ["messages.id"], name=op.f("fk_idempotency_message")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_idempotency_tenant")),
        sa.PrimaryKeyConstraint("tenant", "actor", "key", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_created_at", "idempotency", ["created_at"], unique=False)


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.CheckConstraint("seq >= 1", name=op.f("ck_audit_seq")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
    )


def _audit_head() -> None:
    op.create_table(
        "audit_head",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
