"""The files of a box. Paths and names are text or bytes."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from ringfence.client import urls
from ringfence.client.connection import Connection, Json

if TYPE_CHECKING:
    from ringfence.client.command import Word


class Files(Connection):
    def _file(self, user: str, path: Word, tenant: str | None, kind: str = "", **more: str | bytes | int | None) -> str:
        return f"{self._user(user, tenant)}/files{kind}{urls.query(path=path, **more)}"

    async def put_file(
        self,
        user: str,
        path: Word,
        data: bytes | AsyncIterator[bytes],
        *,
        mode: int = 0o644,
        tenant: str | None = None,
    ) -> Json:
        """All of it under the name, or nothing."""
        answer: Json = await self._http.upload(self._file(user, path, tenant, mode=f"{mode:o}"), data)
        return answer

    def open_file(
        self, user: str, path: Word, *, tenant: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The bytes in chunks: `async with client.open_file("ann", "x") as chunks: async for chunk in chunks`."""
        return self._http.stream("GET", self._file(user, path, tenant))

    async def get_file(self, user: str, path: Word, *, tenant: str | None = None) -> bytes:
        """All of it in memory; for what is large there is open_file."""
        async with self.open_file(user, path, tenant=tenant) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def stat_file(self, user: str, path: Word, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", self._file(user, path, tenant, "/stat"))
        return answer

    async def list_page(
        self,
        user: str,
        path: Word = ".",
        *,
        after: str | None = None,
        limit: int | None = None,
        tenant: str | None = None,
    ) -> Json:
        """{"entries": at most `limit` (1 to 1000) of them, sorted by name, "next": the `after` of the page that follows;
        None: there is none}. Each has `name`, or `name_b64` when it is not UTF-8."""
        answer: Json = await self._json("GET", self._file(user, path, tenant, "/list", after=after, limit=limit))
        return answer

    async def list_files(self, user: str, path: Word = ".", *, tenant: str | None = None) -> list[Json]:
        """All entries in memory; for a folder of very many there is list_page."""
        entries: list[Json] = []
        after: str | None = None
        while True:
            page = await self.list_page(user, path, after=after, tenant=tenant)
            entries.extend(page["entries"])
            after = page["next"]
            if after is None:
                return entries

    async def remove_file(self, user: str, path: Word, *, recursive: bool = False, tenant: str | None = None) -> None:
        await self._json("DELETE", self._file(user, path, tenant, recursive="1" if recursive else None))


def name_of(entry: Json) -> bytes:
    """The raw name of an entry of list_files or stat_file."""
    name = entry.get("name")
    return name.encode() if isinstance(name, str) else b64decode(entry["name_b64"])
