"""The tables of models: calls and what they used, and sums that budgets are held against. The fourth part of the
schema.

Must never be used to create them: migrations/ does that. `model_spent` has what `model_calls` adds up to; it stays
when old calls are taken away.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.store.columns import id_, some, text, time, to, whole
from ringfence.host.store.schema import metadata

RESERVED = "state = 'reserved'"  # a query must say it in these words to be given the index

model_calls = sa.Table(
    "model_calls",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    to("user", "users.id"),
    to("run", "runs.id", nullable=True),
    text("alias"),
    text("front"),
    text("worker"),  # the kernel process that made it
    text("period"),  # of the user's budget
    text("state"),
    text("outcome"),
    whole("reserved_tokens"),
    whole("reserved_micros"),
    whole("input"),
    whole("output"),
    whole("cache_read"),
    whole("cache_write"),
    whole("micros"),
    time("opened_at", nullable=False),
    time("ended_at"),
    sa.CheckConstraint("state IN ('reserved', 'settled', 'lost')", name="state"),
    sa.CheckConstraint("front IN ('loop', 'openai', 'anthropic')", name="front"),
    sa.CheckConstraint("(state = 'reserved') = (ended_at IS NULL)", name="ended"),
    sa.CheckConstraint("reserved_tokens >= 0 AND reserved_micros >= 0 AND micros >= 0", name="amounts"),
    sa.Index("ix_model_calls_ended_at", "ended_at"),
)
some("ix_model_calls_reserved", model_calls, ["worker"], RESERVED)

model_spent = sa.Table(
    "model_spent",
    metadata,
    text("of", primary_key=True),  # id of a user or of a run
    text("period", primary_key=True),  # a run's is ""
    whole("tokens"),  # that a budget is held against: used, and reserved for calls under way
    whole("micros"),
    whole("calls"),  # those under way too
    whole("input"),  # from here on: used
    whole("output"),
    whole("cache_read"),
    whole("cache_write"),
    whole("paid"),  # micros
    sa.CheckConstraint(
        "input + output + cache_read + cache_write <= tokens AND paid <= micros AND paid >= 0", name="amounts"
    ),
)
