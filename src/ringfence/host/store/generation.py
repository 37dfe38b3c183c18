"""The generation of a store: 1, and one more with each backup that was put back. It must never go back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.store.schema import generations


def generation_of(connection: Connection) -> int:
    """1 also for a database of the first release, which had none."""
    if generations.name not in sa.inspect(connection).get_table_names():
        return 1
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(generations.c.number), 1))).scalar_one())


def begin_generation(connection: Connection, number: int, at: datetime, source: Mapping[str, Any]) -> None:
    connection.execute(sa.insert(generations).values(number=number, began_at=at, source=dict(source)))
