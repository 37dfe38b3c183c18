"""What the web needs of the engine for usage, export and the rehearsal of a removal: a part of ports.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ringfence.host.kernel.life.exporting import Removal
from ringfence.host.kernel.life.usage import DayUse
from ringfence.host.kernel.people import Actor


class UsageReport(Protocol):
    """Days from `first` to `last`, both included."""

    @property
    def tenant(self) -> str: ...
    @property
    def first(self) -> str: ...
    @property
    def last(self) -> str: ...
    @property
    def rows(self) -> list[DayUse]: ...


class UsageReports(Protocol):
    """Days are ISO 8601; None: the last 30 days. Invalid."""

    async def user(self, actor: Actor, tenant: str, user: str, first: str | None, last: str | None) -> UsageReport: ...
    async def tenant(self, actor: Actor, tenant: str, first: str | None, last: str | None) -> UsageReport: ...


class Exports(Protocol):
    """All that is a user's."""

    def open(self, actor: Actor, tenant: str, user: str) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A .tar.gz. Whoever may not is told before there is a byte."""

    async def removal(self, actor: Actor, tenant: str, user: str) -> Removal: ...
