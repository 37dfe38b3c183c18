"""`ringfence bench durable`: what an acknowledged event costs, how soon a restarted server has its runs in hand, and what
several kernel processes on one PostgreSQL get done beside one, none of it twice.

PostgreSQL is a cluster of its own that syncs each commit. One kernel and three do the same number of turns, in turn and
three times; ratios of the medians.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ringfence.bench import durable_append, durable_restart
from ringfence.bench.cluster import Cluster, cluster
from ringfence.bench.durable_append import Appends
from ringfence.bench.durable_restart import Restart
from ringfence.bench.figures import Row, at_least
from ringfence.bench.machine import peak_bytes
from ringfence.bench.throwaway import CommandFailed
from ringfence.host.app import SystemClock, SystemIds
from ringfence.host.kernel.ids import RunId, ThreadId, UserId
from ringfence.host.kernel.people import UserKind
from ringfence.host.store.store import SqlStore, open_store

LEAST = 1.5  # times one kernel's turns, by three, on two cores
_DATABASE = "bench"
PATIENCE_SECONDS = 600.0  # for the turns of one round, which take 10 to 60: a kernel that hangs does not end by itself
_LOOK_SECONDS = 0.5  # psql takes 50 ms of a core each time: looked at without a pause it took a third of both
_LAST = "SELECT extract(epoch FROM max(ended_at)) FROM runs"
_LEFT = "SELECT count(*) FROM runs WHERE state <> 'completed'"
# Runs that were claimed twice, replies too many, and threads whose cursors have a gap.
_WRONG = """
SELECT (SELECT count(*) FROM runs WHERE epoch <> 1 OR attempts <> 1)
     + (SELECT abs(count(*) - (SELECT count(*) FROM runs)) FROM events WHERE kind = 'reply')
     + (SELECT count(*) FROM threads t WHERE t.cursor <> (SELECT count(*) FROM events e WHERE e.thread = t.id))
"""


@dataclass(frozen=True, slots=True)
class Plan:
    turns: int
    threads: int
    kernels: int
    rounds: int
    appends: Appends
    restart: Restart


WHOLE = Plan(
    turns=600,
    threads=60,
    kernels=3,
    rounds=3,
    appends=Appends(batches=(1, 16, 256), rounds=100),
    restart=Restart(finished=10_000, expired=500),
)


def run(say: Callable[[str], None], plan: Plan = WHOLE) -> tuple[list[Row], list[str]]:
    """(rows, notes). CommandFailed."""
    rows, notes = durable_append.measure(say, plan.appends)
    rows.append(durable_restart.measure(say, plan.restart, None))
    with cluster(durable=True) as server:
        rows.append(durable_restart.measure(say, plan.restart, server))
        more, said = _kernels(say, plan, server)
    return [*rows, *more], [*notes, *said]


def _kernels(say: Callable[[str], None], plan: Plan, server: Cluster) -> tuple[list[Row], list[str]]:
    one: list[float] = []
    several: list[float] = []
    wrong = peak = 0
    for number in range(plan.rounds):
        for kernels, speeds in ((1, one), (plan.kernels, several)):
            say(f"round {number + 1}: {plan.turns} turns by {kernels}")
            speed, bad, most = _measured(server, plan, kernels)
            speeds.append(speed)
            wrong, peak = wrong + bad, max(peak, most)
    ratio = statistics.median(several) / statistics.median(one)
    details = {
        "one_per_second": [round(speed, 1) for speed in one],
        "several_per_second": [round(speed, 1) for speed in several],
        "peak_mib": round(peak / (1 << 20), 1),
    }
    rows = [
        at_least(f"turns of {plan.kernels} kernels on PostgreSQL against one", ratio, "x", LEAST, **details),
        Row("turns done twice, or events lost", str(wrong), "0", wrong == 0, {"value": wrong}),
    ]
    notes = [
        f"turns a second, medians: one kernel {statistics.median(one):.0f}, {plan.kernels} {statistics.median(several):.0f}"
    ]
    return rows, notes


def _measured(server: Cluster, plan: Plan, kernels: int) -> tuple[float, int, int]:
    """(turns a second, wrong ones, bytes of the largest kernel at its peak), in a database of its own."""
    url = server.create(_DATABASE)
    try:
        asyncio.run(_filled(url, plan))
        with ExitStack() as stack:
            started = [stack.enter_context(_kernel(url, n)) for n in range(kernels)]
            for process in started:
                _expect(process, "ready")
            begun = SystemClock().now().timestamp()
            for process in started:
                _tell(process)
            _wait(server, started)
            seconds = float(server.sql(_DATABASE, _LAST)[0][0]) - begun
            peak = max(peak_bytes(process.pid) for process in started)
            for process in started:
                _tell(process)
                process.wait()
        return plan.turns / seconds, int(server.sql(_DATABASE, _WRONG)[0][0]), peak
    finally:
        server.drop(_DATABASE)


def _wait(server: Cluster, started: Sequence[subprocess.Popen[str]]) -> None:
    """Until no run is left. CommandFailed."""
    until = time.monotonic() + PATIENCE_SECONDS
    while left := int(server.sql(_DATABASE, _LEFT)[0][0]):
        if any(process.poll() is not None for process in started):
            raise CommandFailed("a kernel process ended before its work was done")
        if time.monotonic() > until:
            raise CommandFailed(f"{left} turns are not done after {PATIENCE_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)


async def _filled(url: str, plan: Plan) -> None:
    """A person with a thread for each lane, and the turns of all of them queued."""
    store = await open_store(url, SystemClock(), SystemIds())
    try:
        tenant = await store.tenants.add("default")
        lanes = await asyncio.gather(*(_lane(store, tenant.name, n) for n in range(plan.threads)))
        await asyncio.gather(*(_say(store, *lanes[n % plan.threads], n) for n in range(plan.turns)))
    finally:
        await store.close()


async def _lane(store: SqlStore, tenant: str, number: int) -> tuple[ThreadId, UserId]:
    user = await store.users.add(tenant, f"u{number}", UserKind.PERSON, None)
    return (await store.threads.add(user.tenant, f"t{number}", [user.id], False)).id, user.id


async def _say(store: SqlStore, thread: ThreadId, user: UserId, number: int) -> RunId:
    said = await store.turns.accept(thread, user, f"message {number}", "queue", None)
    return said.run.id


@contextmanager
def _kernel(url: str, number: int) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "ringfence.bench.durable_kernel", url, f"kernel{number}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()  # one that hangs would be waited for without end
            raise


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != line:
        raise CommandFailed(f"a kernel process ended with {process.wait()}")
