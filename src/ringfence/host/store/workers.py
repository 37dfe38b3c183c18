"""Threads that carry out one blocking call after the other, and answer straight into the loop that asked.

An executor for `loop.run_in_executor`. The standard one puts a future of its own, with a lock and a condition, between
thread and loop: 40 of the 160 us that a call in a thread takes beside the call itself, and a commit takes 130. Must never
begin a call whose caller is gone, and must never keep the process from ending: its threads are daemons, and whoever needs
what is under way waits for `shutdown`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any


class _Call:
    __slots__ = ("answer", "function", "loop")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.answer: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        if self.answer.cancelled():
            return
        try:
            made = (self.answer.set_result, self.function())
        except BaseException as error:
            made = (self.answer.set_exception, error)
        with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            self.loop.call_soon_threadsafe(_tell, self.answer, *made)


def _tell(answer: asyncio.Future[Any], tell: Callable[[Any], None], value: Any) -> None:
    if not answer.done():
        tell(value)


class Workers(Executor):
    """At most `count` threads, each made when there is a call for it. To be used from loops only."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.closed = False

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """A future of the running loop, which `run_in_executor` hands on as it is (asyncio.wrap_future). RuntimeError:
        shut down."""
        if self.closed:
            raise RuntimeError("these workers have been sent home")
        call = _Call(lambda: function(*args, **options), asyncio.get_running_loop())
        if len(self._threads) < self._count:
            self._hire()
        self._calls.put(call)
        return call.answer

    def _hire(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """After what was asked before. Blocks when it is to `wait`. Idempotent."""
        if not self.closed:
            self.closed = True
            for _ in self._threads:
                self._calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # what it holds is not to wait for the next one
