"""Kernel processes over one SQLite file: the real store and engine, started, killed, stopped and continued.

The connections belong to the simulation, not to a kernel: a crash rolls back what is under way and leaves the file as a kill would, and the
statements that SQLAlchemy has compiled are kept. The file is on whatever volume it is on; a loss of power is not simulated.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import event, exc
from sqlalchemy.engine import make_url

from ringfence.host.engine.engine import Engine
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.failpoints import Again, Point
from ringfence.host.kernel.onward import Onward
from ringfence.host.store import transaction
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.database import Database
from ringfence.host.store.dialect import LeaseClock
from ringfence.host.store.engine import Engines
from ringfence.host.store.pools import ThreadPool
from ringfence.host.store.sqlite import Sqlite
from ringfence.host.store.store import SqlStore
from tests.support.engine_rig import CONFIG
from tests.support.kernel_process import AnywhereDriver, NumbersOf
from tests.support.paying import KEY
from tests.support.sim.boxes import SimBroker, SimWorld
from tests.support.sim.chance import Chance
from tests.support.sim.loop import PROCESS, Crash, Process, VirtualLoop
from tests.support.store_work import KEYS

FILE = "ringfence.db"  # in the working directory, so that one compiled engine serves the files of many seeds
CONF = replace(
    CONFIG,
    adopt_seconds=3.0,
    sweep_seconds=1.0,
    heartbeat_seconds=5.0,
    active_seconds=10.0,
    watch_seconds=1.0,
    leave_seconds=2.0,
    model_timeout_seconds=15.0,
)


class Files:
    """The connections to `FILE` of a seed, and of the seeds after it."""

    def __init__(self) -> None:
        self.dialect = Sqlite(make_url(f"sqlite+pysqlite:///{FILE}"), 0.0)  # its pools never make it absolute
        self.engines = Engines(self.dialect, self.dialect.pool("write"), self.dialect.pool("read"))

    def blame(self, told: Any) -> None:
        """`told(run, epoch)`: of each row that is written, from now on."""
        pool = self.engines.write
        assert isinstance(pool, ThreadPool)

        def connected(connection: Any, record: object) -> None:
            connection.create_function("sim_wrote", 3, told)

        event.listen(pool._engine, "connect", connected)

    def forget(self) -> None:
        """Opens the file anew: it is another one."""
        for pool in (self.engines.write, self.engines.read):
            assert isinstance(pool, ThreadPool)
            pool._engine.dispose()


class SimClock:
    """kernel.ports.Clock. `jump` moves the wall only."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop, self.wall = loop, timedelta()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._loop.time()) + self.wall

    def monotonic(self) -> float:
        return self._loop.time()


class Trouble:
    """kernel.failpoints.Failpoints of one kernel."""

    def __init__(self, process: Process, chance: Chance) -> None:
        self._process, self._chance = process, chance
        self.crash_in = 0  # reaches from now; 0: never
        self.store = ""  # busy or full: how each commit fails
        self.twice = self.late = 0.0  # share of what is sent to a box that is sent twice, or late

    def reach(self, point: Point, detail: str = "") -> None:
        if self._due(point, detail):
            raise Crash
        if point is Point.STORE_COMMIT_BEFORE and self.store:
            words, code = _STORE[self.store]
            error = sqlite3.OperationalError(words)
            error.sqlite_errorcode = code
            raise exc.DBAPIError.instance("COMMIT", None, error, sqlite3.Error)

    async def areach(self, point: Point, detail: str = "", again: Again | None = None) -> None:
        if self._due(point, detail):
            self._process.die()
            await asyncio.get_running_loop().create_future()
        if point is not Point.WIRE_SEND_BEFORE:
            return
        if self._chance.happens(self.late):
            await asyncio.sleep(self._chance.between(0, 3))
        if again is not None and self._chance.happens(self.twice):
            self._chance.note(f"twice: {detail}")
            await again()

    def _due(self, point: Point, detail: str) -> bool:
        if self.crash_in:
            self.crash_in -= 1
            if not self.crash_in:
                self._chance.note(f"crash of {self._process.name} at {point.value} {detail}")
                return True
        return False


_STORE = {
    "busy": ("database is locked", sqlite3.SQLITE_BUSY),
    "full": ("database or disk is full", sqlite3.SQLITE_FULL),
}


class Kernel:
    """One kernel process, from its start to its death."""

    def __init__(self, number: int, loop: VirtualLoop, clock: SimClock, chance: Chance) -> None:
        self.number, self._clock, self._chance = number, clock, chance
        self.process = Process(loop, f"kernel {number}")
        self.trouble = Trouble(self.process, chance)
        self.ids = NumbersOf(number)
        self.up = asyncio.Event()
        self.store: SqlStore
        self.engine: Engine

    async def start(self, files: Files, world: SimWorld, parts: Mapping[str, Any]) -> None:
        """In its own context. A store that refuses now is the end of it, as it would be of `serve`."""
        self.process.kernel = self
        try:
            await self._open(files, world, parts)
        except RingfenceError as error:
            self._chance.note(f"{self.process.name} does not start: {error.code}")
            self.process.die()
            return
        self.up.set()

    async def _open(self, files: Files, world: SimWorld, parts: Mapping[str, Any]) -> None:
        clock, ids = self._clock, self.ids
        shared = transaction.World(
            files.dialect,
            clock,
            LeaseClock(clock),
            Onward(clock),
            ids,
            installation=CONFIG.installation,
            failpoints=self.trouble,
        )
        worker = ids.new("krn")
        self.store = SqlStore(Database(files.engines, shared), Signer(worker, KEYS))
        await self.store.audit.open()
        made = Parts(
            self.store,
            AnywhereDriver(world),
            SimBroker(world),
            parts["models"],
            clock,
            ids,
            CONF,
            worker,
            capabilities=parts["capabilities"],
            policy=parts["policy"],
            gate_key=KEY,
            failpoints=self.trouble,
        )
        self.engine = Engine(made)
        await self.engine.start()


def writer() -> Kernel | None:
    """Whose code is running."""
    process = PROCESS.get()
    return process.kernel if process is not None else None
