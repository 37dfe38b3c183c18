"""The scheduler: claims queued runs, gives each to its actor's box, keeps the leases, and sweeps what was left behind.

Woken by `wake` (a message was accepted) and `freed` (a lane is free), else once a sweep interval (back-offs end by time). It must
never hold more than `max_runs` leases, and never write for a run without its epoch.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress

from ringfence.host.engine.bringup import BringUp
from ringfence.host.engine.crew import Crew
from ringfence.host.engine.details import tell
from ringfence.host.engine.history import MOST_MESSAGES, TAIL_BYTES
from ringfence.host.engine.homes import home_of, proven
from ringfence.host.engine.leaving import Leaving
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.redrive import Redriver
from ringfence.host.engine.run_start import run_start
from ringfence.host.engine.steering import Steering
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import Busy, NotFound, RingfenceError, StaleEpoch, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import Link
from ringfence.host.kernel.reads import Brief
from ringfence.host.kernel.runs import Run, RunState

_OFFER_SECONDS = 60.0  # then it is asked anew; any time would do


class Work:
    def __init__(
        self,
        parts: Parts,
        crew: Crew,
        live: LiveRuns,
        bringup: BringUp,
        redriver: Redriver,
        steering: Steering,
        leaving: Leaving,
        begun: Callable[[Held], None],
    ) -> None:
        """`begun`: there is a loop from now on, which may have to be told at once that its time is nearly over."""
        self._parts, self._crew, self._live = parts, crew, live
        self._bringup, self._redriver = bringup, redriver
        self._steering, self._leaving, self._begun = steering, leaving, begun
        self._wake = asyncio.Event()
        self._sure = True  # that something is queued
        self._strays: set[RunId] = set()
        self._draining = False
        self._log = logging.getLogger("ringfence.engine")
        self.claims_failed = ""  # why the last claim failed, for status

    def wake(self) -> None:
        """Something was queued."""
        self._sure = True
        self._wake.set()

    def freed(self) -> None:
        """A run has ended, and what waited for its lane may go. Mostly nothing did, and its actor waits for the reply: a
        claim of nothing would be in the way of that."""
        self._wake.set()

    def start(self) -> None:
        self._crew.keep(self._claims(), "claims")
        self._crew.keep(self._offers(), "offers")
        self._crew.keep(self._heartbeats(), "heartbeats")

    def drain(self) -> None:
        """No further claim."""
        self._draining = True

    async def _offers(self) -> None:
        """Runs that other kernels queue for this one."""
        while not self._draining:
            try:
                if await self._parts.store.runs.offered(_OFFER_SECONDS):
                    self.wake()
            except RingfenceError:  # closed
                return

    async def _claims(self) -> None:
        while not self._draining:
            self._wake.clear()
            sure, self._sure = self._sure, False
            try:
                if sure or await self._parts.store.reads.waiting():
                    await self._claim()
                self.claims_failed = ""
            except RingfenceError as error:
                self.claims_failed = error.message
                self._log.error("no run can be claimed: %s", error)
            try:
                async with asyncio.timeout(self._parts.config.sweep_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _claim(self) -> None:
        free = self._parts.config.max_runs - len(self._live)
        if free <= 0:
            return
        tokens: dict[RunId, str] = {}

        def token_hash(run: RunId) -> str:
            tokens[run] = self._parts.ids.secret()
            return hashlib.sha256(tokens[run].encode()).hexdigest()

        each = self._parts.config.max_user_runs
        for run in await self._parts.store.runs.claim(self._parts.worker, free, token_hash, each):
            held = Held(run, self._parts.clock.monotonic())
            self._live.add(held)
            self._crew.go(self._drive(held, tokens[run.id]), f"run {run.id}")

    async def _drive(self, held: Held, token: str) -> None:
        """From the claim to a loop that works. What fails here is redriven."""
        try:
            await self._executor(held, token)
        except StaleEpoch:
            self._live.drop(held)
        except TooLarge as error:
            await self._fail(held, "message_too_large", error)
        except Busy as error:
            await self._wait(held, error)
        except RingfenceError as error:
            self._log.warning("run %s found no executor: %s", held.id, error)
            await self._redriver.lost(held, error.code, f"it found no executor: {error.message}")
        except BaseException:
            held.gone = held.gone or "failed"  # the sweep redrives it, should this not be the end of the server
            raise

    async def _wait(self, held: Held, error: Busy) -> None:
        """For its box, back in the queue: nothing went wrong with it, and no attempt is counted."""
        if held.cancelled is not None:
            await self._redriver.lost(held, "cancelled")
            return
        self._log.info("run %s waits: %s", held.id, error)
        async with held.deciding:
            try:
                await self._parts.store.runs.hold(held.id, held.epoch, "box_busy")
            except (StaleEpoch, NotFound):
                pass
            except RingfenceError as failed:
                self._log.error("run %s cannot be put back yet: %s", held.id, failed)
                held.gone = held.gone or "box_busy"  # the sweep redrives it
                return
            self._live.drop(held)

    async def _executor(self, held: Held, token: str) -> None:
        store, run = self._parts.store, held.run
        if (ready := await self._ready(run)) is not None:
            await self._give(held, token, *ready)
            return
        try:
            user, box = await store.reads.home(run.actor)
        except NotFound:
            await self._redriver.end(run, RunState.CANCELLED, "user_removed")
            return
        if user.held_back:
            await store.runs.hold(run.id, run.epoch, user.held_back)  # until it is over: no attempt counted
            self._live.drop(held)
            return
        box = await home_of(self._parts, user) if box is None else await proven(self._parts, box, user)
        link = await self._bringup.ensure(box.id)
        await self._give(held, token, box, link, await self._brief(run))

    async def _ready(self, run: Run) -> tuple[Box, Link, Brief] | None:
        """With a box that is up nothing is waited for between what is read and what is given: one question does."""
        try:
            brief = await self._brief(run)
        except NotFound:
            return None
        link = self._bringup.reachable(brief.box.id) if brief.box is not None else None
        if brief.box is None or link is None or brief.user.held_back:
            return None
        return brief.box, link, brief

    async def _brief(self, run: Run) -> Brief:
        return await self._parts.store.reads.brief(run.id, MOST_MESSAGES, TAIL_BYTES)

    async def _give(self, held: Held, token: str, box: Box, link: Link, brief: Brief) -> None:
        """`brief`: read a moment ago, the link at hand."""
        slot = self._bringup.slot(box.id)
        while slot.wire() is not link:  # paused, or lost, since
            link = await self._bringup.ensure(box.id)
        with slot.beginning():
            await self._given(held, token, box, link, brief)

    async def _given(self, held: Held, token: str, box: Box, link: Link, brief: Brief) -> None:
        store, run = self._parts.store, held.run
        await proven(self._parts, box, brief.user)
        if (
            run.actor not in brief.thread.members
        ):  # a run that begins carries the thread's text into the box of its actor
            await self._redriver.end(run, RunState.CANCELLED, "cancelled")
            return
        if await self._redriver.outdated(run, link.hello.digest):
            return
        start = await run_start(self._parts, run, token, box, brief)
        if held.cancelled is not None:
            await self._redriver.lost(held, "cancelled")
            return
        self._leaving.gone(run.id)  # PID 1 ends the loop of an earlier attempt, should it be there still
        held.told = max(message["cursor"] for message in [*start["messages"][-1:], *start["steers"]])
        # Before the loop can ask: its first ask may arrive in front of the reply to run.start.
        held.box, held.guest, held.started, held.starting = box.id, link.hello.guest, True, True
        # Side by side: whatever the loop has written waits behind this in the store. A server that dies before it is
        # on disk leaves a run without a box: no loop of it is adopted, and it is redriven.
        assigned = store.runs.assign(run.id, run.epoch, box.id, link.hello.digest)
        for outcome in await asyncio.gather(assigned, link.start_run(start), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        held.starting = False
        self._begun(held)
        if held.behind:
            self._steering.tell(held)

    async def _fail(self, held: Held, code: str, error: RingfenceError) -> None:
        self._log.warning("run %s failed: %s", held.id, error)
        await tell(self._parts, held.run, {"code": code, "message": error.message})
        try:
            await self._redriver.end(held.run, RunState.FAILED, code)
        except RingfenceError:
            await self._redriver.lost(held, code)

    # --- leases --------------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._parts.config.heartbeat_seconds)
            try:
                await self.beat()
            except RingfenceError as error:
                self._log.error("leases were not renewed: %s", error)

    async def beat(self) -> None:
        """Renews our leases; a run that is no longer ours loses its loop here, and one that is ours and that nobody works
        on is redriven: the answer to its claim was lost with the connection. Twice in a row: else it may be on its way."""
        before = list(self._live)
        kept = await self._parts.store.runs.heartbeat(self._parts.worker)
        strays = {run for run in kept if self._live.get(run) is None}
        lost, self._strays = strays & self._strays, strays
        for run in lost:
            await self._stray(run)
        for held in before:
            if held.id in kept or not await self._stale(held.run):
                continue
            if held.deciding.locked():  # it was just put back, or ended, and whoever did that lets go of it
                continue
            if self._live.get(held.id) is held:  # else ended meanwhile, or at work again under a newer epoch
                self._log.warning("run %s: the lease of epoch %d is lost", held.id, held.epoch)
                self._live.drop(held)
                await self.stop_loop(held)

    async def _stray(self, run: RunId) -> None:
        """Evidence is not waited for: the leases of all the others are renewed by who waits here."""
        at = (await self._parts.store.reads.standings([run])).get(run)
        if at is None or self._live.get(run) is not None or at.run.worker != self._parts.worker:
            return
        if self._redriver.seeks(run):
            return
        self._log.warning("run %s is ours and nobody works on it: redriven", run)
        with suppress(StaleEpoch, NotFound):
            await self._redriver.decide_soon(at.run, "executor_lost", at)

    async def _stale(self, run: Run) -> bool:
        row = await self._parts.store.runs.get(run.id)
        return row.epoch != run.epoch or row.state is not RunState.RUNNING or row.worker != self._parts.worker

    async def stop_loop(self, held: Held, grace: float = 0.0) -> None:
        """The loop's process ended, if its box can be reached; else it ends with the box or at its next ask."""
        if held.box is None:
            return
        link = self._bringup.reachable(held.box)
        if link is None:
            return
        try:
            await link.cancel_run(held.id, grace)
        except RingfenceError as error:
            self._log.info("loop of run %s: %s", held.id, error)
