"""Threads that answer straight into the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ringfence.host.store.workers import Workers


async def test_a_call_is_carried_out_elsewhere_and_answered_here() -> None:
    workers, loop = Workers(1, "test"), asyncio.get_running_loop()

    def broken() -> None:
        raise ValueError("this one")

    where = await loop.run_in_executor(workers, threading.current_thread)
    assert where is not threading.current_thread() and where.daemon
    with pytest.raises(ValueError, match="this one"):
        await loop.run_in_executor(workers, broken)
    assert await loop.run_in_executor(workers, threading.current_thread) is where, "one that failed ends no thread"
    await asyncio.to_thread(workers.shutdown)
    assert not where.is_alive()


async def test_calls_of_one_thread_are_in_order_and_none_is_begun_for_nobody() -> None:
    workers, loop = Workers(1, "test"), asyncio.get_running_loop()
    go, done = threading.Event(), list[int]()
    first = loop.run_in_executor(workers, go.wait, 30)
    calls = [loop.run_in_executor(workers, done.append, n) for n in range(5)]
    calls[2].cancel()
    await asyncio.sleep(0)
    go.set()
    await first
    await asyncio.gather(*calls, return_exceptions=True)
    assert done == [0, 1, 3, 4]
    await asyncio.to_thread(workers.shutdown)


async def test_threads_are_made_as_calls_come_and_no_more_than_were_asked_for() -> None:
    workers, loop = Workers(3, "test"), asyncio.get_running_loop()
    gate = threading.Barrier(4)
    calls = [loop.run_in_executor(workers, gate.wait, 30) for _ in range(3)]
    await asyncio.to_thread(gate.wait, 30)  # breaks unless all three are at it at once
    await asyncio.gather(*calls)
    names = await asyncio.gather(*(loop.run_in_executor(workers, threading.current_thread) for _ in range(20)))
    assert len(set(names)) <= 3
    await asyncio.to_thread(workers.shutdown)


async def test_shutdown_waits_for_what_was_asked_and_takes_no_more() -> None:
    workers, loop = Workers(1, "test"), asyncio.get_running_loop()
    go = threading.Event()
    call = loop.run_in_executor(workers, go.wait, 30)
    ending = asyncio.create_task(asyncio.to_thread(workers.shutdown))
    while not workers.closed:
        await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="sent home"):
        loop.run_in_executor(workers, go.wait)
    assert not ending.done()
    go.set()
    assert await call is True
    await ending
    workers.shutdown()  # again


async def test_a_loop_that_was_closed_meanwhile_is_told_nothing() -> None:
    workers, go = Workers(1, "test"), threading.Event()

    def leave() -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.call_soon(lambda: loop.run_in_executor(workers, go.wait, 30))
            loop.call_soon(loop.stop)
            loop.run_forever()
        finally:
            loop.close()

    await asyncio.to_thread(leave)
    go.set()
    assert await asyncio.get_running_loop().run_in_executor(workers, lambda: "alive") == "alive"
    await asyncio.to_thread(workers.shutdown)
