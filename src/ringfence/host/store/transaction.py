"""What a write function is given: the connection inside a transaction, clocks, ids, and a list of what it touched.

A write function is plain code `(Tx) -> T` that may be rolled back and must not be seen from outside before it returns:
it never waits, sends, or keeps the Tx.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.failpoints import Failpoints, Quiet
from ringfence.host.kernel.ids import ThreadId
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.outward.rolls import Seals
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.store.dialect import Dialect, LeaseClock
from ringfence.host.store.unkeyed import Unkeyed

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741


@dataclass(frozen=True, slots=True)
class World:
    """What every transaction shares."""

    dialect: Dialect
    clock: Clock
    lease_clock: LeaseClock
    onward: Onward
    ids: Ids
    keep_keys: timedelta = timedelta(days=7)  # how long an idempotency key stands for its message
    installation: str = ""  # whose boxes are here; "": there is only one
    failpoints: Failpoints = field(default_factory=Quiet)
    seals: Seals = field(default_factory=Unkeyed)  # of rolls


@dataclass(frozen=True, slots=True)
class Tx:
    connection: Connection
    world: World
    grown: dict[ThreadId, int] = field(default_factory=dict)  # threads that got an event: cursor of the newest
    offered: set[str] = field(default_factory=set)  # other installations that may have a run to claim now; "": each

    def now(self) -> datetime:
        """For what people read."""
        return self.world.clock.now()

    def onward_now(self) -> datetime:
        """For what expires."""
        return self.world.onward.now()

    def lease_now(self) -> datetime:
        """For leases and back-offs."""
        now = self.world.dialect.lease_now(self.connection, self.world.lease_clock)
        self.world.onward.hear(now)
        return now

    def new_id(self, prefix: str) -> str:
        return self.world.ids.new(prefix)

    def lock(self, name: str) -> None:
        """Whoever else takes the lock of this name waits for our commit. Before any row is touched; SQLite: nothing."""
        self.world.dialect.lock(self.connection, name)


@dataclass(frozen=True, slots=True)
class Alike(Generic[I, A]):
    """A write function of which many callers want the same at once: neighbours of one batch are done in one call.

    `each` gives an answer for each item, or the error that its caller is to have, and leaves nothing of that item behind.
    What it raises is of all of them: then each is tried by itself.
    """

    each: Callable[[Tx, Sequence[I]], Sequence[A | RingfenceError]]
    item: I

    def __call__(self, tx: Tx) -> A:
        (answer,) = self.each(tx, (self.item,))
        if isinstance(answer, RingfenceError):
            raise answer
        return answer
