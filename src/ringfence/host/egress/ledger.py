"""The rows of invocations, written behind the commands: a command waits for none of them.

A row is for a server that is started anew while the command runs, so a command that is over within DELAY has none. Who is killed
within that time loses the port of a command that runs on, and no evidence: intents name command, run and step themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from ringfence.host.egress.chores import Chores
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.outward.ports import Invocations, Invoker

DELAY = 0.25  # seconds; most commands of a run are over by then, and cost the store nothing


class Ledger:
    def __init__(self, rows: Invocations, chores: Chores) -> None:
        self._rows, self._chores = rows, chores
        self._pending: dict[str, tuple[Invoker, int]] = {}
        self._closing: set[str] = set()
        self._written: set[str] = set()
        self._busy = asyncio.Lock()
        self._due = False
        self._log = logging.getLogger("ringfence.egress")

    def known(self, identifier: str) -> None:
        """It has a row already."""
        self._written.add(identifier)

    def open(self, identifier: str, who: Invoker, port: int) -> None:
        self._pending[identifier] = (who, port)
        self._soon()

    def close(self, identifier: str) -> None:
        if self._pending.pop(identifier, None) is None:
            self._closing.add(identifier)
            self._soon()

    async def flush(self) -> None:
        async with self._busy:
            closing, self._closing = self._closing, set()
            pending, self._pending = self._pending, {}
            if closing := closing & self._written:
                self._written -= closing
                await self._tried(self._rows.close(sorted(closing)))
            for identifier, (who, port) in pending.items():
                self._written.add(identifier)
                await self._tried(self._rows.open(identifier, who, port))

    async def _tried(self, work: Awaitable[None]) -> None:
        try:
            await work
        except RingfenceError as error:
            self._log.warning("the row of an invocation: %s", error.message)

    def _soon(self) -> None:
        if not self._due:
            self._due = self._chores.go(self._later(), "invocations") is not None

    async def _later(self) -> None:
        try:
            await asyncio.sleep(DELAY)
        finally:
            self._due = False
        await self.flush()
