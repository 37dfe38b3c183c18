"""The tables, as the newest migration leaves them. Must never be used to create them: migrations/ does that.

`tests/contract/test_store_opening.py` compares the two. Removed rows keep their row (`removed_at`); names are unique
among live rows only.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.store.columns import flag, id_, json_, seconds, some, text, time, to, whole

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


tenants = sa.Table("tenants", metadata, id_(), text("name"), time("created_at", nullable=False), time("removed_at"))
some("uq_tenants_live_name", tenants, ["name"], "removed_at IS NULL", unique=True)

users = sa.Table(
    "users",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    text("name"),
    text("kind"),
    to("owner", "users.id", nullable=True),
    flag("disabled"),
    time("created_at", nullable=False),
    time("removed_at"),
    sa.Column("held", sa.Text, nullable=False, server_default=""),  # why none of its runs is claimed; "": they are
    sa.CheckConstraint("kind IN ('person', 'agent', 'project')", name="kind"),
    sa.CheckConstraint("(kind = 'person') = (owner IS NULL)", name="owner"),
)
some("uq_users_live_name", users, ["tenant", "name"], "removed_at IS NULL", unique=True)

tokens = sa.Table(
    "tokens",
    metadata,
    id_(),
    to("user", "users.id"),
    text("secret_hash"),
    json_("scopes"),
    text("note"),
    time("created_at", nullable=False),
    time("expires_at"),
    time("last_used_at"),
    time("removed_at"),
    sa.Index("ix_tokens_user", "user"),
    sa.UniqueConstraint("secret_hash"),
)

boxes = sa.Table(
    "boxes",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    to("user", "users.id"),
    text("kind"),
    text("driver"),
    text("desired"),
    text("observed"),
    whole("uid"),
    json_("identity", nullable=True),
    json_("limits"),
    text("image"),
    whole("generation"),
    time("created_at", nullable=False),
    time("started_at"),
    time("last_active_at"),
    time("removed_at"),
    sa.Column("installation", sa.Text, nullable=False, server_default=""),  # where its tree is; "": there is only one
    sa.Column("rest", sa.Text, nullable=False, server_default=""),
    time("rested_at"),
    time("quarantined_at"),
    sa.Column("quarantine", sa.Text, nullable=False, server_default=""),
    sa.Column("verb", sa.Text, nullable=False, server_default=""),
    time("verb_until"),
    json_("made_of", nullable=True),
    sa.Column("image_wanted", sa.Text, nullable=False, server_default=""),
    sa.Column("image_bound", sa.Text, nullable=False, server_default=""),
    sa.CheckConstraint("kind IN ('home', 'run', 'skill', 'session', 'scratch', 'probe')", name="kind"),
    sa.CheckConstraint("desired IN ('running', 'stopped', 'removed')", name="desired"),
    sa.CheckConstraint("observed IN ('absent', 'stopped', 'starting', 'running', 'lost')", name="observed"),
    sa.CheckConstraint("identity IS NULL OR observed = 'running'", name="identity"),
    sa.CheckConstraint("removed_at IS NULL OR desired = 'removed'", name="removed"),
    sa.CheckConstraint("uid >= 0", name="uid"),
    sa.Index("ix_boxes_tenant", "tenant"),
)
some("uq_boxes_home", boxes, ["tenant", "user"], "kind = 'home' AND desired <> 'removed'", unique=True)

threads = sa.Table(
    "threads",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    text("name"),
    flag("parallel"),
    whole("cursor"),  # of the newest event; 0 when there is none
    time("created_at", nullable=False),
    time("removed_at"),
    sa.CheckConstraint("cursor >= 0", name="cursor"),
)
some("uq_threads_live_name", threads, ["tenant", "name"], "removed_at IS NULL", unique=True)

members = sa.Table(
    "members",
    metadata,
    to("thread", "threads.id", primary_key=True),
    to("user", "users.id", primary_key=True),
    sa.Index("ix_members_user", "user"),
)

messages = sa.Table(
    "messages",
    metadata,
    id_(),
    to("thread", "threads.id"),
    text("turn"),
    to("author", "users.id", nullable=True),
    text("author_name"),
    text("text"),
    whole("cursor"),
    json_("attachments", nullable=True),  # [{"path", "size"}]; NULL when there are none
    flag("steer"),  # said to a turn that was there already
    time("created_at", nullable=False),
    sa.CheckConstraint("NOT steer OR author IS NOT NULL", name="steer"),
    sa.Index("uq_messages_cursor", "thread", "cursor", unique=True),
)
STEER = "steer"  # a query must say it in this word to be given the index, which other messages cost nothing
some("ix_messages_steer", messages, ["turn", "cursor"], STEER)

summaries = sa.Table(
    "summaries",
    metadata,
    to("thread", "threads.id", primary_key=True),
    to("actor", "users.id", primary_key=True),
    whole("cursor"),
    text("text"),
    time("created_at", nullable=False),
    sa.CheckConstraint("cursor >= 1", name="cursor"),
)

glass = sa.Table(
    "glass",
    metadata,
    to("thread", "threads.id", primary_key=True),
    text("via", primary_key=True),  # Actor.via of the operator
    text("reason"),
    time("opened_at", nullable=False),
    time("closes_at", nullable=False),
)

turns = sa.Table(
    "turns",
    metadata,
    id_(),
    to("thread", "threads.id"),
    to("actor", "users.id"),
    to("message", "messages.id"),
    text("lane"),
    text("state"),
    text("reason"),
    text("reply", nullable=True),
    text("run", nullable=True),
    time("created_at", nullable=False),
    time("ended_at"),
    sa.CheckConstraint("state IN ('queued', 'running', 'parked', 'completed', 'failed', 'cancelled')", name="state"),
)

runs = sa.Table(
    "runs",
    metadata,
    id_(),
    to("turn", "turns.id"),
    to("tenant", "tenants.id"),
    to("thread", "threads.id"),
    to("actor", "users.id"),
    text("lane"),
    whole("position"),  # the cursor of the turn's message: the order of a lane
    to("box", "boxes.id", nullable=True),
    text("state"),
    text("reason"),
    whole("epoch"),
    whole("attempts"),
    text("worker", nullable=True),
    time("lease_until"),
    time("not_before"),
    text("token_hash"),
    flag("cancel_requested"),
    text("guest_digest", nullable=True),
    seconds("worked"),
    time("created_at", nullable=False),
    time("started_at"),
    time("ended_at"),
    # Its box has another tree than it worked on; until the redrive table has looked (trees.py).
    sa.Column("other_tree", sa.Boolean, nullable=False, server_default=sa.false()),
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
some("ix_runs_live", runs, ["lane", "position"], LIVE)
some("uq_runs_lane", runs, ["lane"], RUNNING, unique=True)

steps = sa.Table(
    "steps",
    metadata,
    to("run", "runs.id", primary_key=True),
    whole("n", primary_key=True),
    text("tool"),
    json_("arguments"),
    text("digest"),
    text("effect"),
    text("state"),
    json_("result", nullable=True),
    time("begun_at", nullable=False),
    time("ended_at"),
    sa.CheckConstraint("n >= 1", name="n"),
    sa.CheckConstraint("effect IN ('pure', 'idempotent', 'once', 'local')", name="effect"),
    sa.CheckConstraint("state IN ('begun', 'ended', 'interrupted')", name="state"),
    sa.CheckConstraint("(state = 'begun') = (result IS NULL)", name="result"),
)
BEGUN = "state = 'begun'"  # in these words: a run's end looks for what is under way, past 256 KiB of each other step
some("ix_steps_begun", steps, ["run"], BEGUN)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    to("run", "runs.id", primary_key=True),
    text("boundary"),
    whole("step"),
    whole("cursor"),
    text("state"),
    json_("blobs"),  # digests that the state refers to
    time("created_at", nullable=False),
)

blobs = sa.Table(
    "blobs",
    metadata,
    to("run", "runs.id", primary_key=True),
    text("digest", primary_key=True),  # SHA-256 of the whole in hex, as the run says
    to("actor", "users.id"),  # of the run
    whole("size"),  # bytes of the whole
    whole("held"),  # bytes that are here
    text("made"),  # an id of this row: what was checked is still the same when it is
    flag("checked"),  # the digest is right
    sa.CheckConstraint("held <= size", name="held"),
    sa.CheckConstraint("NOT checked OR held = size", name="checked"),
    sa.Index("ix_blobs_actor", "actor", "size"),  # a user's sum is read from the index alone
)

blob_chunks = sa.Table(
    "blob_chunks",
    metadata,
    text("run", primary_key=True),
    text("digest", primary_key=True),
    whole("n", primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["run", "digest"], ["blobs.run", "blobs.digest"], ondelete="CASCADE"),
    sa.CheckConstraint("n >= 0", name="n"),
)

events = sa.Table(
    "events",
    metadata,
    to("thread", "threads.id", primary_key=True),
    whole("cursor", primary_key=True),
    text("kind"),
    text("actor", nullable=True),
    text("turn", nullable=True),
    text("run", nullable=True),
    json_("body"),
    time("created_at", nullable=False),
    sa.CheckConstraint("cursor >= 1", name="cursor"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    to("tenant", "tenants.id", primary_key=True),
    to("actor", "users.id", primary_key=True),
    text("key", primary_key=True),
    text("body_hash"),
    to("message", "messages.id"),
    time("created_at", nullable=False),
    sa.Index("ix_idempotency_created_at", "created_at"),
)

# The audit of the releases that had one chain: what is in it is read, and only they write it.
audit = sa.Table(
    "audit",
    metadata,
    whole("seq", primary_key=True),
    time("at", nullable=False),
    json_("actor", nullable=True),
    text("action"),
    text("subject"),
    json_("details"),
    text("previous"),
    text("hash"),
    sa.CheckConstraint("seq >= 1", name="seq"),
)

audit_head = sa.Table(
    "audit_head",
    metadata,
    whole("id", primary_key=True),
    whole("seq"),
    text("hash"),
    sa.CheckConstraint("id = 1", name="one"),
)

audit_chains = sa.Table(
    "audit_chains",
    metadata,
    id_("chain"),  # the kernel process that writes it
    whole("generation"),
    text("key"),  # id of the key that made its MACs; empty: none
    time("opened_at", nullable=False),
    time("seen_at", nullable=False),  # by the clock that leases count
    whole("seq"),
    text("hash"),
    whole("news"),  # seq of the newest row that is more than a signature of other heads
    flag("ended"),
    text("closed_by", nullable=True),
    whole("cut_seq"),
    text("cut_hash"),
    text("mac"),
    sa.CheckConstraint("seq >= 0 AND cut_seq >= 0 AND cut_seq <= seq", name="seq"),
    sa.Index("ix_audit_chains_closed_by", "closed_by"),
)

audit_rows = sa.Table(
    "audit_rows",
    metadata,
    id_("chain"),  # of no foreign key: rows whose chain is not there are to be found, not to be impossible
    whole("seq", primary_key=True),
    time("at", nullable=False),
    text("lane"),
    json_("actor", nullable=True),
    text("action"),
    text("subject"),
    text("ref", nullable=True),  # of an outcome: the id of its intent
    json_("details"),
    text("previous"),
    text("hash"),
    text("mac"),
    sa.CheckConstraint("seq >= 1", name="seq"),
    sa.CheckConstraint("lane IN ('act', 'release', 'intent', 'chain')", name="lane"),
    sa.Index("ix_audit_rows_at", "at"),
    sa.Index("ix_audit_rows_ref", "ref"),
)

kernels = sa.Table(
    "kernels",
    metadata,
    id_("worker"),
    text("version"),
    text("schema_from"),  # the oldest schema that it runs on, and the newest that it knows
    text("schema_to"),
    text("installation"),
    time("started_at", nullable=False),
    time("seen_at", nullable=False),  # by the clock that leases count
    time("ended_at"),
)

generations = sa.Table(
    "generations",
    metadata,
    whole("number", primary_key=True),
    time("began_at", nullable=False),
    json_("source", nullable=True),  # the backup that it was restored from; NULL for the first
    sa.CheckConstraint("number >= 1", name="number"),
)

cuts = sa.Table(
    "cuts",
    metadata,
    to("thread", "threads.id", primary_key=True),
    whole("kept_from"),  # the first cursor whose event is kept
    time("cut_at", nullable=False),
    sa.CheckConstraint("kept_from >= 1", name="kept_from"),
)

# Alembic's own: the newest revision, expansions included. Made by migrate.py.
schema_expanded = sa.Table(
    "ringfence_schema_expanded", metadata, sa.Column("version_num", sa.String(32), nullable=False)
)
sa.PrimaryKeyConstraint(schema_expanded.c.version_num, name="ringfence_schema_expanded_pkc")
