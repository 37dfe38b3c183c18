"""Tenants, users and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class People(Connection):
    async def tenants(self) -> list[Json]:
        return list((await self._json("GET", "/v1/tenants"))["tenants"])

    async def add_tenant(self, name: str) -> Json:
        answer: Json = await self._json("POST", "/v1/tenants", {"name": name})
        return answer

    async def remove_tenant(self, name: str) -> None:
        await self._json("DELETE", f"/v1/tenants/{urls.segment(name)}")

    async def users(self, *, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", self._in_tenant(tenant, "users")))["users"])

    async def add_user(
        self, name: str, *, kind: str = "person", owner: str | None = None, tenant: str | None = None
    ) -> Json:
        body = {"name": name, "kind": kind, "owner": owner}
        answer: Json = await self._json("POST", self._in_tenant(tenant, "users"), body)
        return answer

    async def user(self, name: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", self._user(name, tenant))
        return answer

    async def remove_user(self, name: str, *, purge: bool = False, tenant: str | None = None) -> None:
        """`purge`: the files too, now and for good."""
        await self._json("DELETE", self._user(name, tenant) + ("?purge=1" if purge else ""))

    async def removal(self, name: str, *, tenant: str | None = None) -> Json:
        """What removing the user would take, and what would stay. Changes nothing; for operators."""
        answer: Json = await self._json("GET", f"{self._user(name, tenant)}/removal")
        return answer

    async def tokens(self, user: str, *, tenant: str | None = None) -> list[Json]:
        return list((await self._json("GET", f"{self._user(user, tenant)}/tokens"))["tokens"])

    async def add_token(
        self,
        user: str,
        *,
        scopes: Sequence[str] = ("user",),
        note: str = "",
        ttl_seconds: float | None = None,
        tenant: str | None = None,
    ) -> Json:
        """Its `token` is in this answer and nowhere else, ever."""
        body = {"scopes": list(scopes), "note": note, "ttl_seconds": ttl_seconds}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/tokens", body)
        return answer

    async def remove_token(self, user: str, token_id: str, *, tenant: str | None = None) -> None:
        await self._json("DELETE", f"{self._user(user, tenant)}/tokens/{urls.segment(token_id)}")
