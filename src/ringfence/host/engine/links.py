"""The map from a box to its wire, and what the engine remembers of a running box. Dials and attaches; starts nothing.

A slot lives as long as its box, or the server: it is the place where everybody who wants one box meets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.engine.oom import Kills
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.wire_out import WireOut
from ringfence.host.kernel.errors import BoxLost, Busy, Conflict, DiskFull
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Command, Link, LoopHost

HOLD_SECONDS = 60.0  # that whoever needs a box waits for who has it; a start takes no longer


@dataclass(slots=True, eq=False)
class Slot:
    """One box of this server."""

    box: BoxId
    kills: Kills
    lock: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # held while the box is started, stopped or dialled: `hold`
    doing: str = ""  # by whoever has the lock, for those who wait
    link: Link | None = None
    guest: str = ""  # id of the PID 1 behind the link, new at each start of the box
    keys: set[str] = field(default_factory=set)  # of commands that this guest knows
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # the runs of the newest hello have been looked at
    flight: asyncio.Future[Link] | None = None  # the one start or re-dial that is under way
    dialled_at: float = 0.0  # monotonic: when the newest wire was made
    breaks: int = 0  # wires in a row that ended soon after that
    full: DiskFull | None = None  # why this server stopped the box; until it runs again
    paused: bool = False  # every process of it stands still, or is about to: nobody may begin anything in it
    paused_at: float | None = None  # monotonic: when that began
    quarantined: bool = False  # it is left as it is
    drifted: tuple[str, ...] = ()  # kernel.life.drift
    entering: int = 0  # commands that are being begun in it
    entered: asyncio.Event = field(default_factory=asyncio.Event)  # none is
    replacing: bool = False  # its tree is being put away, or another one in its place: nobody may have files of it
    using_files: int = 0  # who has
    files_free: asyncio.Event = field(default_factory=asyncio.Event)  # nobody has
    cuts: set[Callable[[], None]] = field(default_factory=set)  # each ends the use that somebody makes of its files
    uses: set[str] = field(default_factory=set)  # keys of commands that run in it, as far as this server knows
    started_at: float = 0.0  # monotonic: when it was started, or that many seconds ago by its row
    active_at: float = 0.0  # monotonic; 0 = not since the server's start
    saved_at: float = 0.0  # what of it the store has

    def running(self) -> set[str]:
        """Keys of the commands that ran at the newest hello."""
        return set() if self.link is None else {key for key, at in self.link.hello.commands.items() if at == "running"}

    def wire(self) -> Link | None:
        """The link, while it lives and the box neither stands still nor is in quarantine."""
        held = self.paused or self.quarantined
        return self.link if self.link is not None and self.link.alive and not held else None

    @asynccontextmanager
    async def hold(self, doing: str) -> AsyncIterator[None]:
        """The lock. Busy, with what is being done with the box: it was not let go of for HOLD_SECONDS."""
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await self.lock.acquire()
        except TimeoutError:
            raise Busy(
                f"the box is busy: {self.doing or 'it is being started or stopped'}",
                remedy="try again when that is over: ringfence box show U",
            ) from None
        self.doing = doing
        try:
            yield
        finally:
            self.doing = ""
            self.lock.release()

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Around the begin of a command, from the wire on: a pause waits for it."""
        self.entering += 1
        self.entered.clear()
        try:
            yield
        finally:
            self.entering -= 1
            if not self.entering:
                self.entered.set()

    @contextmanager
    def files(self) -> Iterator[None]:
        """Around any use of its files from the host: who puts another tree in its place waits for that. Conflict: that is being
        done."""
        self._check_in_place()
        self.using_files += 1
        self.files_free.clear()
        try:
            yield
        finally:
            self.using_files -= 1
            if not self.using_files:
                self.files_free.set()

    @contextmanager
    def cuttable(self, cut: Callable[[], None]) -> Iterator[None]:
        """Within `files`: what whoever may not wait ends this use by. Conflict: it has been."""
        self._check_in_place()
        self.cuts.add(cut)
        try:
            yield
        finally:
            self.cuts.discard(cut)

    def _check_in_place(self) -> None:
        if self.replacing:
            raise Conflict("the files of the box are being put away, or replaced", remedy="try again in a moment")

    def occupied(self, key: str, command: Command) -> None:
        """The command runs in it, until it has ended."""
        self.uses.add(key)
        command.on_end(lambda: self.uses.discard(key))


class Links:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._slots: dict[BoxId, Slot] = {}
        self._host: LoopHost | None = None
        self._greet: Callable[[Slot, Link], Awaitable[None]] | None = None

    def serve(self, host: LoopHost, greet: Callable[[Slot, Link], Awaitable[None]]) -> None:
        """Who answers loops, and who looks at the runs that a guest says hello with. Before the first connect."""
        self._host, self._greet = host, greet

    def slot(self, box: BoxId) -> Slot:
        found = self._slots.get(box)
        if found is None:
            found = self._slots[box] = Slot(box, Kills())
            found.settled.set()
            found.entered.set()
            found.files_free.set()
        return found

    def find(self, box: BoxId) -> Slot | None:
        """For who only looks: makes none."""
        return self._slots.get(box)

    def drop(self, slot: Slot) -> None:
        """The box is removed. Whoever has the slot may go on with it. Idempotent."""
        if self._slots.get(slot.box) is slot:
            del self._slots[slot.box]

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    async def connect(self, slot: Slot, identity: Mapping[str, Any]) -> Link:
        """Dials the PID 1 that `identity` names and attaches. The slot's lock is held. BoxLost."""
        assert self._host is not None and self._greet is not None, "serve() comes first"
        slot.settled.clear()
        try:
            fd = await self._parts.driver.dial(slot.box, identity)
            wire = await self._parts.broker.attach(slot.box, fd, self._host)
            link = WireOut(wire, self._parts.failpoints)
            slot.link, slot.guest, slot.keys = link, link.hello.guest, set(link.hello.commands)
            slot.dialled_at = self._parts.clock.monotonic()
            try:
                await self._greet(slot, link)
            except BaseException:
                slot.link = None  # its loops would be answered as strangers: nobody may use this wire
                await link.close()
                raise
            if not link.alive:  # broken while it was greeted: whoever asked is told, for nobody else would dial again
                slot.link = None
                raise BoxLost(f"box {slot.box} ended its wire at once", box=slot.box)
            return link
        finally:
            slot.settled.set()

    async def close(self) -> None:
        """Every wire; the boxes go on."""
        for slot in self:
            link, slot.link = slot.link, None
            if link is not None and link.alive:
                await link.close()
