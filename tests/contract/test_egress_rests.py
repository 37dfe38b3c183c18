"""A worker that has nothing to do ends: whole, with real boxes, curl in them and an upstream on loopback. What a box had before works
with the next worker, and nobody is told of anything."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.egress.configuration import Bounds, Pin
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.rules import Mode, Verdict
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import SECRET, Outside, outside
from tests.support.egress_upstream import Arrived, answer
from tests.support.engine_rig import eventually
from tests.support.installation import of_uid

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
CURL = "curl -sS --max-time 60"
WAIT = "while ! test -e {}; do sleep 0.05; done"
ELSEWHERE = 8443  # a port where SNI does not say what host is meant: the address has to
KEPT = """
import os, socket, time
wire = socket.create_connection(("127.0.0.1", int(os.environ["https_proxy"].rpartition(":")[2])))
while not os.path.exists("go"):
    time.sleep(0.05)
wire.sendall(b"GET http://denied.test/ HTTP/1.1\\r\\nHost: denied.test\\r\\n\\r\\n")
print(wire.recv(9999).decode())
"""
WEBSOCKET = """
import os, socket, ssl, time
wire = socket.create_connection(("127.0.0.1", int(os.environ["https_proxy"].rpartition(":")[2])))
wire.sendall(b"CONNECT api.test:443 HTTP/1.1\\r\\nHost: api.test:443\\r\\n\\r\\n")
assert b" 200 " in wire.recv(999)
wire = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"]).wrap_socket(wire, server_hostname="api.test")
wire.sendall(b"GET /ws HTTP/1.1\\r\\nHost: api.test\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
             b"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n")
assert b" 101 " in wire.recv(999)
while not os.path.exists("go"):
    time.sleep(0.05)
wire.sendall(b"\\x81\\x84\\0\\0\\0\\0last")
print(wire.recv(99))
"""
PYTHON = "cat > it.py <<'END'\n{}END\npython3 it.py"
# What is open -> (how, fields of the rule, what it says at its end)
OPEN = {
    "kept": (PYTHON.format(KEPT), {}, b"denied"),
    "stream": (f"{CURL} -N https://api.test/", {}, b"last"),
    "passed": (f"{CURL} -k -N https://api.test/", {"mode": Mode.PASSTHROUGH}, b"last"),
    "websocket": (PYTHON.format(WEBSOCKET), {"websocket": True}, b"last"),
    "hold": (f"{CURL} https://api.test/", {"answer": Verdict.ASK}, b"last"),
}


@asynccontextmanager
async def short(names: Sequence[str] = ("alice",), seconds: float = 0.5) -> AsyncIterator[Outside]:
    """Workers end after so long. The boxes run; each has a placeholder and nothing that is allowed."""
    async with outside(names, bounds=Bounds(idle_ends=seconds, in_flight=64)) as o:
        for name in names:
            await o.secret(name)
            await o.said(name, "true")
        yield o


async def pids(o: Outside, name: str) -> list[int]:
    """Of its worker."""
    return list(of_uid((await o.store.boxes.get(await o.box(name))).uid + 1))


async def rested(o: Outside, name: str) -> None:
    """Its worker has ended by itself; nothing of it is left, no zombie and no descriptor of the spawner's."""
    box, found = await o.box(name), await pids(o, name)
    await eventually(lambda: not o.egress.facts(box)["worker"], "the server has let it go")
    await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in found), "its memory is free")
    await eventually(lambda: not _of_ended(o), "the spawner has let it go")


def _of_ended(o: Outside) -> list[str]:
    """The spawner's pidfds of processes that are no more: proc(5), fdinfo."""
    assert o.stage.rig.process is not None
    found = []
    for path in Path(f"/proc/{o.stage.rig.process.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += [path.name] if "\nPid:\t-1\n" in path.read_text() else []
    return found


async def quiet(o: Outside, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody was told of a worker that ended."""
    for name in o.actors:
        assert o.egress.facts(await o.box(name))["crashes"] == 0
    assert await o.audited("egress.worker_ended") == []
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_command_goes_on_by_the_next_worker_with_the_same_placeholder(caplog: pytest.LogCaptureFixture) -> None:
    async with short() as o:
        await o.allow("alice")
        ask = f'{CURL} -o /dev/null -w "%{{http_code}} " -H "Authorization: Bearer $GH_TOKEN" https://api.test/'
        command = await o.start("alice", f"{ask}; {WAIT.format('one')}; {ask}; {WAIT.format('two')}; {ask}")
        seen: set[int] = set()
        for number, go in enumerate(("one", "two", "three"), 1):
            await eventually(lambda so_far=number: len(o.upstream.arrived) == so_far, "a request")  # type: ignore[misc]
            [pid] = await pids(o, "alice")
            seen.add(pid)
            await rested(o, "alice")
            assert o.egress.facts(await o.box("alice"))["requests"] == number  # it had told what it counted
            await o.run("alice", f"touch {go}")
        ended = await command.outcome()
        assert ended.stdout is not None and ended.stdout.head.split() == [b"200"] * 3
        assert [each.value("authorization") for each in o.upstream.arrived] == [b"Bearer " + SECRET] * 3
        assert len(seen) == 3
        await quiet(o, caplog)


@pytest.mark.parametrize("killed", [False, True], ids=["rested", "control"])
async def test_an_address_that_stood_for_a_name_stands_for_it_still(*, killed: bool) -> None:
    """Control: what a worker knew that was killed is not known to the next."""
    async with short() as o:
        o.site = replace(o.site, pins=(*o.site.pins, Pin("api.test", ELSEWHERE, "127.0.0.1", o.upstream.port)))
        await o.restart()
        await o.allow("alice", ports=(ELSEWHERE,))
        asks = """python3 -c 'import socket; print(socket.gethostbyname("api.test"))'"""
        address = (await o.said("alice", asks)).strip()
        past = f"{CURL} -f --noproxy '*' --resolve api.test:{ELSEWHERE}:{address} https://api.test:{ELSEWHERE}/"
        assert (await o.run("alice", past)).code == 0
        if killed:
            box, (pid,) = await o.box("alice"), await pids(o, "alice")
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not o.egress.facts(box)["worker"], "its end")
        else:
            await rested(o, "alice")
        assert ((await o.run("alice", past)).code == 0) is not killed
        assert len(o.upstream.arrived) == (1 if killed else 2)


def _held_open(o: Outside, go: asyncio.Event) -> None:
    """The upstream says `last` when it may."""

    async def handler(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if arrived.values("upgrade"):
            # RFC 6455 1.3, of the key that is sent
            fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
            writer.write(f"HTTP/1.1 101 X\r\n{fields}\r\n\r\n".encode())
            await reader.readexactly(10)
            writer.write(b"\x81\x04last")
        elif b"GET /quick" in arrived.line:
            writer.write(answer("200 OK", b"quick"))
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            await go.wait()
            writer.write(b"4\r\nlast\r\n0\r\n\r\n")
        await writer.drain()
        return False

    o.upstream.handler = handler


async def _begun(o: Outside, box: BoxId, what: str) -> None:
    user = o.actors["alice"].user
    assert user is not None
    if what == "hold":
        await eventually(lambda: any(each.waiting for each in o.egress.holds.of([user.id])), "a question")
    elif what == "kept":
        await eventually(lambda: o.egress.facts(box)["worker"], "a worker")
    else:
        await eventually(lambda: o.upstream.arrived, "a request")


@pytest.mark.parametrize("what", OPEN)
async def test_it_stays_while_anything_is_open(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """For longer than another user's, who began later and had nothing more to do."""
    script, fields, last = OPEN[what]
    go = asyncio.Event()
    async with short(("alice", "bob")) as o:
        _held_open(o, go)
        await o.allow("alice", **fields)  # type: ignore[arg-type]
        await o.allow("bob")
        command = await o.start("alice", script)
        await _begun(o, await o.box("alice"), what)
        before = await pids(o, "alice")
        for _ in range(2):
            await o.said("bob", f"{CURL} https://api.test/quick")
            await rested(o, "bob")
        assert await pids(o, "alice") == before and len(before) == 1
        go.set()
        await o.run("alice", "touch go")
        if what == "hold":
            user = o.actors["alice"].user
            assert user is not None
            await o.egress.holds.answer(o.actors["alice"], o.egress.holds.of([user.id])[0].id, "once")
        ended = await command.outcome()
        assert ended.stdout is not None and last in ended.stdout.head, (ended.stdout, ended.stderr)
        await rested(o, "alice")  # the control
        await quiet(o, caplog)


async def test_fifty_connections_in_the_moment_of_its_end_are_all_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with short(seconds=0.2) as o:
        await o.allow("alice")
        made = o.stage.driver.worker
        begun: list[BoxId] = []

        async def worker(box: BoxId) -> int:
            begun.append(box)
            return await made(box)

        o.stage.driver.worker = worker  # type: ignore[method-assign]
        many = f"{CURL} -f -Z --parallel-immediate --parallel-max 50 -o /dev/null 'https://api.test/[1-50]'"
        box = await o.box("alice")
        for number in range(6):
            ended = await o.run("alice", many)
            assert ended.code == 0, (number, ended.stderr)
            await eventually(lambda: o.egress.facts(box)["requests"] % 50 == 0, "what was counted")
            if (
                number % 3
            ):  # begins as soon as the server has seen the last one's end, which may not be over for the spawner
                await eventually(lambda: not o.egress.facts(box)["worker"], "its end")
            else:
                await asyncio.sleep(0.08 * number)
        assert len(o.upstream.arrived) == 300 and len(begun) > 3
        await quiet(o, caplog)
