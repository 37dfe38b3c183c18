"""One seed: people at work, faults, then quiet, then the verdict."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ringfence.host.kernel.audit_check import Report
from ringfence.host.kernel.capabilities import register
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.runs import RUN_FINAL, Effect
from tests.support import invariants
from tests.support.databases import outside
from tests.support.oracle import EffectLog
from tests.support.paying import ALLOW, ASK
from tests.support.sim.boxes import SimWorld
from tests.support.sim.chance import Chance
from tests.support.sim.kernel import Files, Kernel, SimClock, writer
from tests.support.sim.loop import VirtualLoop
from tests.support.sim.outside import NOTE, PAY, Hook, Receiver, SimModel
from tests.support.sim.people import People

QUIET = (
    3600.0  # virtual seconds in which everything has to come to its end: three attempts and their leases take minutes
)


@dataclass(frozen=True)
class Verdict:
    seed: int
    faults: int
    digest: str  # of the trace, of the database and of what the outside saw
    wrong: tuple[str, ...]
    trace: tuple[str, ...]


class Story:
    def __init__(self, seed: int, faults: int, loop: VirtualLoop, chance: Chance, folder: Path, files: Files) -> None:
        self.seed, self._faults, self._loop, self.chance, self._folder = seed, faults, loop, chance, folder
        self._files = files
        self.clock = SimClock(loop)
        self.world = SimWorld(folder / "world", chance)
        self.log = EffectLog(folder / "effects.log")
        self.receiver = Receiver(self.log, chance)
        self.model = SimModel(chance)
        self._asks = chance.happens(0.4)
        self._kernels = self._acting = 0
        self._parts: dict[str, Any] = {
            "models": {"scripted": self.model},
            "policy": ASK if self._asks else ALLOW,
            "capabilities": register(
                [Hook(self.receiver, PAY, Effect.ONCE), Hook(self.receiver, NOTE, Effect.IDEMPOTENT)]
            ),
        }
        self.wrong: list[str] = []
        self.kernel: Kernel | None = None
        self._news = asyncio.Event()
        self.people: People

    # --- kernels -------------------------------------------------------------------------------------------------

    async def some_kernel(self) -> Kernel:
        while True:
            kernel = self.kernel
            if kernel is not None and kernel.up.is_set() and kernel.process.state == "runs":
                return kernel
            self._news.clear()
            await self._news.wait()

    async def _serve(self) -> None:
        """As an init would: another kernel whenever there is none."""
        while True:
            self._kernels += 1
            kernel = self.kernel = Kernel(self._kernels, self._loop, self.clock, self.chance)
            kernel.process.begin(kernel.start(self._files, self.world, self._parts))
            self.world.tasks.go(self._tell(kernel))
            self.world.tasks.go(self._bury(kernel))
            while kernel.process.state == "runs":
                await asyncio.sleep(0.1)
            await asyncio.sleep(self.chance.weighted(((0.1, 4), (5.0, 2), (40.0, 1))))

    async def _tell(self, kernel: Kernel) -> None:
        await kernel.up.wait()
        self._news.set()

    async def _bury(self, kernel: Kernel) -> None:
        await kernel.process.gone.wait()
        self.world.cut_off(kernel.process)

    # --- faults --------------------------------------------------------------------------------------------------

    async def _fault(self) -> None:
        kinds = (
            ("crash", 5), ("box", 2), ("restored", 1), ("loop", 2), ("wire", 3), ("wall clock", 1), ("stopped", 3),
            ("store", 2), ("receiver", 3), ("model", 2), ("frames", 2),
        )  # fmt: skip
        kind = self.chance.weighted(kinds)
        self.chance.note(f"fault: {kind}")
        boxes = sorted(box.id for box in self.world.boxes.values())
        kernel = self.kernel
        if kernel is None or kernel.process.state != "runs":
            return
        if kind == "crash":
            kernel.trouble.crash_in = self.chance.count(1, 40)
        elif kind == "stopped":
            await self._stopped(kernel)
        elif kind == "wall clock":
            self.clock.wall += timedelta(seconds=self.chance.one((3600, -3600, 90, -90)))
        elif kind in ("store", "frames"):
            self.world.tasks.go(self._kernel_trouble(kernel, kind))
        elif kind in ("receiver", "model"):
            self.world.tasks.go(self._outside_trouble(kind))
        elif boxes:
            await self._box_fault(kind, self.chance.one(boxes))

    async def _box_fault(self, kind: str, box: Any) -> None:
        world = self.world
        if kind == "box":
            await world.kill_box(box)
        elif kind == "restored":
            await world.restore(box)
        elif kind == "wire":
            world.lose_wire(box)
        elif loops := sorted(world.box(box).loops):
            await world.kill_loop(box, self.chance.one(loops))
        world.copy(box)

    async def _stopped(self, kernel: Kernel) -> None:
        """SIGSTOP; another kernel takes over, maybe after the leases have ended; SIGCONT; it is killed at last."""
        for _ in range(40):  # with something in its hands
            if not kernel.up.is_set() or kernel.process.state != "runs":
                return
            if len(kernel.engine._live):
                break
            await asyncio.sleep(0.25)
        await asyncio.sleep(self.chance.between(0, 0.5))
        if kernel.process.state != "runs":
            return
        kernel.process.stop()
        self.world.tasks.go(self._continued(kernel))

    async def _continued(self, kernel: Kernel) -> None:
        await asyncio.sleep(self.chance.weighted(((1.0, 1), (8.0, 2), (50.0, 1))))
        self.chance.note(f"{kernel.process.name} goes on")
        if kernel.process.state == "stopped":
            kernel.process.go_on()
        await asyncio.sleep(self.chance.between(0.5, 4))
        kernel.process.die()

    async def _kernel_trouble(self, kernel: Kernel, kind: str) -> None:
        trouble = kernel.trouble
        if kind == "store":
            trouble.store = self.chance.one(("busy", "full"))
        else:
            trouble.twice, trouble.late = 0.3, 0.3
        await asyncio.sleep(self.chance.between(0.1, 8))
        trouble.store, trouble.twice, trouble.late = "", 0.0, 0.0

    async def _outside_trouble(self, kind: str) -> None:
        receiver = self.receiver
        if kind == "model":
            self.model.trouble = 0.4
        else:
            which = self.chance.one(("down", "forgetful", "trouble"))
            receiver.down, receiver.forgetful = which == "down", which == "forgetful"
            receiver.trouble = 0.7
        await asyncio.sleep(self.chance.between(1, 20))
        self.model.trouble, receiver.trouble = 0.0, 0.1
        receiver.down = receiver.forgetful = False

    # --- the course of it ----------------------------------------------------------------------------------------

    async def play(self, actors: dict[str, Actor]) -> Verdict:
        self.people = People(self, actors)
        self.receiver.trouble = 0.1
        serving = self.world.tasks.go(self._serve())
        for number in range(self._faults):
            for _ in range(self.chance.weighted(((1, 3), (2, 2)))):
                self.world.tasks.go(self._act())
            if number:
                await self._fault()
            await asyncio.sleep(self.chance.weighted(((0.3, 3), (2.0, 3), (12.0, 1))))
        self._faults_off()
        await self._quiet()
        self.wrong += await self._chains()
        serving.cancel()
        self.wrong += self.people.wrong
        return self._verdict()

    async def _act(self) -> None:
        acts: list[tuple[Callable[[], Awaitable[object]], int]] = [
            (self.people.say, 6),
            (self.people.cancel, 1),
            (self.people.answer, 3),
        ]
        act = self.chance.weighted(acts)
        self._acting += 1
        await asyncio.sleep(self.chance.between(0, 1))
        await act()
        self._acting -= 1

    def _faults_off(self) -> None:
        self.chance.note("faults are off")
        self.model.trouble = self.receiver.trouble = 0.0
        if self.kernel is not None:
            self.kernel.trouble.crash_in = 0

    async def _quiet(self) -> None:
        """Until everybody has had their answer and every run is over; people answer whatever waits for them."""
        until = self._loop.time() + QUIET
        while self._loop.time() < until:
            await asyncio.sleep(8)
            if self.kernel is not None:
                self.kernel.trouble.crash_in = 0
            asked = await self.people.answer(all_of_them=True)
            rows = outside(self._folder, "SELECT state FROM runs")
            if (
                not asked
                and not self._acting
                and all(str(row[0]) in [state.value for state in RUN_FINAL] for row in rows)
            ):
                await asyncio.sleep(15)
                return
        self.wrong.append("it does not come to an end")

    async def _chains(self) -> list[str]:
        """Those of the audit, of every kernel that there was."""
        report = await self.people.called(lambda kernel: kernel.store.audit.verify())
        if not isinstance(report, Report):
            return [f"I2: the chains of the audit cannot be read: {report!r}"]
        return [] if report.ok else [f"I2: the chains of the audit: {report.as_json()}"]

    def broken_off(self, why: str) -> Verdict:
        """Of a seed that has no end."""
        return Verdict(self.seed, self._faults, self.chance.digest(), (*self.wrong, why), tuple(self.chance.trace))

    def _verdict(self) -> Verdict:
        wrong = [*self.wrong, *invariants.after(self._folder, self.log, self.people.acks, self._asks), *self._once()]
        facts = repr(invariants.read(self._folder))
        log = self.log.path.read_text() if self.log.path.exists() else ""
        digest = hashlib.sha256("\n".join([self.chance.digest(), facts, log, *wrong]).encode()).hexdigest()
        return Verdict(self.seed, self._faults, digest, tuple(wrong), tuple(self.chance.trace))

    def _once(self) -> list[str]:
        texts = [str(row[0]) for row in outside(self._folder, "SELECT text FROM messages WHERE text LIKE 'text %'")]
        found = [f"I2: {text!r} has one key and is there {texts.count(text)} times" for text in sorted(set(texts))
                 if texts.count(text) > 1]  # fmt: skip
        found += [f"I1: {text!r} was acknowledged and is not there" for text in self.people.texts if text not in texts]
        keys = self.world.spawned
        return found + [
            f"I4: {key} was started {keys.count(key)} times" for key in sorted(set(keys)) if keys.count(key) > 1
        ]

    # --- what must not happen on the way -------------------------------------------------------------------------

    def wrote(self, what: str, run: str, epoch: int) -> int:
        """I5: whoever holds a run at an older epoch than the run has now has written for it."""
        kernel = writer()
        held = kernel.engine._live.get(run) if kernel is not None and kernel.up.is_set() else None  # type: ignore[arg-type]
        if held is not None and held.epoch < epoch:
            self.wrong.append(
                f"I5: {kernel and kernel.process.name} at epoch {held.epoch} wrote {what} of {run} at {epoch}"
            )
        return 0


class Alarm(logging.Handler):
    """A task of the engine that was ended by what nobody expected."""

    def __init__(self, story: Story) -> None:
        super().__init__(logging.ERROR)
        self._story = story

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, RingfenceError):
            self._story.wrong.append(f"{record.getMessage()}: {error!r}")
