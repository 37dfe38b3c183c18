"""The log of a box."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

from ringfence.client import urls
from ringfence.client.connection import Connection, Json
from ringfence.client.errors import Unavailable

LOOK_SECONDS = 1.0  # between two looks of `follow_box_logs`
# How far each look goes back: a row of the audit has the time of before its commit, and the clocks of several servers of one
# database differ. Of what a box itself says no more is kept in ten seconds than MOST lines.
LATE_SECONDS = 10.0
MOST = 10_000


class Logs(Connection):
    async def box_logs(
        self, user: str, *, since: str | None = None, lines: int = 100, tenant: str | None = None
    ) -> Json:
        """{"lines": [{"id", "at", "source", "text"}], "until", "more"}, oldest first. `since`: ISO 8601."""
        path = f"{self._user(user, tenant)}/box/logs{urls.query(since=since, lines=lines)}"
        answer: Json = await self._json("GET", path)
        return answer

    async def follow_box_logs(
        self, user: str, *, lines: int = 100, tenant: str | None = None
    ) -> AsyncGenerator[list[Json], None]:
        """The newest `lines`, then what comes, nothing twice. Never ends by itself, and keeps no box awake. A server that goes away
        is asked again, for `resume_seconds`; then Unavailable."""
        loop = asyncio.get_running_loop()
        good = float("-inf")  # when it last answered
        given, until = set[str](), ""
        floor = ""  # the first line that was given: older ones were left out on purpose
        while True:
            try:
                since, most = (_before(until), MOST) if until else (None, lines)
                found = await self.box_logs(user, since=since, lines=most, tenant=tenant)
            except Unavailable:
                if loop.time() - good > self.resume_seconds:
                    raise
            else:
                floor = floor or (found["lines"][0]["at"] if found["lines"] else found["until"])
                fresh = [
                    each for each in found["lines"] if each["id"] not in given and not _is_before(each["at"], floor)
                ]
                given = {each["id"] for each in found["lines"]}
                until, good = found["until"], loop.time()
                if fresh:
                    yield fresh
            await asyncio.sleep(LOOK_SECONDS)


def _is_before(at: str, floor: str) -> bool:
    return datetime.fromisoformat(at) < datetime.fromisoformat(floor)


def _before(until: str) -> str:
    return (datetime.fromisoformat(until) - timedelta(seconds=LATE_SECONDS)).isoformat()
