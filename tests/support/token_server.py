"""A token endpoint over real TLS on loopback, as services run one: refresh tokens that are good once, or as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ringfence.host.egress.configuration import Pin
from ringfence.host.egress.site import Site
from tests.support.egress_tls import Authority

HOST, PATH = "auth.test", "/oauth/token"
URL = f"https://{HOST}{PATH}"
FIRST = "refresh-1"
Raw = bytes | None  # None: nothing is answered


@dataclass(frozen=True)
class Seen:
    line: str
    head: Mapping[str, str]
    form: Mapping[str, str]


@dataclass
class TokenServer:
    """`good`: refresh tokens that are taken; each is exchanged for the next when `rotates`. `raw`: what is answered instead, by
    the number of the request. `before`: awaited before an answer."""

    ca: Authority
    port: int = 0
    good: set[str] = field(default_factory=lambda: {FIRST})
    rotates: bool = False
    expires_in: Any = 3600
    raw: Callable[[int], Raw] | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[Seen] = field(default_factory=list)
    issued: list[str] = field(default_factory=list)  # access tokens
    handed: list[str] = field(default_factory=list)  # refresh tokens

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def asked(self) -> int:
        return len(self.seen)

    def site(self, **fields: Any) -> Site:
        pins = (Pin(HOST, 443, "127.0.0.1", self.port), *fields.pop("pins", ()))
        return Site(roots=self.ca.pem, pins=pins, **fields)

    async def served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.rstrip("\r\n").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
            body = (await reader.readexactly(int(fields.get("content-length", "0")))).decode()
            self.seen.append(Seen(line, fields, dict(parse_qsl(body))))
            number = len(self.seen)
            await self.gate.wait()
            answer = self.raw(number) if self.raw is not None else self.answered(self.seen[-1].form)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
            else:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def answered(self, form: Mapping[str, str]) -> bytes:
        token = form.get("refresh_token", "")
        if form.get("grant_type") != "refresh_token" or token not in self.good:
            return reply(400, {"error": "invalid_grant", "error_description": f"no such token: {token}"})
        self.issued.append(f"access-{len(self.issued) + 1}")
        said = {"access_token": self.issued[-1], "token_type": "Bearer", "expires_in": self.expires_in}
        if self.rotates:
            self.good.remove(token)
            self.handed.append(f"refresh-{len(self.handed) + 2}")
            self.good.add(self.handed[-1])
            said["refresh_token"] = self.handed[-1]
        return reply(200, said)


def reply(status: int, body: Mapping[str, Any] | bytes, *head: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(data)}", *head, "", ""]
    return "\r\n".join(lines).encode() + data


@asynccontextmanager
async def token_server(directory: Path, host: str = HOST) -> AsyncIterator[TokenServer]:
    made = TokenServer(Authority(directory, f"ca-{host}"))
    server = await asyncio.start_server(made.served, "127.0.0.1", 0, ssl=made.ca.context(host))
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.gate.set()
        server.close()
