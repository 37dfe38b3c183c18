"""The tables of copies of trees, and of what boxes used day by day: the fourth part of the schema.

Must never be used to create them: migrations/ does that.
"""

from __future__ import annotations

import sqlalchemy as sa

from ringfence.host.store.columns import id_, some, text, time, to, whole
from ringfence.host.store.schema import metadata

KEPT = "removed_at IS NULL"  # a query must say it in these words to be given the index

snapshots = sa.Table(
    "snapshots",
    metadata,
    id_(),
    to("tenant", "tenants.id"),
    to("user", "users.id"),  # whose tree it is of; who may have it
    to("box", "boxes.id"),
    text("name"),  # "" when it has none
    text(
        "kind"
    ),  # asked (by a person), archive (of a box at rest), before (a reset or restore, so that it can be undone)
    text("state"),  # making, whole
    text("image"),
    text("installation"),  # where its file is
    whole("entries"),
    whole("bytes"),  # of content
    whole("stored"),  # bytes of its file
    text("digest"),  # SHA-256 of its file, in hex; "" while it is made
    time("created_at", nullable=False),
    time("removed_at"),
    sa.CheckConstraint("kind IN ('asked', 'archive', 'before')", name="kind"),
    sa.CheckConstraint("state IN ('making', 'whole')", name="state"),
    sa.CheckConstraint("entries >= 0 AND bytes >= 0 AND stored >= 0", name="sizes"),
    sa.Index("ix_snapshots_box", "box", "created_at"),
)
some("uq_snapshots_name", snapshots, ["user", "name"], f"{KEPT} AND name <> ''", unique=True)
some("uq_snapshots_archive", snapshots, ["box"], f"{KEPT} AND kind = 'archive' AND state = 'whole'", unique=True)

box_days = sa.Table(
    "box_days",
    metadata,
    text("day", primary_key=True),  # ISO 8601, UTC
    to("box", "boxes.id", primary_key=True),
    to("tenant", "tenants.id"),
    to("user", "users.id"),
    whole("active_ms"),  # at work: a command, terminal or run
    whole("running_ms"),  # with processes that are not frozen
    whole("cpu_ms"),
    whole("memory_mib_ms"),  # MiB of memory in use times ms
    whole("disk_mib_ms"),
    whole("egress_up"),  # bytes
    whole("egress_down"),
    whole("starts"),
    whole("pauses"),
    sa.Index("ix_box_days_user", "user", "day"),
    sa.Index("ix_box_days_tenant", "tenant", "day"),
)

# How far each box is counted: with the amounts of box_days, in one transaction.
box_meters = sa.Table(
    "box_meters",
    metadata,
    to("box", "boxes.id", primary_key=True),
    whole("at_ms"),  # monotonic, of the boot that `of` names
    text("of"),  # which start of the box, and of which boot; "" when it did not run
    whole("cpu_usec"),  # of its counter, so much is counted
    text("batch"),  # that was written last
)
