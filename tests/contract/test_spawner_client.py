"""The client of the spawner against a peer that a test scripts, over a real SOCK_SEQPACKET pair."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ringfence.host.drivers.spawner_client import SpawnerClient
from ringfence.host.kernel import errors
from ringfence.spawner import protocol

SECONDS = 30.0
BOX = "abcdefghijklmnop"


class Peer:
    """The spawner's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def hears(self) -> dict[str, Any]:
        packet = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 17), SECONDS)
        request: dict[str, Any] = json.loads(packet)
        return request

    def says(self, body: object, fds: tuple[int, ...] = ()) -> None:
        packet = body if isinstance(body, bytes) else json.dumps(body).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([packet], rights)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[SpawnerClient, Peer]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setblocking(False)
    client = SpawnerClient(ours.detach())
    try:
        yield client, Peer(theirs)
    finally:
        client.close()
        theirs.close()


def asking(client: SpawnerClient, request: protocol.Request) -> asyncio.Task[Any]:
    return asyncio.ensure_future(asyncio.wait_for(client.ask(request), SECONDS))


async def test_replies_find_their_callers_in_any_order() -> None:
    async with pair() as (client, peer):
        asks = [asking(client, protocol.Observe(BOX)) for _ in range(50)]
        heard = [await peer.hears() for _ in asks]
        assert heard[0] == {"id": 1, "op": "observe", "box": BOX}
        for request in reversed(heard):
            peer.says({"id": request["id"], "ok": {"n": request["id"]}})
        answers = await asyncio.gather(*asks)
        assert [answer.body["n"] for answer in answers] == list(range(1, 51))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad_request", errors.Failed),
        ("not_found", errors.NotFound),
        ("refused", errors.Refused),
        ("busy", errors.Conflict),
        ("no_space", errors.DiskFull),
        ("unavailable", errors.Unavailable),
        ("failed", errors.Failed),
        ("of another version", errors.Failed),
    ],
)
async def test_errors_by_code_with_their_remedy(code: str, kind: type[errors.RingfenceError]) -> None:
    async with pair() as (client, peer):
        ask = asking(client, protocol.Stop(BOX))
        number = (await peer.hears())["id"]
        peer.says({"id": number, "error": {"code": code, "message": "it says", "remedy": "do this"}})
        with pytest.raises(errors.RingfenceError) as caught:
            await ask
        assert type(caught.value) is kind
        assert (caught.value.message, caught.value.remedy) == ("it says", "do this")
        assert not client.closed.done()


async def test_a_descriptor_comes_with_the_reply_that_announces_it_close_on_exec() -> None:
    async with pair() as (client, peer):
        ask = asking(client, protocol.Files(BOX))
        number = (await peer.hears())["id"]
        with open("/dev/null", "rb") as file:
            peer.says({"id": number, "ok": {}}, (file.fileno(),))
        answer = await ask
        assert len(answer.fds) == 1
        assert not os.get_inheritable(answer.fds[0])
        assert os.readlink(f"/proc/self/fd/{answer.fds[0]}") == "/dev/null"
        os.close(answer.fds[0])


@pytest.mark.parametrize("count", [0, 1, 6, 7])
async def test_listeners_come_as_many_as_their_reply_names(count: int) -> None:
    async with pair() as (client, peer):
        ask = asking(client, protocol.Listen(BOX, 0))
        number = (await peer.hears())["id"]
        with open("/dev/null", "rb") as file:
            before = descriptors()
            peer.says({"id": number, "ok": {"kinds": ["proxy"] * 6}}, (file.fileno(),) * count)
            if count == 6:
                for fd in (await ask).fds:
                    os.close(fd)
                assert descriptors() == before
                return
            with pytest.raises(errors.Failed):
                await ask
            assert descriptors() == before - 1  # the client's own end


@pytest.mark.parametrize(
    ("request_", "count"),
    [
        (protocol.Stop(BOX), 1),
        (protocol.Files(BOX), 0),
        (protocol.Files(BOX), 2),
        (protocol.Files(BOX), 60),
        (protocol.Worker(BOX), 0),
        (protocol.Worker(BOX), 2),
        (protocol.EndWorker(BOX), 1),
        (protocol.Trust(BOX, ""), 1),
        (protocol.Listen(BOX, 100), 0),  # its reply names no kinds
        (protocol.Listen(BOX, 100), 1),
    ],
)
async def test_descriptors_that_nobody_announced_are_closed_and_end_the_client(
    request_: protocol.Request, count: int
) -> None:
    async with pair() as (client, peer):
        ask = asking(client, request_)
        number = (await peer.hears())["id"]
        with open("/dev/null", "rb") as file:
            before = descriptors()
            peer.says({"id": number, "ok": {}}, (file.fileno(),) * count)
            with pytest.raises(errors.Failed):
                await ask
            assert descriptors() == before - 1  # the client's own end
        assert client.closed.done()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_caller_that_goes_away_leaves_no_descriptor_behind() -> None:
    async with pair() as (client, peer):
        ask = asking(client, protocol.Files(BOX))
        number = (await peer.hears())["id"]
        ask.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ask
        with open("/dev/null", "rb") as file:
            before = descriptors()
            peer.says({"id": number, "ok": {}}, (file.fileno(),))
            later = asking(client, protocol.ListBoxes())
            peer.says({"id": (await peer.hears())["id"], "ok": {"boxes": [], "running": []}})
            await later
            assert descriptors() == before
        assert not client.closed.done()


@pytest.mark.parametrize(
    "packet",
    [
        b"garbage",
        b"[]",
        b"[" * 60_000,
        b'{"id":99,"ok":{}}',
        b'{"id":true,"ok":{}}',
        b'{"id":1}',
        b'{"id":1,"ok":[]}',
        b'{"id":1,"ok":{},"error":{}}',
        b'{"id":1,"ok":{"x":"' + b"y" * 70_000 + b'"}}',
    ],
)
async def test_what_is_no_reply_ends_the_client_and_every_waiter(packet: bytes) -> None:
    async with pair() as (client, peer):
        asks = [asking(client, protocol.Stop(BOX)) for _ in range(3)]
        for _ in asks:
            await peer.hears()
        peer.says(packet)
        results = await asyncio.gather(*asks, return_exceptions=True)
        assert {type(result) for result in results} <= {errors.Unavailable, errors.Failed}
        assert errors.Unavailable in {type(result) for result in results}
        assert "no reply" in await client.closed


async def test_the_end_of_the_spawner_ends_every_waiter_and_is_told() -> None:
    async with pair() as (client, peer):
        asks = [asking(client, protocol.Stop(BOX)) for _ in range(3)]
        await peer.hears()
        peer.sock.close()
        results = await asyncio.gather(*asks, return_exceptions=True)
        assert [type(result) for result in results] == [errors.Unavailable] * 3
        await asyncio.wait_for(asyncio.shield(client.closed), SECONDS)
        with pytest.raises(errors.Unavailable, match="no spawner"):
            await client.ask(protocol.ListBoxes())
        client.close()


async def test_a_spawner_that_does_not_read_blocks_nobody_and_gets_all_of_it_in_the_end() -> None:
    async with pair() as (client, peer):
        asks = [asking(client, protocol.Observe(BOX)) for _ in range(1024)]  # more packets than the socket holds
        await asyncio.sleep(0.05)
        over = asking(client, protocol.Observe(BOX))
        with pytest.raises(errors.Unavailable, match="1024"):
            await over
        for _ in asks:
            peer.says({"id": (await peer.hears())["id"], "ok": {}})
            await asyncio.sleep(0)
        assert len(await asyncio.gather(*asks)) == 1024
