"""What costs its sender a byte and the worker much more: heads byte by byte, chunks of one byte. In seconds of this process."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from ringfence.host.egress import head
from ringfence.host.egress.bodies import Download, Upload
from ringfence.host.egress.client import Client
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.entrance import Entrance
from ringfence.host.egress.framing import Question
from ringfence.host.egress.refusals import Refusal
from tests.support.egress_rig import rig

CHUNKS = 5_000


def test_a_field_of_blanks_costs_no_more_than_one_of_letters() -> None:
    """2.3 s when two patterns could share the blanks between them in each possible way; the same size of letters took 0.1 ms."""
    bounds = Bounds()
    blanks = b"HTTP/1.1 200 OK\r\nX:" + b" " * 30_000 + b"\0\r\n\r\n"
    began = time.process_time()
    for _ in range(10):
        with pytest.raises(Refusal):
            head.response(blanks, bounds)
    assert time.process_time() - began < 1.0
    assert head.response(b"HTTP/1.1 200 OK\r\nX: \t a b \t\r\n\r\n", bounds).fields == ((b"x", b"a b"),)


async def test_the_head_of_a_connect_byte_by_byte(tmp_path: Path) -> None:
    """32,000 bytes took 9.9 s when each was looked at with all before it."""
    async with rig(tmp_path) as way:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            entrance = Entrance(way.desk, way.serving._now, here, port=1, invocation="", destination=None)
            reading = asyncio.ensure_future(entrance._connect_head())
            sent = b"CONNECT api.test:443 HTTP/1.1\r\nX: " + b"a" * 12_000 + b"\r\n\r\n"
            began = time.process_time()
            for at in range(len(sent)):
                there.send(sent[at : at + 1])
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            raw, ahead = await asyncio.wait_for(reading, 10)
            assert (raw, ahead) == (sent, b"")
            assert time.process_time() - began < 2.0


async def test_chunks_of_one_byte_are_joined_and_others_have_their_turn(tmp_path: Path) -> None:
    """From a server, and from the box."""
    body = b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n"
    async with rig(tmp_path) as way:
        bounds = way.desk.bounds
        reader = asyncio.StreamReader()
        reader.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        question = Question("GET", b"/", [(b"host", b"a")], bodied=False, most=bounds.head_bytes)
        download = Download(question, reader, bounds)
        await download.head()
        box = Client(bounds)
        box.pending += body
        post = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        upload = Upload(head.request(post, bounds), box, CHUNKS)
        for source in (download, upload):
            assert await turns(source) == (CHUNKS, CHUNKS // 256 + 1, CHUNKS // 256)


async def turns(source: Download | Upload) -> tuple[int, int, int]:
    """(bytes of the body, pieces that it came in, turns that others had meanwhile, one for each full piece)."""
    turns, pieces, size, over = 0, 0, 0, False

    async def others() -> None:
        nonlocal turns
        while not over:
            await asyncio.sleep(0)
            turns += 1

    watching = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    while data := await source.next():
        pieces, size = pieces + 1, size + len(data)
    had, over = turns, True
    await watching
    return size, pieces, had
