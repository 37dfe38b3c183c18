"""An event loop whose time is virtual, and processes within it that can be stopped, continued or killed without any cleanup.

It jumps to the next timer when nothing is ready; nothing ever waits for a real clock. What a product hands to a thread is run
inline, at its place in the order of things, and its answer comes a little later by the virtual clock. A callback belongs to the
process in whose context it was made: of a stopped process it is kept, of a dead one it is never called. It must never let anything
real decide an order.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Literal

State = Literal["runs", "stopped", "dead"]
STILL = 100_000  # rounds of the loop at one moment; the busiest one of the seeds takes some hundred


class Crash(BaseException):
    """kill -9, where nothing can be awaited: what is not committed is rolled back, and its process does nothing more."""


class Process:
    """A kernel process. Everything that it does is in its context."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop, self.name = loop, name
        self.state: State = "runs"
        self.kernel: Any = None  # kernel.Kernel
        self.gone = asyncio.Event()  # dead
        self.kept: list[tuple[Callable[..., Any], tuple[Any, ...], Context]] = []  # what waits for SIGCONT, or for ever
        self._context = Context()
        self._context.run(PROCESS.set, self)

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this process. Of a process that is not running it does not begin."""
        return self._loop.create_task(work, context=self._context.copy())

    def die(self) -> None:
        self.state = "dead"
        self.gone.set()

    def stop(self) -> None:
        self.state = "stopped"

    def go_on(self) -> None:
        self.state = "runs"
        kept, self.kept = self.kept, []
        for callback, arguments, context in kept:
            self._loop.call_soon(callback, *arguments, context=context)


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class _Jumping(selectors.DefaultSelector):
    """Says at once that the time that it was to wait is over."""

    jump: Callable[[float], None]
    _still = 0  # rounds since it jumped

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        self._still = 0 if timeout > 0 else self._still + 1
        if self._still > STILL:
            raise RuntimeError("somebody is busy without end, and time stands still")
        if timeout > 0:
            self.jump(timeout)
        return super().select(0) if timeout > 60 else []  # nothing is ever really ready: the loop's own pipe at most


class VirtualLoop(asyncio.SelectorEventLoop):
    """`delay`: seconds that a thread takes for its answer."""

    def __init__(self, delay: Callable[[], float]) -> None:
        self._now = 1000.0
        selector = _Jumping()
        selector.jump = self._jump
        super().__init__(selector)
        self._delay = delay

    def _jump(self, seconds: float) -> None:
        self._now += seconds

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        context = copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(_within, process, callback, args, context, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        context = copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, _within, process, callback, args, context, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        answer: asyncio.Future[Any] = self.create_future()
        process = PROCESS.get()
        result: Any = None
        failure: BaseException | None = None
        try:
            result = func(*args)
        except Crash:
            assert process is not None
            process.die()
            return answer  # for ever
        except BaseException as error:
            failure = error
        self.call_later(self._delay(), _answered, answer, result, failure)
        return answer


def _within(process: Process, callback: Callable[..., Any], args: tuple[Any, ...], context: Context) -> None:
    if process.state == "runs":
        callback(*args)
    else:
        process.kept.append((callback, args, context))


def _answered(answer: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if answer.done():
        return
    if failure is None:
        answer.set_result(result)
    else:
        answer.set_exception(failure)
