"""The head of an answer is not begun before something of it is on its way; HEAD has nothing behind it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ringfence.host.models.asked import ROUTES, route_of
from ringfence.host.models.front import Front
from ringfence.host.models.spoken_errors import Wrong

USUAL = b"POST /x HTTP/1.1\r\nhost: a\r\n\r\n"
STRANGE = b"POST /x HTTP/1.1\r\nhost: a\r\nte: x\r\nconnection: te\r\n\r\n"  # h11 frames it
HEADER = ("content-type", "text/plain")


@asynccontextmanager
async def fronted(said: bytes) -> AsyncIterator[tuple[Front, socket.socket]]:
    """With its request read, and the client's end."""
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=near)
    far.sendall(said)
    far.settimeout(10)
    front = Front(reader, writer)
    try:
        assert await front.request() is not None
        await front.body(0)
        yield front, far
    finally:
        writer.transport.abort()
        far.close()


@pytest.mark.parametrize("said", [USUAL, STRANGE])
async def test_until_something_is_sent_another_answer_can_be_given(said: bytes) -> None:
    async with fronted(said) as (front, far):
        await front.head(200, [HEADER])
        assert not front.begun
        await front.whole(502, [HEADER], b"no")
        answered = far.recv(4096)
        assert answered.startswith(b"HTTP/1.1 502 ") and answered.endswith(b"\r\n\r\nno") and b"200" not in answered
        assert front.again()


@pytest.mark.parametrize("said", [USUAL, STRANGE])
async def test_what_is_sent_has_begun(said: bytes) -> None:
    """The control."""
    async with fronted(said) as (front, far):
        await front.head(200, [HEADER])
        await front.flush()
        assert front.begun and far.recv(4096).startswith(b"HTTP/1.1 200 ")
        await front.piece(b"x")
        await front.end()
        assert far.recv(4096) == b"1\r\nx\r\n0\r\n\r\n"
        assert front.again() and not front.begun


async def test_head_has_the_head_alone() -> None:
    async with fronted(USUAL.replace(b"POST", b"HEAD")) as (front, far):
        await front.whole(200, [HEADER], b"body")
        answered = far.recv(4096)
        assert b"content-length: 4" in answered.lower() and answered.endswith(b"\r\n\r\n")
        assert front.again()


@pytest.mark.parametrize(("method", "path"), list(ROUTES))
def test_a_path_says_its_methods(method: str, path: str) -> None:
    assert route_of(method, path) is ROUTES[method, path]
    if method == "GET":
        assert route_of("HEAD", path) is ROUTES[method, path]
    with pytest.raises(Wrong) as caught:
        route_of("DELETE", path)
    assert (caught.value.status, caught.value.allow) == (405, "GET, HEAD" if method == "GET" else "POST")
    with pytest.raises(Wrong) as caught:
        route_of(method, f"{path}/none")
    assert (caught.value.status, caught.value.allow) == (404, "")
