"""What boxes used, day by day, and a user's own data as one archive."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class Usage(Connection):
    async def usage(
        self, user: str, *, first: str | None = None, last: str | None = None, tenant: str | None = None
    ) -> Json:
        """{"first", "last", "rows", "sum"}: a row for each day of UTC. `first`, `last`: 2026-01-31; without: the last 30 days."""
        wish = urls.query(**{"from": first, "to": last})
        answer: Json = await self._json("GET", f"{self._user(user, tenant)}/usage{wish}")
        return answer

    async def tenant_usage(
        self, *, first: str | None = None, last: str | None = None, tenant: str | None = None
    ) -> Json:
        """As `usage`, a row for each day and user; for operators."""
        wish = urls.query(**{"from": first, "to": last})
        answer: Json = await self._json("GET", self._in_tenant(tenant, "usage") + wish)
        return answer

    def export_user(self, user: str, *, tenant: str | None = None) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A .tar.gz in chunks, as it is made. An answer that breaks off raises: what came is not whole."""
        return self._http.stream("GET", f"{self._user(user, tenant)}/export")
