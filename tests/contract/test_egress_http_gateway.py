"""`/model/...` of an invocation's own port, relayed to the model gateway, streaming."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ringfence.host.kernel.outward import placeholders
from tests.support.egress_rig import TRANSPARENT, Reply, Rig, placeholder, reply, request, rig
from tests.support.egress_upstream import Arrived

KEY = placeholder(7, "openai")


@pytest.fixture
async def way(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as made:
        made.kernel.gateway_port = made.plain.port
        yield made


async def asked(way: Rig, *fields: str, path: str = "/model/openai/v1/chat/completions", port: int = 0) -> Reply:
    sent = request("POST", path, *fields, host="127.0.0.1", body=b'{"model": "m"}')
    reader, _ = await (way.raw(sent, port) if port else way.raw(sent))
    return await reply(reader)


@pytest.mark.parametrize("field", [f"Authorization: Bearer {KEY}", f"x-api-key: {KEY}"])
async def test_a_request_reaches_the_gateway_without_its_key(way: Rig, field: str) -> None:
    answered = await asked(way, field, "anthropic-version: 1")
    assert answered.status == 200
    (arrived,) = way.plain.arrived
    assert arrived.line == b"POST /model/openai/v1/chat/completions HTTP/1.1"
    assert arrived.body == b'{"model": "m"}'
    assert arrived.values("authorization") == arrived.values("x-api-key") == []
    assert arrived.value("anthropic-version") == b"1"
    assert KEY.encode() not in arrived.head
    assert way.kernel.gateways == [("inv_1", placeholders.digest(KEY))]
    assert way.kernel.asked == [] and way.kernel.intents == []


async def test_two_requests_use_one_connection_and_another_key_another_one(way: Rig) -> None:
    reader, writer = await way.raw(b"")
    for key in (KEY, KEY, placeholder(8)):
        writer.write(request("GET", "/model/openai/v1/models", f"Authorization: Bearer {key}", host="127.0.0.1"))
        assert (await reply(reader)).status == 200
    assert len(way.kernel.gateways) == way.plain.connections == 2


async def test_events_are_streamed_and_leaving_ends_them(way: Rig) -> None:
    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not reader.at_eof():
            said = b"data: %f\n\n" % time.monotonic()
            writer.write(b"%x\r\n%s\r\n" % (len(said), said))
            await writer.drain()
            await asyncio.sleep(0.02)
        return False

    way.plain.handler = handler
    reader, writer = await way.raw(request("GET", "/model/openai/v1/x", f"x-api-key: {KEY}", host="127.0.0.1"))
    await reader.readuntil(b"\r\n\r\n")
    late = []
    for _ in range(10):
        size = int(await reader.readuntil(b"\r\n"), 16)
        late.append(time.monotonic() - float((await reader.readexactly(size + 2)).split()[1]))
    assert sorted(late)[5] < 0.05
    writer.close()
    async with asyncio.timeout(1):
        while way.plain.ended == 0:
            await asyncio.sleep(0.01)


async def test_without_a_key_or_a_gateway_it_says_so(way: Rig) -> None:
    answered = await asked(way)
    assert (answered.status, answered.reason) == (401, "not_configured")
    way.kernel.gateway_port = 0
    answered = await asked(way, f"Authorization: Bearer {KEY}")
    assert (answered.status, answered.reason) == (404, "not_configured")
    way.configure(gateway=False)
    answered = await asked(way, f"Authorization: Bearer {KEY}")
    assert (answered.status, answered.reason) == (404, "not_configured")


async def test_it_is_on_no_other_port_and_in_no_tunnel(way: Rig) -> None:
    way.destination = ("198.18.0.1", 80)
    answered = await asked(way, f"Authorization: Bearer {KEY}", port=TRANSPARENT)
    assert answered.status == 421
    answered = await way.asked(request("GET", "/model/x", f"x-api-key: {placeholder(9)}"))
    assert answered.reason == "placeholder_unknown"
    assert way.kernel.gateways == []


@pytest.mark.parametrize("path", ["/model/../x", "/model/%2e%2e/x", "/model//x", "/model", "/other/x"])
async def test_paths_that_are_none_of_it(way: Rig, path: str) -> None:
    answered = await asked(way, f"Authorization: Bearer {KEY}", path=path)
    assert (answered.status, answered.reason) == (400, "malformed")
    assert way.kernel.gateways == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9", "localhost:8080", "LOCALHOST", "[::1]:80", "127.8.8.8"])
async def test_it_is_asked_for_as_what_is_of_this_host(way: Rig, host: str) -> None:
    """At any port: of who forwards it within the box, too."""
    reader, _ = await way.raw(request("GET", "/model/openai/v1/models", f"x-api-key: {KEY}", host=host))
    assert (await reply(reader)).status == 200


@pytest.mark.parametrize(
    ("hosts", "status", "reason"),
    [
        (["evil.test"], 421, "authority_mismatch"),  # a page whose name was led here
        (["evil.test:80"], 421, "authority_mismatch"),
        (["model-gateway"], 421, "authority_mismatch"),
        (["10.0.0.1"], 421, "authority_mismatch"),
        (["localhost.evil.test"], 421, "authority_mismatch"),
        (["127.1"], 400, "malformed"),
        ([""], 400, "malformed"),
        ([], 400, "malformed"),
        (["127.0.0.1", "127.0.0.1"], 400, "malformed"),
    ],
)
async def test_for_another_host_nobody_is_asked(way: Rig, hosts: list[str], status: int, reason: str) -> None:
    lines = ["GET /model/openai/v1/models HTTP/1.1", f"x-api-key: {KEY}", *(f"Host: {each}" for each in hosts)]
    reader, _ = await way.raw("\r\n".join(lines).encode() + b"\r\n\r\n")
    answered = await reply(reader)
    assert (answered.status, answered.reason) == (status, reason)
    assert way.kernel.gateways == [] and b"Connection: close" in answered.head


@pytest.mark.parametrize("name", ["Authorization", "x-api-key"])
async def test_two_keys_in_one_place_are_none(way: Rig, name: str) -> None:
    """Which of them is meant, two readers answer in two ways. One in each place is what clients send who have both."""
    for second in (KEY, placeholder(8)):
        answered = await asked(way, f"{name}: {KEY}", f"{name}: {second}")
        assert (answered.status, answered.reason) == (400, "malformed")
    assert way.kernel.gateways == []
    assert (await asked(way, f"Authorization: Bearer {placeholder(8)}", f"x-api-key: {KEY}")).status == 200
    assert way.kernel.gateways == [("inv_1", placeholders.digest(KEY))]


async def test_connect_is_no_method_of_it(way: Rig) -> None:
    """Behind another request, where no tunnel is asked for any more."""
    reader, writer = await way.raw(request("GET", "/model/x", f"x-api-key: {KEY}", host="127.0.0.1"))
    assert (await reply(reader)).status == 200
    writer.write(request("CONNECT", "/model/x", f"x-api-key: {KEY}", host="127.0.0.1"))
    assert (await reply(reader)).status == 405
    assert len(way.plain.arrived) == 1
