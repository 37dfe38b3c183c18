"""A worker that is the box's by now, against the server's time and memory: large packets, many packets, answers that it does not
read. The server is everybody's. Controls: an honest worker at the most that it can be made to say.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ringfence.host.egress import hearing
from ringfence.host.egress.channel import Channel
from ringfence.host.egress.control import MAX_PACKET
from ringfence.host.egress.packets import MAX_WAITING, Packets

ITEM = {"host": "h" * 200, "port": 1, "verdict": "deny", "reason": "r", "invocation": "i", "method": "GET", "requests": 1,
        "up": 1, "down": 1}  # fmt: skip
LARGE = json.dumps({"t": "traffic", "items": [ITEM] * 200, "dropped": 0}).encode()  # 62 KiB
MOST_ANSWER = {"t": "secret", "n": 1, "value": "A" * 87_384}


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Channel, socket.socket, list[str]]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    heard: list[str] = []

    def asked(kind: str, said: Mapping[str, Any]) -> None:
        hearing.traffic(said)
        heard.append(kind)

    channel = Channel(ours.detach(), asked)
    try:
        yield channel, theirs, heard
    finally:
        channel.close("over")
        theirs.close()
        await asyncio.sleep(0)


async def test_bytes_are_paid_for() -> None:
    async with pair() as (channel, worker, heard):
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError):
            for _ in range(1000):  # 60 MiB
                await loop.sock_sendall(worker, LARGE)
        assert "more packets" in channel.closed.result()
        assert len(heard) < 200  # 8 MiB at once, and 2 a second


async def test_what_honest_requests_cause_is_not_too_much() -> None:
    """Control: a second of 200 requests with a secret each, 20 writes and everything that can be counted, all at once."""
    async with pair() as (channel, worker, heard):
        small = json.dumps({"t": "traffic", "items": [ITEM], "dropped": 0}).encode()
        loop = asyncio.get_running_loop()
        for _ in range(3):
            for packet in [small] * (200 + 20 * 2 + 5) + [LARGE] * 2:
                await loop.sock_sendall(worker, packet)
        async with asyncio.timeout(5):
            while len(heard) < 3 * 247:
                await asyncio.sleep(0.01)
        assert channel.alive


async def test_large_packets_take_turns_with_other_work() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    heard: list[Mapping[str, Any]] = []

    def take(said: Mapping[str, Any], fds: Sequence[int]) -> None:
        heard.append(said)

    for size in (80_000, 80_000, 80_000, 10, 10):  # 128 KiB are behind the second
        theirs.send(json.dumps({"t": "x" * size}).encode())
    packets = Packets(ours, take)
    turns = []
    for _ in range(5):
        await asyncio.sleep(0)
        turns.append(len(heard))
    assert [each for each in turns if each][:1] == [2] and turns[-1] == 5
    packets.close("over")
    theirs.close()


async def test_who_asks_and_does_not_read_is_ended() -> None:
    async with pair() as (channel, _, _):
        said = 0
        while channel.alive and said < 1000:
            channel.say(MOST_ANSWER)
            said += 1
        assert channel.closed.result() == "the far end does not read"
        assert said * 87_384 < MAX_WAITING + 4 * (208 << 10)  # with what the socket itself holds


async def test_who_reads_is_answered_as_often_as_it_asks() -> None:
    """Control."""
    async with pair() as (channel, worker, _):
        for _ in range(100):
            channel.say(MOST_ANSWER)
            assert len(await asyncio.get_running_loop().sock_recv(worker, MAX_PACKET)) > 87_384
        assert channel.alive


@pytest.mark.parametrize("where", ["packet", "item"])
async def test_what_is_not_named_may_not_be_there(where: str) -> None:
    async with pair() as (channel, worker, heard):
        more: dict[str, Any] = {"pad": [[0]] * 10}
        item = {**ITEM, **more} if where == "item" else ITEM
        body = {"t": "traffic", "items": [item], "dropped": 0, **(more if where == "packet" else {})}
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(worker, json.dumps({"t": "traffic", "items": [ITEM], "dropped": 0}).encode())
        await loop.sock_sendall(worker, json.dumps(body).encode())
        async with asyncio.timeout(5):
            assert "more in it" in await asyncio.shield(channel.closed)
        assert heard == ["traffic"]  # the control: the first
