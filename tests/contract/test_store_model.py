"""Two kernels, one database, any order of what they do to runs: invariants I2, I3, I5, one live run a lane, order.

Hypothesis drives a real store file through two connections and keeps its own, simpler idea of what must be true.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringfence.host.kernel.errors import Conflict, StaleEpoch
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.people import UserKind
from ringfence.host.kernel.runs import LEASE_SECONDS, RUN_FINAL, Effect, RunState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.store import SqlStore, open_store
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
    epoch: int = 0
    state: RunState = RunState.QUEUED
    worker: str | None = None
    due: float = 0.0
    lease: float = 0.0
    attempts: int = 0
    steps: int = 0
    cancelling: bool = False


class TwoWorkers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
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
        self.runs[accepted.run.id] = Known(accepted.run.id, accepted.turn.lane)

    @rule(worker=WORKERS, limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> None:
        expected = self.claimable()[:limit]
        got = self.wait(self.store(worker).runs.claim(worker, limit, lambda run: f"{worker} {run}"))
        assert [run.id for run in got] == [run.id for run in expected]
        for run, known in zip(got, expected, strict=True):
            known.epoch, known.attempts = known.epoch + 1, known.attempts + 1
            known.state, known.worker = RunState.RUNNING, worker
            known.lease = self.clock.monotonic() + LEASE_SECONDS
            assert (run.epoch, run.attempts, run.worker) == (known.epoch, known.attempts, worker)

    def claimable(self) -> list[Known]:
        """The first live run of each lane, when it is queued and due. The clock stands still between two messages,
        so the order over lanes is that of the ids."""
        heads: dict[str, Known] = {}
        for run in self.runs.values():
            if run.state not in RUN_FINAL:
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
        assert set(self.wait(self.store(worker).runs.heartbeat(worker))) == {run.id for run in held}
        for run in held:
            run.lease = self.clock.monotonic() + LEASE_SECONDS

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
        run.state, run.worker = RunState.QUEUED, None
        run.due = self.clock.monotonic() + 2**run.attempts * 0.5

    @precondition(lambda self: self.any_in(RunState.RUNNING))
    @rule(worker=WORKERS, pick=PICK)
    def step(self, worker: str, pick: int) -> None:
        run = self.some(pick, RunState.RUNNING)
        steps = self.store(worker).steps
        n = run.steps + 1
        _, new = self.wait(steps.begin(run.id, run.epoch, n, "shell", {}, "digest", Effect.LOCAL))
        assert new
        self.wait(steps.end(run.id, run.epoch, n, {"ok": True}, False))
        run.steps = n

    @precondition(lambda self: self.any_in(RunState.RUNNING))
    @rule(worker=WORKERS, pick=PICK, state=FINAL, reply=st.none() | st.just("done"), twice=st.booleans())
    def end(self, worker: str, pick: int, state: RunState, reply: str | None, twice: bool) -> None:
        run = self.some(pick, RunState.RUNNING)
        for _ in range(2 if twice else 1):
            self.wait(self.store(worker).runs.end(run.id, run.epoch, state, "", reply))
        run.state, run.worker = state, None

    @precondition(lambda self: self.any_in())
    @rule(worker=WORKERS, pick=PICK)
    def cancel(self, worker: str, pick: int) -> None:
        run = self.some(pick)
        self.wait(self.store(worker).runs.cancel(run.id))
        if run.state is RunState.QUEUED:
            run.state = RunState.CANCELLED
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
            assert len(self.wait(self.store("w0").steps.all(known.id))) == known.steps
            turn = self.wait(self.store("w0").turns.get(run.turn))
            assert turn.state.value == run.state.value

    @invariant()
    def one_live_run_in_a_lane_and_none_overtakes(self) -> None:
        for lane in {run.lane for run in self.runs.values()}:
            states = [run.state for run in self.runs.values() if run.lane == lane]
            assert states.count(RunState.RUNNING) <= 1
            live = [state for state in states if state not in RUN_FINAL]
            assert RunState.RUNNING not in live[1:]

    @invariant()
    def events_tell_the_same(self) -> None:
        """I2: gapless cursors; each run is queued once, started as often as attempted, and ended once when final."""
        for thread in (self.ordered, self.parallel):
            self.check_thread(thread)

    def check_thread(self, thread: ThreadId) -> None:
        events = self.wait(self.store("w1").events.after(thread, 0, 10_000))
        assert [event.cursor for event in events] == list(range(1, len(events) + 1))
        for known in self.runs.values():
            if not known.lane.startswith(thread):
                continue
            kinds = [event.kind for event in events if event.run == known.id]
            assert kinds.count(EventKind.RUN_QUEUED) == 1
            assert kinds.count(EventKind.RUN_STARTED) == min(known.attempts, 1)
            assert kinds.count(EventKind.RUN_REDRIVEN) == max(known.attempts - 1, 0)
            assert kinds.count(EventKind.STEP_ENDED) == known.steps
            assert kinds.count(EventKind.RUN_ENDED) == (known.state in RUN_FINAL)
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
