"""The server's own life: sockets, second servers, the end of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from websockets.asyncio.client import unix_connect
from websockets.exceptions import ConnectionClosed

from ringfence.client import Client, SyncClient
from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.web import server
from ringfence.host.web.server import listening, serve
from tests.support.double.engine import Engine
from tests.support.web_rig import OPERATOR


@dataclass(frozen=True)
class Settings:
    socket: str
    listen: tuple[str, int] | None = None
    domain: str = ""
    mode: str = "root"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: see the limit of a socket's path."""
    with tempfile.TemporaryDirectory(prefix="rf") as made:
        yield Path(made)


async def test_serve_until_cancelled(folder: Path) -> None:
    engine, ready = Engine(folder), asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    serving = asyncio.create_task(serve(engine, Settings(str(folder / "s")), ready.set))
    await ready.wait()
    assert signal.getsignal(signal.SIGTERM) == before
    async with Client(socket=str(folder / "s")) as client:
        assert (await client.health())["ok"]
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert not (folder / "s").exists()


async def test_the_socket_of_a_dead_server_is_replaced_and_that_of_a_living_one_is_not(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    async with listening(Engine(folder), path, None):
        with pytest.raises(Conflict) as raised:
            async with listening(Engine(folder), path, None):
                pass
        assert str(path) in raised.value.message
        async with Client(socket=str(path)) as client:
            assert (await client.health())["ok"]


async def test_what_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "s").write_text("precious")
    with pytest.raises(Conflict):
        async with listening(Engine(folder), folder / "s", None):
            pass
    assert (folder / "s").read_text() == "precious"


async def test_a_port_that_is_taken(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable) as raised:
            async with listening(Engine(folder), folder / "s", ("127.0.0.1", port)):
                pass
    assert str(port) in raised.value.message
    assert not (folder / "s").exists()


def accepted_from(client: socket.socket) -> list[int]:
    """TCP_NODELAY of the sockets of this process at the other end of `client`."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(fd)) as sock:
                if sock.getpeername() == client.getsockname():
                    found.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        except OSError:
            continue  # no socket, or none that is connected
    return found


async def test_small_answers_do_not_wait_for_the_clients_acknowledgement(folder: Path) -> None:
    async with listening(Engine(folder), folder / "s", ("127.0.0.1", 0)) as bound:
        assert bound.tcp is not None
        with socket.create_connection(bound.tcp) as client:
            while not (found := accepted_from(client)):
                await asyncio.sleep(0.01)
    assert found == [1]


async def test_a_path_that_is_too_long(folder: Path) -> None:
    with pytest.raises(Unavailable) as raised:
        async with listening(Engine(folder), folder / ("x" * 120), None):
            pass
    assert "107" in raised.value.message


async def test_a_configured_name_is_answered(folder: Path) -> None:
    async with listening(Engine(folder), folder / "s", ("127.0.0.1", 0), None, "ringfence.example") as bound:
        assert bound.tcp is not None
        async with httpx2.AsyncClient(trust_env=False) as client:
            for host, status in (("ringfence.example:8377", 200), ("Ringfence.Example", 200), ("x.example", 403)):
                url = f"http://127.0.0.1:{bound.tcp[1]}/v1/health"
                assert (await client.get(url, headers={"Host": host})).status_code == status


async def test_the_end_of_the_server_ends_streams_and_leaves_commands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: nothing waits for what a request under way gets to come to its end, which is for ever here."""
    monkeypatch.setattr(server, "DRAIN_SECONDS", 3600)
    engine = Engine(folder)
    await engine.people.user_add(OPERATOR, "default", "alice")
    async with asyncio.timeout(60), listening(engine, folder / "s", None):
        uri = "ws://localhost/v1/tenants/default/users/alice/exec/stream"
        command = await unix_connect(str(folder / "s"), uri=uri)
        await command.send(json.dumps({"argv": ["sleep", "600"]}))
        pid = json.loads(await command.recv())["started"]["pid"]
        client = Client(socket=str(folder / "s"), act_as="alice")
        await client.say("t", "hi")
        follow = client.follow("t", after=6)
        reading = asyncio.create_task(anext(follow))
        await asyncio.sleep(0.2)
    with pytest.raises(ConnectionClosed):
        await command.recv()
    os.kill(pid, 0)  # the box and what runs in it outlive the server
    reading.cancel()
    await asyncio.wait({reading})
    await follow.aclose()
    await client.close()
    await engine.stop()


def test_a_followed_stream_survives_a_restart(folder: Path) -> None:
    """The SDK comes back behind the last event that it saw."""
    engine = Engine(folder)

    async def twice() -> list[int]:
        await engine.people.user_add(OPERATOR, "default", "alice")
        client = Client(socket=str(folder / "s"), act_as="alice")
        got: list[int] = []

        async def read() -> None:
            async for event in client.follow("t"):
                got.append(event["cursor"])

        async with listening(engine, folder / "s", None):
            await client.say("t", "one")
            reading = asyncio.create_task(read())
            while len(got) < 6:
                await asyncio.sleep(0.01)
        async with listening(engine, folder / "s", None):
            await client.say("t", "two")
            while len(got) < 12:
                await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.wait({reading})
            await client.close()
        await engine.stop()
        return got

    assert asyncio.run(asyncio.wait_for(twice(), 20)) == list(range(1, 13))


def test_a_sync_client_without_a_server(folder: Path) -> None:
    from ringfence.client import Unavailable as Away

    with SyncClient(socket=str(folder / "none")) as client, pytest.raises(Away):
        client.health()
