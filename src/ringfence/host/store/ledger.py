"""The tables of gates, their answers, and of effects: the second part of the schema (schema.py is the first).

Must never be used to create them: migrations/ does that. An approval is used once: `uq_effects_gate` says so to whoever
forgets to look at the gate's state.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.store.columns import flag, json_, some, text, time, to, whole
from ringfence.host.store.schema import metadata

OPEN = "state = 'open'"  # a query must say it in these words to be given the index
PENDING = "state IN ('open', 'allowed')"

gates = sa.Table(
    "gates",
    metadata,
    text("id", primary_key=True),
    to("tenant", "tenants.id"),
    to("user", "users.id"),
    to("owner", "users.id", nullable=True),
    to("thread", "threads.id"),
    text("turn"),
    to("run", "runs.id"),
    whole("n"),
    text("kind"),
    text("tool"),
    json_("arguments"),
    text("digest"),
    text("policy"),
    text("sealed"),
    json_("shown"),
    json_("obligations"),
    flag("wall"),
    text("mac"),
    time("created_at", nullable=False),
    time("expires_at"),
    text("state"),
    text("reason"),
    text("answer", nullable=True),
    to("answered_by", "users.id", nullable=True),
    text("answered_via"),
    time("answered_at"),
    text("answer_mac"),
    time("used_at"),
    sa.CheckConstraint("n >= 1", name="n"),
    sa.CheckConstraint("kind IN ('approval', 'auth', 'setup', 'in_doubt')", name="kind"),
    sa.CheckConstraint("state IN ('open', 'allowed', 'denied', 'expired', 'cancelled', 'used')", name="state"),
    sa.CheckConstraint("(answered_at IS NULL) = (answer IS NULL)", name="answered"),
    sa.CheckConstraint("(state = 'used') = (used_at IS NOT NULL)", name="used"),
    sa.CheckConstraint("state <> 'open' OR answer IS NULL", name="open"),
    sa.Index("ix_gates_run", "run", "n"),
    sa.Index("ix_gates_user", "user", "created_at"),
    sa.Index("ix_gates_owner", "owner", "created_at"),
)
some("uq_gates_step", gates, ["run", "n"], PENDING, unique=True)  # one question of a step at a time
some("ix_gates_open", gates, ["expires_at"], OPEN)

gate_answers = sa.Table(
    "gate_answers",
    metadata,
    to("gate", "gates.id", primary_key=True),
    text("key", primary_key=True),
    text("answer"),
    to("by", "users.id"),
    text("via"),
    time("at", nullable=False),
)

effects = sa.Table(
    "effects",
    metadata,
    to("run", "runs.id", primary_key=True),
    whole("n", primary_key=True),
    to("user", "users.id"),
    text("capability"),
    text("key"),
    json_("arguments"),
    text("digest"),
    text("sealed"),
    text("policy"),
    to("gate", "gates.id", nullable=True),
    text("state"),
    json_("outcome"),
    whole("epoch"),
    whole("tries"),
    text("intent", nullable=True),
    time("intended_at", nullable=False),
    time("sent_at"),
    time("ended_at"),
    sa.CheckConstraint("n >= 1", name="n"),
    sa.CheckConstraint("tries >= 0", name="tries"),
    sa.CheckConstraint("state IN ('intended', 'sent', 'done', 'not_done', 'unknown')", name="state"),
    sa.CheckConstraint("(state IN ('done', 'not_done')) = (ended_at IS NOT NULL)", name="ended"),
    sa.Index("uq_effects_key", "key", unique=True),
    sa.Index("uq_effects_gate", "gate", unique=True),  # NULLs are not equal to each other
)
