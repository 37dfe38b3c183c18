"""The audit, for operators: what was done and released, and whether anybody changed the record."""

from __future__ import annotations

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class Audit(Connection):
    async def audit(
        self, *, lane: str | None = None, since: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Json]:
        """Rows, newest first. `since`: ISO 8601; `before`: the id of the last row of the page before."""
        wish = urls.query(lane=lane, since=since, before=before, limit=limit)
        return list((await self._json("GET", "/v1/audit" + wish))["rows"])

    async def audit_traffic(self, *, limit: int = 100) -> Json:
        """{"newest", "totals", "dropped"}: what the server remembers of what its boxes sent; no evidence."""
        answer: Json = await self._json("GET", "/v1/audit/traffic" + urls.query(limit=limit))
        return answer

    async def audit_verify(self) -> Json:
        """{"ok", "rows", "chains", "findings", "notes", "open", "unchecked"}. Takes as long as it takes."""
        answer: Json = await self._json("GET", "/v1/audit/verify")
        return answer
