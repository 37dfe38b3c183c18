"""What went out of one user's box, and what was refused: for the user, the owner and operators.

Three kinds of lines: traffic, which is in memory and no evidence; values that were released and requests that write, which
are; findings. Of nobody else's box. It reads, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ringfence.host.engine.doors import Doors
from ringfence.host.engine.homes import home_of
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.access import Action
from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.people import Actor

_LANES = frozenset({Lane.ACT, Lane.RELEASE, Lane.INTENT})
_PAGE, _PAGES = 1000, 5  # rows that are looked through: the newest 5,000 of everybody
_RING = 4096  # of store.audit: all that it remembers
_ACTS = ("egress.", "secret.", "credential.", "hold.", "worker.")


@dataclass(frozen=True, slots=True)
class LogView:
    """Newest first. `until`: give it as `since`, and nothing comes twice; a row whose commit took longer than that look is in
    neither, so whoever must miss none asks from some seconds before it, and leaves out the ids that it has. `dropped`: traffic
    of all boxes that is forgotten. `more`: older ones were left out, by `limit` or behind the newest rows of everybody."""

    traffic: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    dropped: int
    until: datetime
    more: bool


class EgressLog:
    def __init__(self, parts: Parts, doors: Doors) -> None:
        self._parts, self._doors = parts, doors

    async def read(self, actor: Actor, tenant: str, user: str, since: datetime | None, limit: int) -> LogView:
        """What came at `since` or later, `limit` of each kind at most."""
        target = await self._doors.user(Action.EGRESS_SEE, actor, tenant, user)
        until = self._parts.clock.now()
        box = (await home_of(self._parts, target)).id
        seen = self._parts.store.audit.seen(_RING)
        traffic = [each for each in seen["newest"] if each["box"] == box and _within(each["at"], since, until)]
        looked, more = await self._rows(since)
        rows = [each for each in looked if _is_of(each, target.id, box) and _within(each["at"], since, until)]
        more = more or max(len(traffic), len(rows)) > limit
        return LogView(traffic[:limit], rows[:limit], seen["dropped"], until, more)

    async def _rows(self, since: datetime | None) -> tuple[list[dict[str, Any]], bool]:
        """Of everybody, and whether there are older ones."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        for _ in range(_PAGES):
            page = await self._parts.store.audit.page(_LANES, since, before, _PAGE)
            found += page
            if len(page) < _PAGE:
                return found, False
            before = page[-1]["id"]
        return found, True


def _within(at: object, since: datetime | None, until: datetime) -> bool:
    moment = at if isinstance(at, datetime) else datetime.fromisoformat(str(at).replace("Z", "+00:00"))
    return (since is None or moment >= since) and moment < until


def _is_of(row: Mapping[str, Any], user: str, box: str) -> bool:
    details: Mapping[str, Any] = row["details"]
    of_box = f"box:{box}" in (row["subject"], details.get("to")) or details.get("box") == box
    of_user = row["subject"] == f"user:{user}" or user in (details.get("user"), details.get("of"))
    if row["lane"] == Lane.ACT.value and not str(row["action"]).startswith(_ACTS):
        return False
    return of_box or of_user
