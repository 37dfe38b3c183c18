"""`box logs`: why a box started, stopped, came to rest or was lost, what its PID 1 said, and who asked for what.

For the user and for operators, of one box. It reads, and changes nothing of the box: nobody keeps one awake by reading its log. What
PID 1 of every box has said is fetched each SAID_SECONDS, and before a log is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.life.logs import LogLine, Source, newest, of_audit, said_lines
from ringfence.host.kernel.people import Actor, User

SAID_SECONDS = 2.0
RECORDED_SECONDS = 900.0  # as looks at the text of a thread
MAX_LINES = 10_000
_PAGE, _PAGES = 1000, 5  # rows of the audit that are looked through: the newest 5,000 of everybody


@dataclass(frozen=True, slots=True)
class LogView:
    """Oldest first. `until`: give it as `since`, and nothing comes twice but what was written late: leave out the ids that you have.
    `more`: older ones were left out."""

    lines: Sequence[LogLine]
    until: datetime
    more: bool


class LogReader:
    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors
        self._asking = asyncio.Lock()
        self._passed: dict[
            tuple[object, ...], float
        ] = {}  # monotonic: who was let to whose log, and when that was recorded
        self._log = logging.getLogger("ringfence.logs")

    async def read(self, actor: Actor, tenant: str, user: str, since: datetime | None, lines: int) -> LogView:
        """The `lines` newest, of those of `since` or later."""
        target = await self._let_in(actor, tenant, user)
        box = await home_of(self._parts, target)
        await self.listen()
        until = self._parts.clock.now()
        kept = await self._parts.logs.read(box.id, since)
        rows, older = await self._rows(since)
        told = [of_audit(row) for row in rows if _is_of(row, target.id, box.id)]
        found, more = newest([*kept, *told], min(lines, MAX_LINES))
        return LogView(found, until, more or older)

    async def _let_in(self, actor: Actor, tenant: str, user: str) -> User:
        """Who follows a log asks each second: an operator's look is recorded again every RECORDED_SECONDS, not with each."""
        now = self._parts.clock.monotonic()
        self._passed = {who: at for who, at in self._passed.items() if now - at < RECORDED_SECONDS}
        who = (None if actor.user is None else actor.user.id, actor.operator, actor.via, tenant, user)
        if who in self._passed:
            return await self._doors.user(Action.BOX_SEE, actor, tenant, user)
        target = await self._doors.user(Action.BOX_LOGS, actor, tenant, user)
        self._passed[who] = now
        return target

    async def loop(self) -> None:
        while True:
            await asyncio.sleep(SAID_SECONDS)
            await self.listen()

    async def listen(self) -> None:
        """Never raises but a cancellation."""
        async with self._asking:
            try:
                for said in await self._parts.driver.said():
                    for line in said_lines(said):
                        self._parts.logs.tell(said.box, Source.GUEST, line)
            except RingfenceError as error:
                self._log.warning("what boxes say is not known: %s", error)

    async def _rows(self, since: datetime | None) -> tuple[list[dict[str, Any]], bool]:
        found: list[dict[str, Any]] = []
        before: str | None = None
        for _ in range(_PAGES):
            page = await self._parts.store.audit.page(frozenset({Lane.ACT}), since, before, _PAGE)
            found += page
            if len(page) < _PAGE:
                return found, False
            before = page[-1]["id"]
        return found, True


def _is_of(row: Mapping[str, Any], user: str, box: str) -> bool:
    """Of the box itself; or asked of its user, about the box. Who looked at it is none of that."""
    action = str(row["action"])
    if action in ("box.see", "box.logs"):
        return False
    return bool(row["subject"] == f"box:{box}" or (row["subject"] == f"user:{user}" and action.startswith("box.")))
