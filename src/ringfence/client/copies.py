"""Copies of a box's files, and what is done with all of them at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from ringfence.client import urls
from ringfence.client.connection import Connection, Json


class Copies(Connection):
    async def snapshot(self, user: str, *, name: str = "", force: bool = False, tenant: str | None = None) -> Json:
        """{"snapshot": {...}, "left_out": {kind: how many}}."""
        body = {"name": name, "force": force}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/snapshots", body)
        return answer

    async def snapshots(self, user: str, *, tenant: str | None = None) -> list[Json]:
        """Oldest first."""
        return list((await self._json("GET", f"{self._user(user, tenant)}/box/snapshots"))["snapshots"])

    async def remove_snapshot(self, user: str, snapshot: str, *, tenant: str | None = None) -> None:
        await self._json("DELETE", f"{self._user(user, tenant)}/box/snapshots/{urls.segment(snapshot)}")

    async def restore_box(
        self,
        user: str,
        snapshot: str,
        *,
        force: bool = False,
        drain: float = 0.0,
        keep: bool = True,
        tenant: str | None = None,
    ) -> Json:
        """By id or name. {"box", "before": the copy of what it had, or None, "left_out"}."""
        path = f"{self._user(user, tenant)}/box/snapshots/{urls.segment(snapshot)}/restore"
        answer: Json = await self._json("POST", path, {"force": force, "drain": drain, "keep": keep})
        return answer

    async def clone_box(
        self,
        user: str,
        to: str,
        *,
        snapshot: str | None = None,
        force: bool = False,
        drain: float = 0.0,
        keep: bool = True,
        tenant: str | None = None,
    ) -> Json:
        """As `restore_box`, of the box of `to`; for operators."""
        path = f"{self._user(user, tenant)}/box/clone/{urls.segment(to)}"
        body = {"snapshot": snapshot, "force": force, "drain": drain, "keep": keep}
        answer: Json = await self._json("POST", path, body)
        return answer

    async def reset_box(
        self,
        user: str,
        *,
        keep_files: bool = False,
        force: bool = False,
        drain: float = 0.0,
        keep: bool = True,
        tenant: str | None = None,
    ) -> Json:
        body = {"keep_files": keep_files, "force": force, "drain": drain, "keep": keep}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/reset", body)
        return answer

    async def archive_box(
        self, user: str, *, force: bool = False, drain: float = 0.0, tenant: str | None = None
    ) -> Json:
        body = {"force": force, "drain": drain}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/archive", body)
        return answer

    async def recover_box(
        self, user: str, action: str, *, force: bool = False, drain: float = 0.0, tenant: str | None = None
    ) -> Json:
        """`action`: fsck or free-space; for operators. {"box", "action", "found", "freed_bytes", "removed"}."""
        body = {"action": action, "force": force, "drain": drain}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/recover", body)
        return answer

    def export_box(
        self, user: str, *, force: bool = False, tenant: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A tar in chunks, as it is made; for operators. An answer that breaks off raises: what came is not whole."""
        wish = urls.query(force="true" if force else None)
        return self._http.stream("GET", f"{self._user(user, tenant)}/box/export{wish}")
