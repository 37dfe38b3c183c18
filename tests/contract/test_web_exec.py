"""Commands over the WebSocket and over plain HTTP, with the real SDK, servers and subprocesses. Numbers: cases.md."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Literal

import httpx2
import pytest
from websockets.asyncio.client import connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from ringfence.client import ApiError, Invalid, SyncClient, Unavailable
from tests.support.engine_rig import eventually
from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        yield made


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_outcomes(served: Web) -> None:
    async with served.client() as client:
        done = await client.exec("alice", ["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done["exit_code"], done["signal"], done["reason"]) == (3, None, "exit")
        assert (done["stdout"], done["stderr"], done["stdout_dropped"]) == ("out\n", "err\n", 0)
        assert (await client.exec("alice", ["sh", "-c", "kill -9 $$"]))["signal"] == 9
        assert (await client.exec("alice", ["sleep", "9"], timeout=0.2))["reason"] == "timeout"
        missing = await client.exec("alice", ["no-such-program"])
        assert missing["reason"] == "spawn_failed" and "no-such-program" in missing["message"]
        assert (await client.exec("alice", ["@lost"]))["reason"] == "box_lost"
        oom = await client.exec("alice", ["@oom"])
        assert {"memory_limit_bytes", "memory_peak_bytes"} <= set(oom)


async def test_environment_folder_and_odd_bytes(served: Web) -> None:
    """A21, C38."""
    async with served.client() as client:
        done = await client.exec("alice", ["sh", "-c", 'printf "%s" "$A"; pwd'], env={"A": b"\xff"}, cwd="/usr")
        assert done["stdout_b64"]
        odd = await client.exec("alice", ["printf", "%s|", b"\xff\xfe", "a\nb", "", "é"])
        assert odd["stdout_b64"] == "//58YQpifHzDqXw="
        big = await client.exec("alice", ["printf", "%s", "x" * 200_000])
        assert big["reason"] == "spawn_failed" and "too long" in big["message"]


async def test_split_characters_are_one(served: Web) -> None:
    """A19."""
    async with served.client() as client:
        done = await client.exec("alice", ["sh", "-c", r"printf '\303'; sleep 0.2; printf '\251'"])
        assert done["stdout"] == "é"


async def test_a_mebibyte_of_random_bytes(served: Web) -> None:
    """A19."""
    data = os.urandom(1 << 20)
    got = bytearray()
    async with served.client() as client, client.stream("alice", ["cat"], stdin="pipe") as command:

        async def feed() -> None:
            await command.write(data)
            await command.close_stdin()

        feeding = asyncio.create_task(feed())
        async for stream, chunk in command.output():
            assert stream == 1
            got += chunk
        await feeding
        assert (await command.outcome())["exit_code"] == 0
    assert bytes(got) == data


async def test_fifty_mebibytes_into_one_that_reads_and_one_that_does_not(served: Web) -> None:
    """A13."""
    block = os.urandom(1 << 20)

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield block

    async with served.client() as client:
        done = await client.exec("alice", ["sha256sum"], stdin=blocks())
        assert done["stdout"].split()[0] == hashlib.sha256(block * 50).hexdigest()
        assert (await client.exec("alice", ["true"], stdin=blocks()))["exit_code"] == 0


async def test_twenty_megabytes_of_output(served: Web) -> None:
    """A16."""
    script = "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo END"
    size, last = 0, b""
    async with served.client() as client:
        async with client.stream("alice", ["sh", "-c", script]) as command:
            async for _, chunk in command.output():
                size, last = size + len(chunk), (last + chunk)[-5:]
        assert (size, last) == (20_000_005, b"\nEND\n")
        kept = await client.exec("alice", ["sh", "-c", script])
        assert kept["stdout_dropped"] == 20_000_005 - 256 * 1024
        assert kept["stdout"].endswith("END\n")
        assert "bytes are missing here" in kept["stdout"]


async def test_a_reader_that_takes_nothing_holds_the_command_up_and_not_its_kill(served: Web) -> None:
    """A18: what is produced stays bounded while nobody reads; the timeout works all the same."""
    path = served.engine.world.home("default", "alice") / "count"
    script = f"while :; do head -c 65536 /dev/zero; echo x >> {path}; done"
    async with served.client() as client, client.stream("alice", ["sh", "-c", script], timeout=1.5) as command:
        await asyncio.sleep(1)
        # 64 KiB pipe, 48 KiB chunks: 16 + 16 frames queued at the client, some in sockets; far from what runs free
        assert path.stat().st_size / 2 < 100
        await eventually(lambda: not alive(command.pid))
        async for _ in command.output():
            pass
        assert (await command.outcome())["reason"] == "timeout"


async def test_signals(served: Web) -> None:
    async with served.client() as client:
        # The child before the trap: one that was forked after it and is sent the signal before its own reset would live on.
        script = "sleep 600 >&2 & trap 'echo got; exit 7' TERM; echo up; wait"
        async with client.stream("alice", ["sh", "-c", script]) as command:
            output = command.output()
            assert await anext(output) == (1, b"up\n")
            await command.signal(signal.SIGTERM)
            assert [chunk async for chunk in output] == [(1, b"got\n")]
            assert (await command.outcome())["exit_code"] == 7


@pytest.mark.parametrize("stdin", ["null", "pipe"])
async def test_a_client_that_leaves_takes_its_command_along(served: Web, stdin: str) -> None:
    """A6; with stdin full to the brim too: the end must be seen even while the command reads nothing."""
    wanted: Literal["null", "pipe"] = "pipe" if stdin == "pipe" else "null"
    async with served.client() as client, client.stream("alice", ["sleep", "60"], stdin=wanted) as command:
        pid = command.pid
        if stdin == "pipe":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await command.write(b"x" * (8 << 20))
        assert alive(pid)
    await eventually(lambda: not alive(pid))
    await eventually(lambda: served.command().released)


async def test_a_client_whose_process_dies(served: Web) -> None:
    """A6: no close frame, just an end of file."""
    socket = await unix_connect(served.socket, uri="ws://localhost/v1/tenants/default/users/alice/exec/stream")
    await socket.send(json.dumps({"argv": ["sleep", "60"]}))
    pid = json.loads(await socket.recv())["started"]["pid"]
    assert alive(pid)
    socket.transport.abort()
    await eventually(lambda: not alive(pid))


async def test_a_command_that_ignores_term_is_killed(served: Web) -> None:
    async with served.client() as client:
        async with client.stream("alice", ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]) as command:
            await anext(command.output())
            pid = command.pid
        await eventually(lambda: not alive(pid))


@pytest.mark.parametrize(
    "frame",
    ["{", "[]", "{}", '{"argv": []}', '{"argv": ["a"], "argv_b64": ["YQ=="]}', '{"argv_b64": ["%"]}', '{"argv": "ls"}',
     '{"argv": ["a"], "unknown": 1}', '{"argv": ["\\ud800"]}', b"binary"],
)  # fmt: skip
async def test_a_wrong_request(served: Web, frame: str | bytes) -> None:
    async with unix_connect(served.socket, uri="ws://localhost/v1/tenants/default/users/alice/exec/stream") as socket:
        await socket.send(frame)
        error = json.loads(await socket.recv())["error"]
        assert error["code"] == "invalid"


@pytest.mark.parametrize("frame", ["{", '{"signal": 0}', '{"signal": "9"}', '{"signal": true}', b"", b"\1x", b"\7"])
async def test_a_wrong_frame_ends_the_command(served: Web, frame: str | bytes) -> None:
    """And says so, instead of hanging up without a word."""
    async with unix_connect(served.socket, uri="ws://localhost/v1/tenants/default/users/alice/exec/stream") as socket:
        await socket.send(json.dumps({"argv": ["sleep", "60"], "stdin": "pipe"}))
        pid = json.loads(await socket.recv())["started"]["pid"]
        await socket.send(frame)
        await eventually(lambda: not alive(pid))
        frames = [json.loads(each) async for each in socket if isinstance(each, str)]
        assert frames[-1]["error"]["code"] == "invalid"
        assert socket.close_code == 1000


async def test_a_client_that_ignores_its_credit_is_held_up(served: Web) -> None:
    uri = "ws://localhost/v1/tenants/default/users/alice/exec/stream"
    async with unix_connect(served.socket, uri=uri) as socket:
        await socket.send(json.dumps({"argv": ["sleep", "60"], "stdin": "pipe"}))
        await socket.recv()
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                while True:
                    await socket.send(b"\0" + b"x" * 65536)
                    sent += 65536
        assert sent < 8 << 20
        socket.transport.abort()  # its close frame would wait behind all that


async def test_who_may_open_the_stream(served: Web) -> None:
    uri = served.url.replace("http", "ws") + "/v1/tenants/default/users/alice/exec/stream"
    good = {"Authorization": f"Bearer {served.token('alice')}"}
    async with connect(uri, additional_headers=good) as socket:  # the control
        await socket.send(json.dumps({"argv": ["true"]}))
        assert "started" in await socket.recv()
    refused: list[tuple[str, dict[str, str], int]] = [
        (uri, {}, 401),
        (uri, {"Authorization": "Bearer wrong"}, 401),
        (f"{uri}?token=x", good, 401),
        (uri, {**good, "Origin": "https://evil.example"}, 403),
        (uri.replace("/alice/", "/%ff/"), good, 422),
    ]
    for address, headers, status in refused:
        with pytest.raises(InvalidStatus) as raised:
            await connect(address, additional_headers=headers)
        assert raised.value.response.status_code == status, (address, headers)
        assert json.loads(raised.value.response.body or b"")["error"]["message"]
    with pytest.raises(InvalidStatus) as raised:
        await unix_connect(
            served.socket, uri="ws://localhost/v1/tenants/default/users/alice/exec/stream", origin="http://x"
        )
    assert raised.value.response.status_code == 403


async def test_a_frame_above_the_limit(served: Web) -> None:
    async with unix_connect(served.socket, uri="ws://localhost/v1/tenants/default/users/alice/exec/stream") as socket:
        with pytest.raises(ConnectionClosed):
            await socket.send(json.dumps({"argv": ["x" * (5 << 20)]}))
            await socket.recv()
    async with served.client() as client:
        assert (await client.exec("alice", ["true"]))["exit_code"] == 0


async def test_plain_http(served: Web) -> None:
    async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=served.socket), trust_env=False) as client:
        url = "http://localhost/v1/tenants/default/users/alice/exec"
        done = (await client.post(url, json={"argv": ["cat"], "stdin": "é"})).json()
        assert (done["stdout"], done["exit_code"]) == ("é", 0)
        done = (await client.post(url, json={"argv_b64": ["Y2F0"], "stdin_b64": "//4="})).json()
        assert done["stdout_b64"] == "//4="
        assert "stdout" not in done
        both: dict[str, object] = {"argv": ["a"], "stdin": "", "stdin_b64": ""}
        wrong: list[dict[str, object]] = [{}, {"argv": []}, both, {"argv": ["a"], "timeout": 0}]
        for body in wrong:
            assert (await client.post(url, json=body)).status_code == 422
        with pytest.raises(httpx2.ReadTimeout):
            await client.post(url, json={"argv": ["sleep", "60"]}, timeout=0.5)
    pid = served.command().pid
    await eventually(lambda: not alive(pid))  # A6


def connections(path: str) -> set[str]:
    """Inodes of the server's ends of what is connected to the socket (proc(5): state 03)."""
    with open("/proc/net/unix") as table:
        rows = [line.split() for line in table]
    return {row[6] for row in rows if row[-1] == path and row[5] == "03"}


async def test_commands_share_a_connection_that_is_kept(served: Web) -> None:
    before = connections(served.socket)
    async with served.client() as client:
        assert (await client.exec("alice", ["cat"], stdin=b"\xff"))["stdout_b64"] == "/w=="
        first = connections(served.socket) - before
        assert len(first) == 1
        assert (await client.exec("alice", ["printenv", "A"], env={"A": "é"}, cwd="/"))["stdout"] == "é\n"
        assert connections(served.socket) - before == first
        assert (await client.exec("alice", ["wc", "-c"], stdin=b"x" * (1 << 20)))["stdout"] == "1048576\n"


async def test_who_is_cancelled_stops_its_command(served: Web) -> None:
    """A6."""
    async with served.client() as client:
        begun = len(served.engine.commands.started)
        waiting = asyncio.create_task(client.exec("alice", ["sleep", "60"]))
        await eventually(lambda: len(served.engine.commands.started) > begun)
        pid = served.command().pid
        assert alive(pid)
        waiting.cancel()
        await eventually(lambda: not alive(pid))


async def test_commands_that_last_hold_nobody_up(served: Web) -> None:
    async with served.client() as client:
        begun = len(served.engine.commands.started)
        lasting = [asyncio.create_task(client.exec("alice", ["sleep", "60"])) for _ in range(110)]
        await eventually(lambda: len(served.engine.commands.started) == begun + len(lasting))
        assert (await client.health())["ok"]
        for each in lasting:
            each.cancel()
        await asyncio.wait(lasting)


async def test_a_server_that_stops_says_that_the_command_goes_on() -> None:
    with ExitStack() as up:
        made = up.enter_context(web())
        made.user("alice")
        async with made.client() as client:
            waiting = asyncio.create_task(client.exec("alice", ["sleep", "60"]))
            await eventually(lambda: bool(made.engine.commands.started))
            leaving = asyncio.create_task(asyncio.to_thread(up.close))
            with pytest.raises(Unavailable, match="goes on in the box"):
                await waiting
            await leaving


async def test_no_server(served: Web) -> None:
    from ringfence.client import Client

    async with Client(socket="/nonexistent/api.sock") as client:
        for work in (client.exec("alice", ["true"]), client.health()):
            with pytest.raises(Unavailable) as raised:
                await work
            assert raised.value.remedy == "start one: ringfence serve"
    async with Client(url="http://127.0.0.1:9", token="x") as client:
        for work in (client.exec("alice", ["true"]), client.health()):
            with pytest.raises(Unavailable):
                await work


def test_the_sync_face(served: Web) -> None:
    with SyncClient(socket=served.socket, act_as="alice") as client:
        assert client.health()["ok"]
        assert client.exec("alice", ["echo", "hi"])["stdout"] == "hi\n"
        with client.stream("alice", ["cat"], stdin="pipe") as command:
            command.write(b"one")
            command.close_stdin()
            assert list(command.output()) == [(1, b"one")]
            assert command.outcome()["exit_code"] == 0
        client.put_file("alice", "f", b"data")
        with client.open_file("alice", "f") as chunks:
            assert b"".join(chunks) == b"data"
        with pytest.raises(Invalid):
            client.exec("alice", [])
        assert client.say("sync", "hello")["reply"] == "you said: hello"
        events = client.follow("sync")
        assert next(events)["cursor"] == 1
        events.close()
        with pytest.raises(ApiError):
            client.user("nobody")
    client.close()


async def test_fifty_at_once(served: Web) -> None:
    async with served.client() as client:
        done = await asyncio.gather(*(client.exec("alice", ["echo", str(n)]) for n in range(50)))
    assert [each["stdout"] for each in done] == [f"{n}\n" for n in range(50)]
