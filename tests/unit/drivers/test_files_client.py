"""The kernel's client against a helper that lies: it ends with an error, in bounded time and memory."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ringfence.host.drivers.files import FilesClient
from ringfence.host.kernel.errors import Conflict, DiskFull, Failed, NotFound, Refused, TooLarge, Unavailable
from ringfence.spawner.protocol import FILES_ABORT, FILES_CHUNK, FILES_FRAME

NAME = base64.b64encode(b"f").decode()
INFO = {"name_b64": NAME, "kind": "file", "size": 3, "mode": 420, "mtime_ns": -1, "target_b64": None}


def frame(body: Any) -> bytes:
    data = json.dumps(body).encode()
    return struct.pack(">I", len(data)) + data


@contextlib.asynccontextmanager
async def scripted(answer: bytes, *, close: bool = True) -> AsyncIterator[FilesClient]:
    """A client whose peer has sent `answer` before it was asked anything."""
    ours, theirs = socket.socketpair()
    theirs.sendall(answer)
    if close:
        theirs.shutdown(socket.SHUT_WR)
    try:
        async with FilesClient(ours.detach()) as client:
            yield client
    finally:
        theirs.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("not_found", NotFound),
        ("refused", Refused),
        ("is_directory", Conflict),
        ("not_empty", Conflict),
        ("exists", Conflict),
        ("disk_full", DiskFull),
        ("too_large", TooLarge),
        ("failed", Failed),
        ("whatever", Failed),
    ],
)
async def test_errors_become_the_kernel_s(code: str, kind: type[Exception]) -> None:
    error = frame({"error": {"code": code, "text": "said so"}})
    async with scripted(error + frame({"ok": INFO})) as client:
        with pytest.raises(kind, match="said so"):
            await client.stat(b"f")
        assert (await client.stat(b"f")).size == 3  # an error that was answered is no reason to hang up


async def test_what_is_refused_says_how_to_see_why() -> None:
    """A FIFO, a link that leads out, a loop of links."""
    async with scripted(frame({"error": {"code": "refused", "text": "not a regular file"}})) as client:
        with pytest.raises(Refused) as raised:
            await client.stat(b"f")
    assert "ringfence files stat" in raised.value.remedy


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">I", FILES_FRAME + 1),
        struct.pack(">I", 5) + b"nojso",
        frame([]),
        frame({}),
        frame({"ok": 1}),
        frame({"error": "text"}),
        frame({"ok": {**INFO, "size": -1}}),
        frame({"ok": {**INFO, "size": 1 << 63}}),
        frame({"ok": {**INFO, "size": True}}),
        frame({"ok": {**INFO, "size": 1.5}}),
        frame({"ok": {**INFO, "kind": "door"}}),
        frame({"ok": {**INFO, "name_b64": "?"}}),
        frame({"ok": {**INFO, "name_b64": None}}),
        frame({"ok": {**INFO, "target_b64": 7}}),
        struct.pack(">I", 200_000) + b"[" * 200_000,
    ],
)
async def test_nonsense_ends_the_connection(answer: bytes) -> None:
    async with scripted(answer) as client:
        with pytest.raises(Failed):
            await client.stat(b"f")
        with pytest.raises(Unavailable):
            await client.stat(b"f")


@pytest.mark.parametrize("answer", [b"", b"\0", b"\0\0\0\x09{", frame({"ok": INFO})[:-1]])
async def test_an_end_in_the_middle(answer: bytes) -> None:
    async with scripted(answer) as client:
        with pytest.raises(Unavailable, match="ended"):
            await client.stat(b"f")


async def test_a_get_believes_no_length() -> None:
    for length in (FILES_CHUNK + 1, FILES_ABORT - 1):
        async with scripted(frame({"ok": INFO}) + struct.pack(">I", length), close=False) as client:
            with pytest.raises(Failed):
                async for _ in client.get(b"f"):
                    pass


async def test_a_get_that_is_aborted() -> None:
    abort = struct.pack(">I", FILES_ABORT) + frame({"error": {"code": "failed", "text": "shrank"}})
    async with scripted(frame({"ok": INFO}) + struct.pack(">I", 2) + b"ab" + abort + frame({"ok": INFO})) as client:
        got = []
        with pytest.raises(Failed, match="shrank"):
            async for chunk in client.get(b"f"):
                got.append(chunk)
        assert got == [b"ab"]
        await client.stat(b"f")


async def test_an_abort_without_an_error() -> None:
    async with scripted(frame({"ok": INFO}) + struct.pack(">I", FILES_ABORT) + frame({"ok": {}})) as client:
        with pytest.raises(Failed):
            async for _ in client.get(b"f"):
                pass


async def test_a_list_that_sends_more_than_was_asked() -> None:
    async with scripted(frame({"ok": {"entries": [INFO] * 3, "more": False}})) as client:
        with pytest.raises(Failed):
            await client.list(b".", None, 2)


async def test_a_list_goes_on_until_it_has_enough() -> None:
    page = frame({"ok": {"entries": [INFO], "more": True}})
    async with scripted(page * 5) as client:
        assert len(await client.list(b".", None, 3)) == 3
    async with scripted(page + frame({"ok": {"entries": [], "more": True}})) as client:
        assert len(await client.list(b".", None, 3)) == 1


async def test_callers_wait_for_each_other() -> None:
    async with scripted(frame({"ok": INFO}) * 20) as client:
        assert len(await asyncio.gather(*[client.stat(b"f") for _ in range(20)])) == 20


async def test_back_pressure_reaches_the_source() -> None:
    """A helper that reads nothing stops a put after the buffers are full."""
    taken = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield bytes(FILES_CHUNK)

    async with scripted(frame({"ready": {}}), close=False) as client:
        put = asyncio.ensure_future(client.put(b"f", source(), 0o600))
        await asyncio.sleep(0.2)
        assert 0 < taken < 16
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        with pytest.raises(Unavailable):
            await client.stat(b"f")
