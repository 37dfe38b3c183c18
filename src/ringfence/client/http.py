"""Requests over HTTP, on a unix socket or TCP. Maps every foreign error; imports httpx2 only when it is used."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from ringfence.client.address import Address, unreachable
from ringfence.client.errors import Failed, Unavailable, from_answer

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
KEPT = 100  # idle connections
STALL_SECONDS = 60.0  # without one byte taken by the server: an upload has no limit as a whole


class Http:
    def __init__(self, address: Address, headers: dict[str, str]) -> None:
        self._address = address
        self._headers = headers
        self._client: httpx2.AsyncClient | None = None

    def _open(self) -> httpx2.AsyncClient:
        if self._client is None:
            import httpx2

            plain = self._address.base.startswith("http:")  # no TLS: spare the loading of all root certificates
            transport = httpx2.AsyncHTTPTransport(
                uds=self._address.socket if self._address.url is None else None,
                verify=not plain,
                trust_env=False,
                # As many as there are commands under way: each has one until its end, and no other request is to wait for that.
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=KEPT, keepalive_expiry=20),
            )
            # No limit on the wait for an answer: a command or a box's start takes as long as it takes.
            timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, write=STALL_SECONDS)
            self._client = httpx2.AsyncClient(
                transport=transport,
                base_url=self._address.base,
                headers=self._headers,
                timeout=timeout,
                trust_env=False,
            )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def json(self, method: str, path: str, body: object = None) -> Any:
        """The answer's JSON; None for an empty one. Raises ApiError."""
        content, headers = _encoded(body)
        return await self._exchange(method, path, content, headers)

    async def upload(self, path: str, data: AsyncIterator[bytes] | bytes) -> Any:
        return await self._exchange("PUT", path, data, {"Content-Type": "application/octet-stream"})

    async def _exchange(
        self, method: str, path: str, content: AsyncIterator[bytes] | bytes | None, headers: dict[str, str]
    ) -> Any:
        client = self._open()
        with self._mapped():
            response = await client.request(method, path, content=content, headers=headers)
        return _read(response.status_code, response.content)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: object = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of an answer in chunks, as they come."""
        client = self._open()
        content, typed = _encoded(body)
        with self._mapped():
            async with client.stream(method, path, content=content, headers={**(headers or {}), **typed}) as response:
                if response.status_code >= 400:
                    _read(response.status_code, await response.aread())
                yield response.aiter_raw()

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        import httpx2

        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise unreachable(self._address, str(error)) from error
        except httpx2.InvalidURL as error:
            raise Unavailable(
                "unavailable", f"{self._address} is no address: {error}", "check RINGFENCE_URL"
            ) from error
        except httpx2.TransportError as error:
            raise Unavailable(
                "connection_lost",
                f"the connection to the server ended: {error or type(error).__name__}",
                "see whether it runs: ringfence status",
            ) from error


def _encoded(body: object) -> tuple[bytes | None, dict[str, str]]:
    """(JSON, its header); of nothing: nothing."""
    if body is None:
        return None, {}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"), {"Content-Type": "application/json"}


def _read(status: int, content: bytes) -> Any:
    try:
        answer = json.loads(content) if content else None
    except ValueError:
        raise Failed("failed", f"the server's answer is no JSON (HTTP {status})", "is it ringfence?") from None
    if status >= 400:
        raise from_answer(answer, status)
    return answer
