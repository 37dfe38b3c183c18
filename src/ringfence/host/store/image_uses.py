"""Which boxes have something to do with which image, for `ringfence image ls` and `rm`. Reads only."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.boxes import Observed
from ringfence.host.store.schema import boxes, tenants, users


def image_uses(connection: Connection, installation: str) -> dict[str, Any]:
    """{"boxes": kernel.images.Use of each box of this installation that is there, also of one that is to go}."""
    query = (
        sa.select(
            boxes.c.id,
            boxes.c.observed,
            boxes.c.image,
            boxes.c.image_wanted,
            boxes.c.image_bound,
            users.c.name.label("whose"),
            tenants.c.name.label("of"),
        )
        .join(users, users.c.id == boxes.c.user)
        .join(tenants, tenants.c.id == boxes.c.tenant)
        .where(boxes.c.removed_at.is_(None))
        .where(boxes.c.installation.in_(("", installation)))
        .order_by(boxes.c.created_at, boxes.c.id)
    )
    return {
        "boxes": [
            {
                "box": row.id,
                "tenant": row.of,
                "user": row.whose,
                "wanted": row.image_wanted,
                "bound": row.image_bound,
                "runs": row.image if row.observed in (Observed.RUNNING.value, Observed.LOST.value) else "",
            }
            for row in connection.execute(query)
        ]
    }
