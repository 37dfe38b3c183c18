"""A receiver of webhooks on loopback: what the outside world has seen, counted by key, and every way to behave badly.

The oracle of the effect tests. `done` has a key once, as with a good receiver; `arrived` counts everything that reached it.
With a log, what arrived and what was carried out, as often as it was, are lines that are on disk before anything is answered.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.oracle import EffectLog

SECRET = b"canary-secret-of-a-webhook"


class Receiver:
    def __init__(self, log: Path | None = None) -> None:
        self.log = None if log is None else EffectLog(log)
        self.arrived: Counter[str] = Counter()  # by key: requests
        self.done: dict[str, dict[str, Any]] = {}  # by key: what was carried out
        self.looked: list[str] = []
        self.bad: list[str] = []  # what was wrong with a request
        # ok, refuse, 401, 403, fail_before, fail_after, hang_before, hang_after, cut_after, redirect, large
        self.behave = "ok"
        self.first = ""  # how it behaves to the first request of each key; "": as to all
        self.pause = 0.0  # seconds that it takes to carry out; who asks meanwhile is told `unknown`
        self._under_way: set[str] = set()
        self.says: str | bytes | None = None  # the answer of the look-up; None: the truth
        self.gate = asyncio.Event()  # set: what hangs goes on
        self.seen = asyncio.Event()  # set by the first POST
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=canary-query"

    @property
    def lookup_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/look"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                method, target, headers = head
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self._answered(method, target, headers, body, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answered(
        self, method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> bool:
        """False: the connection is cut."""
        if method == "GET":
            key = parse_qs(urlsplit(target).query)["key"][0]
            self._check(headers, key.encode())
            self.looked.append(key)
            answer = self.says if self.says is not None else self._truth(key)
            said = answer if isinstance(answer, bytes) else json.dumps({"state": answer}).encode()
            return await _say(writer, 200, said)
        self._check(headers, body)
        key = headers["idempotency-key"]
        self.arrived[key] += 1
        self._note("arrived", key)
        self.seen.set()
        return await self._posted(key, body, writer)

    def _truth(self, key: str) -> str:
        return "unknown" if key in self._under_way else "done" if key in self.done else "not_done"

    async def _posted(self, key: str, body: bytes, writer: asyncio.StreamWriter) -> bool:
        how = self.first if self.first and self.arrived[key] == 1 else self.behave
        if how in ("401", "403"):
            return await _say(writer, int(how), b"who are you?")
        if how == "refuse":
            return await _say(writer, 422, b"no")
        if how == "fail_before":
            return await _say(writer, 500, b"broken")
        if how == "hang_before":
            await self.gate.wait()
        self._under_way.add(key)
        await asyncio.sleep(self.pause)
        self._note("carried", key)
        self._under_way.discard(key)
        self.done.setdefault(key, json.loads(body))
        if how == "hang_after":
            await self.gate.wait()
        if how == "cut_after":
            return False
        status = {"fail_after": 502, "redirect": 302}.get(how, 200)
        return await _say(writer, status, b"x" * 100_000 if how == "large" else b'{"id": 7}')

    def _note(self, what: str, key: str) -> None:
        if self.log is not None:
            self.log.note(what, key)

    def _check(self, headers: dict[str, str], signed: bytes) -> None:
        at = headers.get("ringfence-timestamp", "")
        wanted = "v1=" + hmac.new(SECRET, at.encode() + b"." + signed, hashlib.sha256).hexdigest()
        if headers.get("ringfence-signature") != wanted:
            self.bad.append("signature")


async def _head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, target, _ = lines[0].split(" ")
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    return method, target, {name.lower(): value for name, value in pairs}


async def _say(writer: asyncio.StreamWriter, status: int, body: bytes) -> bool:
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
    await writer.drain()
    return True


@asynccontextmanager
async def receiver(log: Path | None = None) -> AsyncIterator[Receiver]:
    made = Receiver(log)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.gate.set()
        server.close()
        await server.wait_closed()
