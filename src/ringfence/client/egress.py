"""Rules of the way out, what they come to, and what went out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from datetime import datetime, timedelta

from ringfence.client import urls
from ringfence.client.connection import Connection, Json
from ringfence.client.errors import Unavailable

LOOK_SECONDS = 1.0  # between two looks of `follow_egress`
# How far each look goes back: a row has the time of before its commit, which is soon over, and the clocks of several servers of
# one database differ. A box makes 40 rows a second at most, so ten seconds of them are less than MOST.
LATE_SECONDS = 10.0
MOST = 1000


class Egress(Connection):
    """Where a user is asked for: None is the tenant's layer, and with `installation` the installation's; operators only."""

    async def egress_rules(self, user: str | None, *, installation: bool = False, tenant: str | None = None) -> Json:
        """{"rules", "lint"}. Of a user those of all layers, as they count for that user."""
        answer: Json = await self._json("GET", self._layer(user, installation, tenant))
        return answer

    async def add_egress_rule(
        self, user: str | None, rule: Json, *, installation: bool = False, tenant: str | None = None
    ) -> Json:
        """`rule`: NewRule of the API, such as {"answer": "allow", "host": "api.example.com"}. {"rules", "lint"} of the new."""
        answer: Json = await self._json("POST", self._layer(user, installation, tenant), rule)
        return answer

    async def remove_egress_rule(
        self, user: str | None, rule: str, *, installation: bool = False, tenant: str | None = None
    ) -> Json:
        """The rule that is gone."""
        path = f"{self._layer(user, installation, tenant)}/{urls.segment(rule)}"
        answer: Json = await self._json("DELETE", path)
        return answer

    async def test_egress(self, user: str, method: str, url: str, *, tenant: str | None = None) -> Json:
        """What would become of a request, and why. Nothing goes out."""
        body = {"method": method, "url": url}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/egress-test", body)
        return answer

    async def egress_log(
        self, user: str, *, since: str | None = None, limit: int = 100, tenant: str | None = None
    ) -> Json:
        """{"traffic", "rows", "dropped", "until", "more"}, newest first. `since`: ISO 8601."""
        path = f"{self._user(user, tenant)}/egress-log{urls.query(since=since, limit=limit)}"
        answer: Json = await self._json("GET", path)
        return answer

    async def follow_egress(
        self, user: str, *, since: str | None = None, limit: int = MOST, tenant: str | None = None
    ) -> AsyncGenerator[Json, None]:
        """What `egress_log` answers, again and again, nothing twice, `limit` at the first look. A row that is committed late, or
        by a server whose clock is behind, is not missed, up to LATE_SECONDS. Never ends by itself. A server that goes away is
        asked again, for `resume_seconds`; then Unavailable. Traffic that it had in memory is gone with it."""
        loop = asyncio.get_running_loop()
        good = float("-inf")  # when it last answered
        given, until = set[str](), ""
        while True:
            try:
                found = await self.egress_log(user, since=_before(until) if until else since, limit=MOST, tenant=tenant)
            except Unavailable:
                if loop.time() - good > self.resume_seconds:
                    raise
            else:
                ids = {each["id"] for each in found["rows"]}  # all that is within the next look, and was given
                yield _news(found, given, until) if until else _cut(found, limit)
                given, until, good = ids, found["until"], loop.time()
            await asyncio.sleep(LOOK_SECONDS)

    def _layer(self, user: str | None, installation: bool, tenant: str | None) -> str:
        if installation:
            return "/v1/egress"
        return self._in_tenant(tenant, "egress") if user is None else f"{self._user(user, tenant)}/egress"


def _before(until: str) -> str:
    return (_moment(until) - timedelta(seconds=LATE_SECONDS)).isoformat()


def _news(found: Json, given: Collection[str], until: str) -> Json:
    """Without what came before. Traffic is in the server's memory at once, and has no id: its time is exact."""
    traffic = [each for each in found["traffic"] if _moment(each["at"]) >= _moment(until)]
    return {**found, "traffic": traffic, "rows": [each for each in found["rows"] if each["id"] not in given]}


def _cut(found: Json, limit: int) -> Json:
    kept = {name: found[name][:limit] for name in ("traffic", "rows")}
    return {**found, **kept, "more": found["more"] or any(len(kept[name]) < len(found[name]) for name in kept)}


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
