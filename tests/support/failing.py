"""Failpoints that fail: the n-th reach of a point, or of any, kills the process, raises, waits, or does a send twice."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal

from ringfence.host.kernel.failpoints import Again, Injected, Point

Action = Literal["kill", "error", "delay", "dup"]


class Armed:
    """kernel.failpoints.Failpoints. `reached` counts every reach; `fired` is the point where it acted, or None.

    `point` None: any. `dup` counts and acts only where a place can do its send again. `error`: what is raised instead of
    Injected, for a place where another error comes by nature. `seconds`: of a delay. `about_to` is called before it acts,
    with the point and its detail: the last that a process that is killed can say.
    """

    def __init__(
        self,
        point: Point | None,
        n: int,
        action: Action,
        *,
        seconds: float = 0.05,
        error: Callable[[], Exception] | None = None,
        about_to: Callable[[Point, str], None] | None = None,
    ) -> None:
        self._point, self._left, self._action, self._seconds = point, n, action, seconds
        self._error, self._about_to = error or Injected, about_to
        self._lock = threading.Lock()  # commits are reached in the store's thread
        self.reached: Counter[Point] = Counter()
        self.fired: Point | None = None

    def reach(self, point: Point, detail: str = "") -> None:
        if self._due(point, detail, can_dup=False) and self._action == "delay":
            time.sleep(self._seconds)

    async def areach(self, point: Point, detail: str = "", again: Again | None = None) -> None:
        if not self._due(point, detail, can_dup=again is not None):
            return
        if self._action == "delay":
            await asyncio.sleep(self._seconds)
        elif again is not None:
            await again()

    def _due(self, point: Point, detail: str, can_dup: bool) -> bool:
        """True: the caller delays or doubles. Kills and raises by itself."""
        with self._lock:
            self.reached[point] += 1
            if self._point not in (None, point) or (self._action == "dup" and not can_dup):
                return False
            self._left -= 1
            if self._left != 0:
                return False
            self.fired = point
            if self._about_to is not None:
                self._about_to(point, detail)
            if self._action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()  # the signal comes to the process: this thread does nothing more
        if self._action == "error":
            raise self._error()
        return True
