"""Boxes, and commands in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal

from ringfence.client import once, urls
from ringfence.client.connection import Connection, Json
from ringfence.client.errors import ApiError

if TYPE_CHECKING:
    from ringfence.client.command import Running, Word


class Boxes(Connection):
    async def boxes(self, *, tenant: str | None = None) -> list[Json]:
        """Of all tenants, unless one is named."""
        return list((await self._json("GET", "/v1/boxes" + urls.query(tenant=tenant)))["boxes"])

    async def box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("GET", f"{self._user(user, tenant)}/box")
        return answer

    async def start_box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/start")
        return answer

    async def stop_box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/stop")
        return answer

    async def pause_box(self, user: str, *, force: bool = False, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/pause", {"force": force})
        return answer

    async def resume_box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/resume")
        return answer

    async def quarantine_box(self, user: str, reason: str, *, tenant: str | None = None) -> Json:
        """Operators only. Whoever is refused something is told the reason."""
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/quarantine", {"reason": reason})
        return answer

    async def release_box(self, user: str, *, tenant: str | None = None) -> Json:
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/release")
        return answer

    async def upgrade_box(
        self,
        user: str,
        *,
        force: bool = False,
        drain: float = 0.0,
        image: str | None = None,
        tenant: str | None = None,
    ) -> Json:
        """{"box", "drifted": what it was started with that is another now}. `drain`: seconds to wait while it is at work. `image`:
        name or id of the one it has from now on, `host` or `default`; None: what its image's name stands for now."""
        body = {"force": force, "drain": drain, "image": image}
        answer: Json = await self._json("POST", f"{self._user(user, tenant)}/box/upgrade", body)
        return answer

    async def set_limits(self, user: str, limits: Mapping[str, int], *, tenant: str | None = None) -> Json:
        """Names and units as in `box()["limits"]`, of which only the given ones change."""
        answer: Json = await self._json("PATCH", f"{self._user(user, tenant)}/box/limits", dict(limits))
        return answer

    def stream(
        self,
        user: str,
        argv: Sequence[Word],
        *,
        env: Mapping[str, Word] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        stdin: Literal["null", "pipe"] = "null",
        output: Literal["stream", "keep"] = "stream",
        tenant: str | None = None,
    ) -> AbstractAsyncContextManager[Running]:
        """A running command: `async with client.stream("ann", ["make"]) as command`. Leaving early stops it."""
        from ringfence.client.command import request, running

        first = request(argv, env or {}, cwd, timeout, stdin, output)
        return running(self._address, f"{self._user(user, tenant)}/exec/stream", self._headers, first)

    async def exec(
        self,
        user: str,
        argv: Sequence[Word],
        *,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        env: Mapping[str, Word] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the command's, kept by the box
        tenant: str | None = None,
    ) -> Json:
        """Runs it to its end; the object of `exec --json`. Of each stream the first 64 KiB and the last 192 KiB. Whoever is cancelled
        stops it. ApiError of code `connection_lost`: it may still be running."""
        if (body := once.request(argv, env or {}, cwd, timeout, stdin)) is not None:
            return await self._once(f"{self._user(user, tenant)}/exec", body)
        opened = self.stream(
            user,
            argv,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin="null" if stdin is None else "pipe",
            output="keep",
            tenant=tenant,
        )
        async with opened as command:
            if isinstance(stdin, bytes):
                await command.write(stdin)
            elif stdin is not None:
                async for data in stdin:
                    await command.write(data)
            if stdin is not None:
                await command.close_stdin()
            return await command.outcome()

    async def _once(self, path: str, body: Json) -> Json:
        try:
            outcome: Json = await self._json("POST", path, body)
        except ApiError as error:
            if error.code != "connection_lost":
                raise
            raise once.lost() from error
        return outcome
