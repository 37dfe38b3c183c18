"""A whole worker at its control socket, in this process: what it does with a value when it is told of less than before."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.egress import configured
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.worker import Worker
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Use
from tests.support.egress_outside import Ca, configuration, pin
from tests.support.egress_rig import INVOCATION, SECRET, Reply, binding, placeholder, reply, request, rule
from tests.support.egress_tls import Authority
from tests.support.egress_upstream import Arrived, Upstream

PH = placeholder()
BEARER = f"Authorization: Bearer {PH}"


@dataclass
class Told:
    control: socket.socket
    made: Configuration
    ca: Ca
    upstream: Upstream
    port: int
    seq: int = 0
    asked: int = 0  # for the value

    def say(self, packet: dict[str, Any], fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.control, [json.dumps(packet).encode()], fds)

    async def hear(self, kind: str) -> None:
        """Until a packet of this kind; answers what the worker asks for meanwhile."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(5):
            while True:
                said = json.loads(await loop.sock_recv(self.control, 128 << 10))
                if said["t"] == "secret":
                    self.asked += 1
                    value = base64.b64encode(SECRET).decode()
                    self.say({"t": "secret", "n": said["n"], "value": value, "version": 1, "keep": None})
                if said["t"] == kind:
                    return

    async def configure(self, **fields: Any) -> None:
        self.made, self.seq = replace(self.made, **fields), self.seq + 1
        parts = configured.parts(configured.as_text(self.made))
        for number, text in enumerate(parts):
            self.say({"t": "configure", "seq": self.seq, "part": number, "parts": len(parts), "text": text})
        await self.hear("done")

    def tickets(self, *items: str, ended: bool = False) -> None:
        made: list[dict[str, Any]] = [
            {"digest": placeholders.digest(each), "credential": "crd_1", "binding": "bnd_1", "more": [], "uses": None}
            for each in items
        ]
        told = [{**each, "expires": 1e10} for each in made]
        self.say({"t": "tickets", "invocation": INVOCATION, "items": told, "ended": ended})

    async def opened(self, *, plain: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """`plain`: without the stand-in."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(self.ca.trusting(), server_hostname="api.test")
        writer.write(request("GET", "/", *([] if plain else [BEARER])))
        return reader, writer

    async def get(self, *, plain: bool = False) -> Reply:
        reader, writer = await self.opened(plain=plain)
        hearing = asyncio.ensure_future(self.hear("never"))
        try:
            return await reply(reader)
        finally:
            hearing.cancel()
            writer.transport.abort()


@asynccontextmanager
async def told(directory: Path) -> AsyncIterator[Told]:
    ca, upstream_ca, upstream = Ca("user"), Authority(directory, "upstream"), Upstream()
    await upstream.start(upstream_ca.context("api.test"))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    made = configuration(ca, upstream_ca.pem, rules=(rule(),), pins=(pin("api.test", upstream.port),))
    with here, socket.create_server(("127.0.0.1", 0)) as listener:
        async with asyncio.TaskGroup() as group:
            worker = Worker(there, Trust(), group)
            one = Told(here, made, ca, upstream, listener.getsockname()[1])
            await one.configure(bindings=(binding(),))
            one.say({"t": "listen", "kind": "proxy", "port": 101, "invocation": INVOCATION}, [listener.fileno()])
            one.tickets(PH)
            yield one
            one.say({"t": "end"})
            await worker.over()
            worker.stop()
    await upstream.stop()


@pytest.mark.parametrize("bound", [True, False])
async def test_a_value_is_forgotten_with_its_binding(tmp_path: Path, *, bound: bool) -> None:
    async with told(tmp_path) as worker:
        for _ in range(2):
            assert (await worker.get()).status == 200
        assert worker.asked == 1
        await worker.configure(bindings=(binding(),) if bound else ())
        await worker.configure(bindings=(binding(),))
        assert (await worker.get()).status == 200
        assert worker.asked == (1 if bound else 2)


@pytest.mark.parametrize("ended", [True, False])
async def test_an_injected_value_is_kept_while_its_command_lives(tmp_path: Path, *, ended: bool) -> None:
    """A reload says again which stand-ins a command has: none, of one that has no need of any."""
    async with told(tmp_path) as worker:
        worker.tickets()
        await worker.configure(bindings=(binding(use=Use.INJECT),))
        assert (await worker.get(plain=True)).status == 200
        worker.tickets(ended=ended)
        await worker.configure(bindings=(binding(use=Use.INJECT),))
        assert (await worker.get(plain=True)).status == 200
        assert worker.asked == (2 if ended else 1)
        assert [each.value("authorization") for each in worker.upstream.arrived] == [b"Bearer " + SECRET] * 2


async def test_a_value_of_so_many_uses_is_asked_for_each_time(tmp_path: Path) -> None:
    async with told(tmp_path) as worker:
        await worker.configure(bindings=(binding(uses=9),))
        for _ in range(3):
            assert (await worker.get()).status == 200
        assert worker.asked == 3


@pytest.mark.parametrize("ends", [True, False])
async def test_a_command_that_ends_takes_its_streams_with_it(tmp_path: Path, *, ends: bool) -> None:
    async def events(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"5\r\ntick\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with told(tmp_path) as worker:
        worker.upstream.handler = events
        reader, writer = await worker.opened()
        hearing = asyncio.ensure_future(worker.hear("never"))
        await reader.readuntil(b"tick")
        worker.tickets(*([] if ends else [PH]), ended=ends)
        ended = False
        try:
            for _ in range(30):
                await asyncio.wait_for(reader.readuntil(b"tick"), 2)
        except (ConnectionError, asyncio.IncompleteReadError):
            ended = True
        hearing.cancel()
        writer.transport.abort()
        assert ended is ends
