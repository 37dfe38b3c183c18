"""Two kernels, one database, any order of what they do to runs: invariants I2, I3, I5, one live run a lane, order.

Hypothesis drives a real store file through two connections and keeps its own, simpler idea of what must be true.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pytest import approx, raises

from ringfence.host.kernel.errors import Conflict, StaleEpoch, Steered
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import LEASE_SECONDS, RUN_FINAL, Effect, RunState, StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.store import SqlStore, open_store
from tests.support.databases import put_migrated_file
from tests.support.store import CountingIds, HandClock, address

T = TypeVar("T")
WORKERS = st.sampled_from(["w0", "w1"])
PICK = st.integers(0, 1 << 16)
FINAL = st.sampled_from(sorted(RUN_FINAL))


@dataclass
class Known:
    """What the model believes of a run."""

    id: RunId
    lane: str
    actor: UserId
    epoch: int = 0
    state: RunState = RunState.QUEUED
    worker: str | None = None
    due: float = 0.0
    lease: float = 0.0
    attempts: int = 0
    steps: int = 0
    open: int = 0  # of them, that were begun and not ended
    cancelling: bool = False
    said: list[int] = field(default_factory=list)  # cursors of what the turn was told, its own message first
    claims: int = 0
    ends: int = 0
    reopened: int = 0
    worked: float = 0.0

    def lease_ends(self, now: float) -> None:
        self.worked += min(max(LEASE_SECONDS - (self.lease - now), 0.0), LEASE_SECONDS)
        self.worker = None


class TwoWorkers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        put_migrated_file(Path(self.folder.name))
        self.loop = asyncio.new_event_loop()
        self.clock = HandClock()
        self.runs: dict[RunId, Known] = {}  # in the order of their messages
        self.loop.run_until_complete(self.set_up())

    def wait(self, what: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(what)

    async def set_up(self) -> None:
        url = address(Path(self.folder.name))
        self.stores = {
            "w0": await open_store(url, self.clock, CountingIds()),
            "w1": await open_store(url, self.clock, CountingIds(1 << 40)),
        }
        store = self.stores["w0"]
        tenant = await store.tenants.add("default")
        self.actors: list[UserId] = [
            (await store.users.add("default", name, UserKind.PERSON, None)).id for name in ("alice", "bob")
        ]
        self.ordered = (await store.threads.add(tenant.id, "ordered", self.actors, False)).id
        self.parallel = (await store.threads.add(tenant.id, "parallel", self.actors, True)).id

    def teardown(self) -> None:
        for store in self.stores.values():
            self.wait(store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    def some(self, pick: int, *states: RunState) -> Known:
        found = [run for run in self.runs.values() if not states or run.state in states]
        return found[pick % len(found)]

    def any_in(self, *states: RunState) -> bool:
        return any(not states or run.state in states for run in self.runs.values())

    def store(self, worker: str) -> SqlStore:
        return self.stores[worker]

    # --- what may happen ---------------------------------------------------------------------------------------------

    @rule(worker=WORKERS, actor=st.integers(0, 1), parallel=st.booleans())
    def say(self, worker: str, actor: int, parallel: bool) -> None:
        thread, user = (self.parallel if parallel else self.ordered), self.actors[actor]
        accepted = self.wait(self.store(worker).turns.accept(thread, user, "x", "queue", None))
        self.opened(accepted)

    def opened(self, accepted: Accepted) -> None:
        assert not accepted.steered
        known = Known(accepted.run.id, accepted.turn.lane, accepted.turn.actor)
        known.said.append(accepted.message.cursor)
        self.runs[known.id] = known

    @rule(worker=WORKERS, actor=st.integers(0, 1), parallel=st.booleans())
    def steer(self, worker: str, actor: int, parallel: bool) -> None:
        """The nearest live run of the same actor in the lane, or a turn of its own."""
        thread, user = (self.parallel if parallel else self.ordered), self.actors[actor]
        lane = f"{thread}/{user}" if parallel else thread
        live = [run for run in self.runs.values() if (run.lane, run.actor) == (lane, user)]
        live = [run for run in live if run.state not in RUN_FINAL and not run.cancelling]
        accepted = self.wait(self.store(worker).turns.accept(thread, user, "y", "steer", None))
        if not live:
            self.opened(accepted)
            return
        nearest = next((run for run in live if run.state is RunState.RUNNING), live[0])
        assert (accepted.steered, accepted.run.id) == (True, nearest.id)
        nearest.said.append(accepted.message.cursor)

    @rule(worker=WORKERS, limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> None:
        waiting = self.claimable()
        got = self.wait(self.store(worker).runs.claim(worker, limit, lambda run: f"{worker} {run}"))
        expected = [self.runs[run.id] for run in got]
        assert len(got) == min(limit, len(waiting))
        taken = [[run for run in expected if run.actor == user] for user in self.actors]
        own = [[run for run in waiting if run.actor == user] for user in self.actors]
        assert all(mine[: len(some)] == some for mine, some in zip(own, taken, strict=True)), "of each oldest first"
        for some, others, left in zip(taken, reversed(taken), reversed(own), strict=True):
            assert len(some) <= len(others) + 1 or others == left, "in turn (kernel/fairness.py)"
        for run, known in zip(got, expected, strict=True):
            known.epoch, known.attempts, known.claims = known.epoch + 1, known.attempts + 1, known.claims + 1
            known.state, known.worker = RunState.RUNNING, worker
            known.lease = self.clock.monotonic() + LEASE_SECONDS
            assert (run.epoch, run.attempts, run.worker) == (known.epoch, known.attempts, worker)

    def claimable(self) -> list[Known]:
        """The first live run of each lane in which none is running, when it is due: oldest first."""
        busy = {run.lane for run in self.runs.values() if run.state is RunState.RUNNING}
        heads: dict[str, Known] = {}
        for run in self.runs.values():
            if run.state not in RUN_FINAL and run.lane not in busy:
                heads.setdefault(run.lane, run)
        now = self.clock.monotonic()
        ready = [run for run in heads.values() if run.state is RunState.QUEUED and run.due <= now]
        created = {run.id: self.wait(self.store("w0").runs.get(run.id)).created_at for run in ready}
        return sorted(ready, key=lambda run: (created[run.id], run.id))

    @rule(seconds=st.sampled_from([0.6, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.pass_seconds(seconds)

    @rule(worker=WORKERS)
    def heartbeat(self, worker: str) -> None:
        held = [run for run in self.runs.values() if run.state is RunState.RUNNING and run.worker == worker]
        for run in held:
            renewed = self.clock.monotonic() + LEASE_SECONDS
            run.worked, run.lease = run.worked + renewed - run.lease, renewed
        beat = self.wait(self.store(worker).runs.heartbeat(worker))
        assert beat == {run.id: approx(run.worked, abs=1e-3) for run in held}

    @rule(worker=WORKERS)
    def expired(self, worker: str) -> None:
        now = self.clock.monotonic()
        live = [run for run in self.runs.values() if run.state is RunState.RUNNING]
        lost = {run.id for run in live if run.lease <= now or run.worker != worker}
        assert {run.id for run in self.wait(self.store(worker).runs.expired(worker))} == lost

    @precondition(lambda self: self.any_in(RunState.RUNNING))
    @rule(worker=WORKERS, pick=PICK)
    def adopt(self, worker: str, pick: int) -> None:
        run = self.some(pick, RunState.RUNNING)
        self.wait(self.store(worker).runs.adopt(run.id, worker, run.epoch))
        run.epoch, run.worker = run.epoch + 1, worker
        run.lease = self.clock.monotonic() + LEASE_SECONDS

    @precondition(lambda self: self.any_in(RunState.RUNNING))
    @rule(worker=WORKERS, pick=PICK)
    def requeue(self, worker: str, pick: int) -> None:
        run = self.some(pick, RunState.RUNNING)
        self.wait(self.store(worker).runs.requeue(run.id, run.epoch, "lost"))
        run.lease_ends(self.clock.monotonic())
        run.state = RunState.QUEUED
        run.due = self.clock.monotonic() + 2**run.attempts * 0.5

    @precondition(lambda self: self.any_in(RunState.RUNNING))
    @rule(worker=WORKERS, pick=PICK, ends=st.booleans())
    def step(self, worker: str, pick: int, ends: bool) -> None:
        run = self.some(pick, RunState.RUNNING)
        steps = self.store(worker).steps
        n = run.steps + 1
        _, new = self.wait(steps.begin(run.id, run.epoch, n, "shell", {}, "digest", Effect.LOCAL))
        assert new
        if ends:
            self.wait(steps.end(run.id, run.epoch, n, {"ok": True}, False))
        run.steps, run.open = n, run.open + (not ends)

    @precondition(lambda self: self.any_in(RunState.RUNNING))
    @rule(
        worker=WORKERS,
        pick=PICK,
        state=FINAL,
        reply=st.none() | st.just("done"),
        twice=st.booleans(),
        unseen=st.none() | st.integers(0, 2),
    )
    def end(self, worker: str, pick: int, state: RunState, reply: str | None, twice: bool, unseen: int | None) -> None:
        """`unseen`: how many of the newest things that were said the loop does not know."""
        run = self.some(pick, RunState.RUNNING)
        seen = None if unseen is None else ([0, 0, *run.said])[-1 - unseen]
        for _ in range(2 if twice else 1):
            ending = self.store(worker).runs.end(run.id, run.epoch, state, "", reply, seen)
            if seen is not None and any(cursor > seen for cursor in run.said[1:]):
                with raises(Steered):
                    self.wait(ending)
                return
            self.wait(ending)
        run.lease_ends(self.clock.monotonic())
        run.state, run.ends, run.open = state, run.ends + 1, 0

    @precondition(lambda self: self.any_in(*RUN_FINAL))
    @rule(worker=WORKERS, pick=PICK)
    def reopen(self, worker: str, pick: int) -> None:
        run = self.some(pick, *RUN_FINAL)
        reopening = self.store(worker).runs.reopen(run.id)
        if run.state is not RunState.FAILED:
            with raises(Conflict):
                self.wait(reopening)
            return
        self.wait(reopening)
        run.state, run.attempts, run.worked, run.due, run.cancelling = RunState.QUEUED, 0, 0.0, 0.0, False
        run.reopened += 1

    @precondition(lambda self: self.any_in())
    @rule(worker=WORKERS, pick=PICK)
    def cancel(self, worker: str, pick: int) -> None:
        run = self.some(pick)
        self.wait(self.store(worker).runs.cancel(run.id))
        if run.state is RunState.QUEUED:
            run.state, run.ends, run.open = RunState.CANCELLED, run.ends + 1, 0
        run.cancelling = run.cancelling or run.state not in RUN_FINAL or run.state is RunState.CANCELLED

    @precondition(lambda self: self.any_in())
    @rule(worker=WORKERS, pick=PICK, behind=st.integers(-1, 2), what=st.integers(0, 4))
    def a_stale_write(self, worker: str, pick: int, behind: int, what: int) -> None:
        """I5: an epoch that is not the run's, or the right one of a run that is not running."""
        run = self.some(pick)
        epoch = run.epoch - behind
        if behind == 0 and run.state is RunState.RUNNING:
            return
        store = self.store(worker)
        writes: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: store.runs.requeue(run.id, epoch, "late"),
            lambda: store.runs.end(run.id, epoch, RunState.COMPLETED, "", "late"),
            lambda: store.runs.adopt(run.id, "w9", epoch),
            lambda: store.steps.begin(run.id, epoch, run.steps + 1, "shell", {}, "late", Effect.LOCAL),
            lambda: store.steps.save_checkpoint(run.id, epoch, "final", 0, "late"),
        ]
        try:
            self.wait(writes[what]())
        except StaleEpoch:
            return
        except Conflict:
            assert what == 1
            assert run.state in RUN_FINAL
            return
        raise AssertionError("a stale write was taken")

    # --- what must be true -------------------------------------------------------------------------------------------

    @invariant()
    def runs_are_as_known(self) -> None:
        """I3: each is final once, or schedulable, or live under the epoch that the model knows."""
        for known in self.runs.values():
            run = self.wait(self.store("w1").runs.get(known.id))
            seen = (run.state, run.epoch, run.attempts, run.worker)
            assert seen == (known.state, known.epoch, known.attempts, known.worker)
            assert run.worked == approx(known.worked, abs=1e-3)
            said = self.wait(self.store("w0").turns.said(run.turn))
            assert [message.cursor for message in said] == known.said
            states = [step.state for step in self.wait(self.store("w0").steps.all(known.id))]
            assert (len(states), states.count(StepState.BEGUN)) == (known.steps, known.open)
            turn = self.wait(self.store("w0").turns.get(run.turn))
            assert turn.state.value == run.state.value

    @invariant()
    def one_live_run_in_a_lane_and_none_overtakes(self) -> None:
        for lane in {run.lane for run in self.runs.values()}:
            inside = [run for run in self.runs.values() if run.lane == lane]
            assert [run.state for run in inside].count(RunState.RUNNING) <= 1
            # One that came back by hand finds younger ones at work.
            live = [run.state for run in inside if run.state not in RUN_FINAL and not run.reopened]
            assert RunState.RUNNING not in live[1:]

    @invariant()
    def events_tell_the_same(self) -> None:
        """I2: gapless cursors; each run is queued once and again when reopened, started as often as claimed, and
        ended once each time."""
        for thread in (self.ordered, self.parallel):
            self.check_thread(thread)

    def check_thread(self, thread: ThreadId) -> None:
        events = self.wait(self.store("w1").events.after(thread, 0, 10_000))
        assert [event.cursor for event in events] == list(range(1, len(events) + 1))
        for known in self.runs.values():
            if not known.lane.startswith(thread):
                continue
            kinds = [event.kind for event in events if event.run == known.id]
            assert kinds.count(EventKind.RUN_QUEUED) == 1 + known.reopened
            assert kinds.count(EventKind.RUN_STARTED) == min(known.claims, 1)
            assert kinds.count(EventKind.RUN_REDRIVEN) == max(known.claims - 1, 0)
            assert kinds.count(EventKind.STEP_ENDED) == known.steps - known.open
            assert kinds.count(EventKind.RUN_ENDED) == known.ends == known.reopened + (known.state in RUN_FINAL)
            assert kinds.count(EventKind.MESSAGE) == len(known.said) - 1
            if known.state in RUN_FINAL:
                assert kinds[-1] is EventKind.RUN_ENDED


TwoWorkers.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTwoWorkers = TwoWorkers.TestCase
