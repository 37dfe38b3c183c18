"""A clock that tests move, and ids that sort by their making."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ringfence.host.kernel.ids import BoxId, box_id, sortable


class HandClock:
    """Moves when it is told to. `jump` moves the wall only, as an administrator would."""

    def __init__(self) -> None:
        self._seconds = 1000.0
        self._wall = timedelta()
        self._server: Callable[[datetime], None] | None = None

    def now(self) -> datetime:
        return self._monotonic_wall() + self._wall

    def monotonic(self) -> float:
        return self._seconds

    def _monotonic_wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def pass_seconds(self, seconds: float) -> None:
        self._seconds += seconds
        self._tell()

    def jump(self, by: timedelta) -> None:
        self._wall += by

    def hold(self, server: Callable[[datetime], None] | None) -> None:
        """A database server's clock goes with this one from now on, but for jumps."""
        self._server = server
        self._tell()

    def _tell(self) -> None:
        if self._server is not None:
            self._server(self._monotonic_wall())


class CountingIds:
    """Unique in the process; `first` keeps those of two processes apart."""

    def __init__(self, first: int = 0) -> None:
        self._numbers = itertools.count(first)

    def new(self, prefix: str) -> str:
        return sortable(prefix, next(self._numbers), 0)

    def box(self) -> BoxId:
        return box_id(next(self._numbers))

    def secret(self) -> str:
        return f"{next(self._numbers):052d}"
