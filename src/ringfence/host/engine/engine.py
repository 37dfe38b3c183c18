"""The engine: every use case, over the ports. Opens nothing itself; app.py hands the parts in.

`start` adopts what runs and begins to work; `stop` lets go of everything and ends nothing: boxes, commands and loops go
on, and the next kernel process finds them.
"""

from __future__ import annotations

import logging

from ringfence.host.engine.activity import Activity
from ringfence.host.engine.advice import Advice
from ringfence.host.engine.asks import Asks, handlers
from ringfence.host.engine.attachments import Attachments
from ringfence.host.engine.audits import Audits
from ringfence.host.engine.boxes import BoxKeeper
from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.cancels import Cancels
from ringfence.host.engine.capability_asks import CapabilityAsks
from ringfence.host.engine.commands import Commands
from ringfence.host.engine.crew import Crew
from ringfence.host.engine.deadlines import Deadlines
from ringfence.host.engine.disk import DiskMeter, DiskWatch
from ringfence.host.engine.doors import Doors
from ringfence.host.engine.doubts import Doubts
from ringfence.host.engine.egress_log import EgressLog
from ringfence.host.engine.egress_rules import EgressKeeper
from ringfence.host.engine.endings import Endings
from ringfence.host.engine.exporting import Exports
from ringfence.host.engine.files import Files
from ringfence.host.engine.findings import Findings
from ringfence.host.engine.gates import Gates
from ringfence.host.engine.greeting import Greeting
from ringfence.host.engine.health import Health
from ringfence.host.engine.history_asks import HistoryAsks
from ringfence.host.engine.holds import Holds
from ringfence.host.engine.leaving import Leaving
from ringfence.host.engine.life.adoption import Adoption
from ringfence.host.engine.life.archives import Archives
from ringfence.host.engine.life.backups import Backups
from ringfence.host.engine.life.copies import Copies
from ringfence.host.engine.life.debris import Debris
from ringfence.host.engine.life.idle import Idle
from ringfence.host.engine.life.logs import LogReader
from ringfence.host.engine.life.presence import Presence
from ringfence.host.engine.life.resting import Resting
from ringfence.host.engine.life.shelving import Shelving
from ringfence.host.engine.life.standing import Standing
from ringfence.host.engine.life.usage import UsageMeter, UsageReports
from ringfence.host.engine.life.verbs import LifeVerbs
from ringfence.host.engine.links import Links, Slot
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.losses import Losses
from ringfence.host.engine.model_asks import ModelAsks
from ringfence.host.engine.outward import Outward
from ringfence.host.engine.parking import Parking
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.people import People
from ringfence.host.engine.reconcile import Reconcile
from ringfence.host.engine.redrive import Redriver
from ringfence.host.engine.runs import Runs
from ringfence.host.engine.secrets import Secrets
from ringfence.host.engine.sending import SendingOut
from ringfence.host.engine.shell import ShellSteps
from ringfence.host.engine.state_asks import StateAsks
from ringfence.host.engine.steering import Steering
from ringfence.host.engine.step_asks import StepAsks
from ringfence.host.engine.sweep import Sweep
from ringfence.host.engine.threads import Threads
from ringfence.host.engine.upkeep import Upkeep
from ringfence.host.engine.vaults import VaultKeeper
from ringfence.host.engine.viewers import Viewers
from ringfence.host.engine.work import Work
from ringfence.host.kernel.boxes import Desired
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId, RunId, UserId
from ringfence.host.kernel.ports import Link


class Engine:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._log = logging.getLogger("ringfence.engine")
        self._stopping = False
        self._crew, self._live, self._links = Crew(), LiveRuns(), Links(parts)
        self._outward = Outward(parts)
        self._viewers = Viewers(parts.store.events.changed)
        self._leaving = Leaving(parts, self._crew, self._live)
        self._parking = Parking(parts, self._live, self._wake, self._stop_loop)
        self._sending = SendingOut(parts, self._crew, self._live)
        self._findings = Findings(parts, self._sending, self._parking)
        self._make_workers(parts)
        self._make_asks(parts)
        self._make_faces(parts)

    def _make_workers(self, parts: Parts) -> None:
        """What runs by itself."""
        doubts = Doubts(parts, self._findings, self._parking)
        self._redriver = Redriver(
            parts, self._crew, self._live, doubts, self._wake, self._freed, self._over, self._leaving.left
        )
        self._sweep = Sweep(parts, self._crew, self._live, self._links, self._redriver, self._wake)
        self._greeting = Greeting(parts, self._crew, self._live, self._redriver, self._carries_on, self._over)
        self._losses = Losses(parts, self._live, self._links, self._redriver, self._leaving)
        self._presence = Presence(parts, self._links, self._live)
        self._bringup = BringUp(parts, self._crew, self._links, self._losses.box_lost, self._outward, self._presence)
        self._resting = Resting(parts, self._bringup, self._presence, self._live, self._redriver, self._outward)
        self._standing = Standing(parts, self._crew, self._bringup, self._presence, self._outward)
        self._shelving = Shelving(parts)
        self._archives = Archives(parts, self._standing, self._shelving, self._bringup.slot)
        self._bringup.ready = self._archives.ready
        self._idle = Idle(parts, self._links, self._bringup, self._presence, self._resting, self._archives.when_idle)
        self._steering = Steering(parts, self._crew, self._live, self._bringup.reachable)
        self._work = Work(
            parts, self._crew, self._live, self._bringup, self._redriver, self._steering, self._leaving, self._begun
        )
        self._cancels = Cancels(parts.clock, self._crew, self._live, self._redriver, self._work.stop_loop)
        self._activity = Activity(parts, self._links)
        self._reconcile = Reconcile(parts, self._bringup, Adoption(parts, self._links, self._bringup))
        self._endings = Endings(parts, self._redriver)
        self._deadlines = Deadlines(
            parts,
            self._crew,
            self._live,
            self._endings,
            self._leaving,
            self._bringup.reachable,
            self._work.stop_loop,
        )
        self._upkeep = Upkeep(parts, self._crew)

    def _make_asks(self, parts: Parts) -> None:
        """What loops may ask."""
        self._shell = ShellSteps(self._crew, self._links, parts.driver, parts.clock, self._outward)
        steps = StepAsks(
            parts,
            self._shell,
            CapabilityAsks(parts, self._crew, self._parking, self._sending, self._findings),
            Advice(parts, self._parking),
            self._endings,
            self._stop_loop,
        )
        model = ModelAsks(parts, self._viewers.publish)
        self._asks = Asks(
            parts,
            self._live,
            self._links,
            self._endings,
            handlers(model, steps, StateAsks(parts), HistoryAsks(parts), self._endings),
            stop=self._stop_loop,
            loop_ended=self._losses.loop_ended,
            link_lost=self._link_lost,
        )
        self._links.serve(self._asks, self._greet)

    def _make_faces(self, parts: Parts) -> None:
        """What people and programs may ask."""
        doors, meter = Doors(parts), DiskMeter(parts)
        self.commands = Commands(parts, self._crew, doors, self._links, self._bringup, self._outward)
        self._disk_watch = DiskWatch(parts, self._links, meter, self._disk_full)
        self.files = Files(parts, doors, self._bringup, meter)
        self.boxes = BoxKeeper(parts, doors, self._links, self._bringup, meter)
        self.life = LifeVerbs(
            parts,
            doors,
            self._bringup,
            self._resting,
            self.boxes,
            self._live,
            self._redriver,
            self._standing,
            self._wake,
        )
        self.copies = Copies(
            parts, self._crew, doors, self.boxes, self._bringup, self._standing, self._shelving, self._archives
        )
        attachments = Attachments(parts, self._bringup)
        self.threads = Threads(parts, doors, self._wake, self._steering.said, self._viewers, attachments)
        self.gates, self.holds = Gates(parts, doors, self._wake), Holds(parts, doors)
        self.runs = Runs(parts, doors, self._cancels.cancelled, self._wake)
        self.audits, self.logs = Audits(parts, doors), LogReader(parts, doors)
        self.secrets, self.vault = Secrets(parts, doors), VaultKeeper(parts, doors)
        self.egress, self.egress_log = EgressKeeper(parts, doors), EgressLog(parts, doors)
        self.backups = Backups(
            parts, self._crew, doors, self._links, self._bringup, self._presence, self._standing, self._shelving
        )
        self.debris = Debris(parts, doors, self._links, self._bringup)
        self.people = People(parts, doors, self._bringup, self._user_removed, self._shelving.purge)
        self._usage, self.usage = (
            UsageMeter(parts, self._links, self._presence.at_work, meter),
            UsageReports(parts, doors),
        )
        self._bringup.leaving = self._usage.look_at
        self.exports = Exports(parts, self._crew, doors, self._bringup, meter)
        self.health = Health(parts, self._crew, self._links, self._live, self._work, self._reconcile)

    @property
    def adopted(self) -> int:
        """Boxes that ran before this server did and are served by it now."""
        return len(self._reconcile.adopted)

    async def start(self) -> None:
        """Returns when every box that runs has been adopted or given up."""
        self._parts.facts.update(await self._parts.driver.facts())
        self.health.started_at = self._parts.clock.now()
        await self._crew.start()
        await self._upkeep.start()
        await self._shelving.begin()
        await self._reconcile.run()
        self._work.start()
        self._sweep.start()
        self._deadlines.start()
        self._crew.keep(self._activity.loop(), "activity")
        self._crew.keep(self._idle.loop(), "rest")
        self._crew.keep(self._idle.archiving(), "archiving")
        self._crew.keep(self._disk_watch.loop(), "disk watch")
        self._crew.keep(self._usage.loop(), "usage")
        self._crew.keep(self._archives.loop(), "copies")
        self._crew.keep(self.audits.loop(), "audit")
        self._crew.keep(self.logs.loop(), "logs")
        self._crew.keep(self.debris.loop(), "debris")
        self._crew.go(self.gates.disown(), "gates of another key")
        self._log.info("%d boxes adopted, %d runs adopted", self.adopted, self._greeting.runs_adopted)

    async def stop(self) -> None:
        """No further claim; leases and boxes are left for the next kernel. Idempotent."""
        if self._stopping:
            return
        self._stopping = self._asks.closing = True
        self._outward.let_go()
        self._work.drain()
        await self._activity.write()
        await self._usage.write()
        await self._crew.stop()
        await self._outward.stop()
        await self._links.close()
        await self._upkeep.stop()

    # --- wiring ----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._work.wake()

    def _freed(self) -> None:
        self._work.freed()

    def _begun(self, held: Held) -> None:
        self._deadlines.look_at(held)

    def _over(self, run: RunId, box: BoxId) -> None:
        if not self._stopping:
            self._crew.go(self._shell.discard(box, run), f"discard {run}")

    def _stop_loop(self, held: Held) -> None:
        self._crew.go(self._work.stop_loop(held), f"stop {held.id}")

    def _carries_on(self, held: Held) -> None:
        """Its loop has another wire or kernel, and may have missed what was said or that it is to end."""
        if held.cancelled is not None:
            self._crew.go(self._cancels.cancelled(held.run), f"cancel {held.id}")
        else:
            self._steering.tell(held)

    async def _greet(self, slot: Slot, link: Link) -> None:
        self._outward.greeted(slot.box, slot.running())
        self.commands.take_over(slot, link)
        await self._greeting.greet(slot, link)

    async def _link_lost(self, box: BoxId) -> None:
        if not self._stopping:
            await self._bringup.link_lost(box)

    async def _disk_full(self, box: BoxId) -> None:
        await self._bringup.down(box, Desired.STOPPED)

    async def _user_removed(self, user: UserId) -> None:
        self.commands.forget(user)
        self._viewers.forget(user)
        self._crew.go(self._shelving.forget(user), "copies of a removed user")
        for held in self._live:
            if held.run.actor != user:
                continue
            try:
                await self._cancels.cancelled(await self._parts.store.runs.cancel(held.id))
            except RingfenceError as error:
                self._log.warning("run %s of a removed user: %s", held.id, error)
