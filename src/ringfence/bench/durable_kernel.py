"""A kernel process for `ringfence bench durable`: claims runs from a shared database and does what a turn costs the store.

Run as `python -m ringfence.bench.durable_kernel URL WORKER`. Says `ready`, begins at a line on its standard input,
ends at the next one or when that is closed. It has no boxes and no wire: what is measured is how well
several kernels share a database.
"""

from __future__ import annotations

import asyncio
import sys

from ringfence.host.app import SystemClock, SystemIds
from ringfence.host.engine.history import MOST_MESSAGES, TAIL_BYTES
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.runs import Effect, Run, RunState
from ringfence.host.store.store import SqlStore, open_store

AT_ONCE = 16  # runs under way in one kernel
STEPS = 2  # of a turn
_ARGUMENTS = {"command": "ls -l"}
_RESULT = {"ok": True, "exit_code": 0, "stdout": "x" * 1000}
_STATE = "s" * 4000  # of a checkpoint: a short conversation
_POLL_SECONDS = 0.05  # when there is nothing to claim


async def turn(store: SqlStore, run: Run) -> None:
    """Everything that a turn with `STEPS` commands writes and reads between its claim and its reply."""
    await store.reads.brief(run.id, MOST_MESSAGES, TAIL_BYTES)
    done = 0
    for n in range(1, STEPS + 1):
        await store.steps.save_checkpoint(run.id, run.epoch, "before_model", done, _STATE)
        sealed = digest("shell", _ARGUMENTS, Effect.LOCAL)
        await store.steps.begin(run.id, run.epoch, n, "shell", _ARGUMENTS, sealed, Effect.LOCAL)
        await store.steps.end(run.id, run.epoch, n, _RESULT, False)
        done = n
    await store.runs.end(run.id, run.epoch, RunState.COMPLETED, "", f"done by epoch {run.epoch}")


async def work(store: SqlStore, worker: str, ended: asyncio.Event) -> None:
    """Turns until the end. Each is claimed as soon as there is room, as the engine does."""
    live: set[asyncio.Task[None]] = set()
    while not ended.is_set():
        claimed = await store.runs.claim(worker, AT_ONCE - len(live), lambda run: "")
        live |= {asyncio.create_task(turn(store, run)) for run in claimed}
        if not live:
            await asyncio.sleep(_POLL_SECONDS)
            continue
        finished, live = await asyncio.wait(live, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    await asyncio.gather(*live)


async def main(url: str, worker: str) -> None:
    store = await open_store(url, SystemClock(), SystemIds())
    ended = asyncio.Event()
    try:
        _say("ready")
        await asyncio.to_thread(sys.stdin.readline)

        async def listen() -> None:
            await asyncio.to_thread(sys.stdin.readline)
            ended.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(listen())
            group.create_task(work(store, worker, ended))
    finally:
        await store.close()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
