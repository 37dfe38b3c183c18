"""Runs: the agent's attempts at turns."""

from __future__ import annotations

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class Runs(Connection):
    async def runs(self, *, limit: int = 100, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", self._in_tenant(tenant, "runs") + urls.query(limit=limit)))["runs"])

    async def run(self, run: str) -> Json:
        answer: Json = await self._json("GET", f"/v1/runs/{urls.segment(run)}")
        return answer

    async def cancel_run(self, run: str) -> Json:
        """The run as it is now: it ends as soon as its loop does."""
        answer: Json = await self._json("POST", f"/v1/runs/{urls.segment(run)}/cancel")
        return answer

    async def redrive_run(self, run: str) -> Json:
        """A failed run is tried again, with what it has done so far. Conflict: it would end the same way."""
        answer: Json = await self._json("POST", f"/v1/runs/{urls.segment(run)}/redrive")
        return answer
