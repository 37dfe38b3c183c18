"""What every part of the SDK stands on: the address, who asks, and requests. Holds no state but its connections."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ringfence.client import urls
from ringfence.client.address import Address, from_environment
from ringfence.client.http import Http

Json = dict[str, Any]
RESUME_SECONDS = 20.0  # how long what is followed tries to come back: a restarted server needs about one


class Connection:
    resume_seconds = RESUME_SECONDS

    def __init__(
        self,
        *,
        socket: str | None = None,
        url: str | None = None,
        token: str | None = None,
        act_as: str | None = None,
        tenant: str = "default",
    ) -> None:
        given = Address(socket if url is None else None, url, token)
        self._address = given if socket or url else from_environment()
        self._headers = urls.identity(self._address.token, act_as, tenant)
        self._http = Http(self._address, self._headers)
        self._tenant = tenant

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()

    def _user(self, user: str, tenant: str | None) -> str:
        return urls.user_path(tenant or self._tenant, user)

    def _thread(self, thread: str, tenant: str | None) -> str:
        return urls.thread_path(tenant or self._tenant, thread)

    def _in_tenant(self, tenant: str | None, noun: str) -> str:
        return f"/v1/tenants/{urls.segment(tenant or self._tenant)}/{noun}"

    async def _json(self, method: str, path: str, body: object = None) -> Any:
        return await self._http.json(method, path, body)
