"""What a write function is given: the connection inside a transaction, clocks, ids, and a list of what it touched.

A write function is plain code `(Tx) -> T` that may be rolled back and must not be seen from outside before it returns:
it never waits, sends, or keeps the Tx.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.engine import Connection

from ringfence.host.kernel.ids import ThreadId
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.store.dialects import Dialect, LeaseClock


@dataclass(frozen=True, slots=True)
class World:
    """What every transaction shares."""

    dialect: Dialect
    clock: Clock
    lease_clock: LeaseClock
    onward: Onward
    ids: Ids


@dataclass(frozen=True, slots=True)
class Tx:
    connection: Connection
    world: World
    grown: dict[ThreadId, int] = field(default_factory=dict)  # threads that got an event: cursor of the newest

    def now(self) -> datetime:
        """For what people read."""
        return self.world.clock.now()

    def onward_now(self) -> datetime:
        """For what expires."""
        return self.world.onward.now()

    def lease_now(self) -> datetime:
        """For leases and back-offs."""
        return self.world.dialect.lease_now(self.connection, self.world.lease_clock)

    def new_id(self, prefix: str) -> str:
        return self.world.ids.new(prefix)
