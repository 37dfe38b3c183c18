"""Both ends of a worker's rest, each for itself: a whole worker at its control socket, with everything in its kernel's queues at the
worst moment; and the server's side, with a worker that says what it likes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import dns.message
import pytest

from ringfence.host.egress import configured
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.control import MAX_PACKET
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.worker import Worker
from ringfence.host.kernel.outward.ports import Invoker
from tests.support.egress_outside import Ca, configuration
from tests.support.egress_rig import rule
from tests.support.egress_tls import Authority
from tests.support.outpost_rig import BOX, TENANT, USER, staged

PATIENCE = 20.0  # seconds, of what comes within one
REQUEST = b"GET http://denied.test/ HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"
ORDERS = [("rest", "clients"), ("clients", "rest")]


@dataclass
class Told:
    """A worker, by what it was told and has said."""

    control: socket.socket
    worker: Worker
    heard: list[dict[str, Any]] = field(default_factory=list)

    def say(self, packet: dict[str, Any], fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.control, [json.dumps(packet).encode()], fds)

    async def hear(self, *kinds: str) -> dict[str, Any]:
        """The next packet of one of these kinds."""
        async with asyncio.timeout(PATIENCE):
            while True:
                said = json.loads(await asyncio.get_running_loop().sock_recv(self.control, MAX_PACKET))
                self.heard.append(said)
                if said["t"] in kinds:
                    return said  # type: ignore[no-any-return]

    async def rest(self) -> dict[str, Any]:
        """As the server answers each `idle`, some of which may be of before something that has begun. What it says of its end."""
        while True:
            said = await self.hear("idle", "rested")
            if said["t"] == "rested":
                return said
            self.say({"t": "rest"})

    def listen(self, listeners: Listeners) -> None:
        for kind, sock in listeners.all.items():
            self.say({"t": "listen", "kind": kind, "port": 101, "invocation": "inv_1"}, [sock.fileno()])


class Listeners:
    """The server's."""

    def __init__(self, stack: ExitStack) -> None:
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        streams = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128)) for _ in range(2)]
        self.all = {"proxy": streams[0], "dns_udp": datagrams, "dns_tcp": streams[1]}
        self._stack = stack

    def asks(self, kind: str, said: bytes) -> socket.socket:
        """Somebody who is in the kernel's queue when this returns."""
        to = self.all[kind]
        sock = self._stack.enter_context(socket.socket(type=to.type))
        sock.connect(to.getsockname())
        sock.send(said)
        sock.setblocking(False)
        return sock


@asynccontextmanager
async def told(ca: Ca, roots: str, listeners: Listeners, seconds: float = 0.1) -> AsyncIterator[Told]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setblocking(False)
    with here:
        async with asyncio.TaskGroup() as group:
            one = Told(here, Worker(there, Trust(), group))
            made = configuration(ca, roots, rules=(rule(),), bounds=Bounds(idle_ends=seconds))
            parts = configured.parts(configured.as_text(made))
            for number, text in enumerate(parts):
                one.say({"t": "configure", "seq": 1, "part": number, "parts": len(parts), "text": text})
            await one.hear("done")
            one.listen(listeners)
            yield one
            one.say({"t": "end"})
            await one.worker.over()
            one.worker.stop()


@pytest.fixture
def ca() -> Ca:
    return Ca("user")


@pytest.fixture
def roots(tmp_path: Any) -> str:
    return Authority(tmp_path, "upstream").pem


def question(name: str) -> bytes:
    return dns.message.make_query(name, "A").to_wire()


async def answered(sock: socket.socket, wanted: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        assert wanted in await asyncio.get_running_loop().sock_recv(sock, 4096)


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order) for order in ORDERS])
async def test_who_comes_in_the_moment_of_its_end_is_answered_by_the_next(order: list[str], ca: Ca, roots: str) -> None:
    """All has arrived in one turn of its loop. Nothing is taken and then let go of, whichever it sees first."""
    with ExitStack() as stack:
        listeners, clients = Listeners(stack), []
        async with told(ca, roots, listeners) as worker:
            await worker.hear("idle")
            for what in order:  # the worker has no turn in here
                if what == "rest":
                    worker.say({"t": "rest"})
                    continue
                clients += [(listeners.asks("proxy", REQUEST), b"HTTP/1.1 403") for _ in range(50)]
                clients += [(listeners.asks("dns_udp", question("api.test")), b"\x03api\x04test") for _ in range(20)]
                long = question("api.test")
                clients += [(listeners.asks("dns_tcp", len(long).to_bytes(2, "big") + long), b"\x03api\x04test")]
            said = await worker.hear("rested", "traffic")
            if said["t"] == "rested":
                async with told(ca, roots, listeners, seconds=60.0):
                    await asyncio.gather(*(answered(*each) for each in clients))
            else:
                await asyncio.gather(*(answered(*each) for each in clients))
            assert said["t"] == "rested"  # else the moment was missed


@pytest.mark.parametrize("kind", ["proxy", "dns_udp", "dns_tcp"])
async def test_it_goes_on_when_something_has_begun_since_it_was_idle(kind: str, ca: Ca, roots: str) -> None:
    said = {"proxy": b"GET", "dns_udp": question("api.test"), "dns_tcp": b"\0"}
    with ExitStack() as stack:
        listeners = Listeners(stack)
        async with told(ca, roots, listeners) as worker:
            await worker.hear("idle")
            client = listeners.asks(kind, said[kind])
            if kind == "dns_udp":
                await answered(client, b"\x03api\x04test")
            else:
                async with asyncio.timeout(PATIENCE):
                    while not worker.worker._serving.idleness._busy:  # type: ignore[union-attr]
                        await asyncio.sleep(0.001)
            worker.say({"t": "rest"})
            worker.say({"t": "revoke", "credential": "crd_1", "n": 7})
            await worker.hear("done")
            assert not [each for each in worker.heard if each["t"] == "rested"]
            if kind == "proxy":  # what was begun is finished
                client.send(REQUEST[3:])
                await answered(client, b"HTTP/1.1 403")
            client.close()
            await worker.rest()  # the control


async def test_what_it_counted_comes_first_and_what_it_is_told_after_is_done_or_left(ca: Ca, roots: str) -> None:
    with ExitStack() as stack:
        listeners = Listeners(stack)
        async with told(ca, roots, listeners) as worker:
            client = listeners.asks("proxy", REQUEST)
            await answered(client, b"HTTP/1.1 403")
            client.close()
            await answered(listeners.asks("dns_udp", question("api.test")), b"\x03api\x04test")
            rested = await worker.rest()
            counted = [item["host"] for each in worker.heard if each["t"] == "traffic" for item in each["items"]]
            assert counted == ["denied.test"] and [name for name, _ in rested["names"]] == ["api.test"]
            worker.listen(listeners)  # was on its way
            late = listeners.asks("proxy", REQUEST)
            worker.say({"t": "revoke", "credential": "crd_1", "n": 7})
            assert (await worker.hear("done"))["n"] == 7
            async with told(ca, roots, listeners, seconds=60.0) as after:
                after.say({"t": "names", "items": rested["names"]})
                await answered(late, b"HTTP/1.1 403")
                names = after.worker._assembly._names
                assert names is not None and names.name_of(rested["names"][0][1]) == "api.test"
        assert worker.worker.broken == ""


# --- the server's side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "told_to"), [(0.0, True), (3600.0, True), (0.0, False)], ids=["may", "early", "untold"]
)
async def test_only_one_that_was_told_to_and_lived_long_enough_is_no_crash(seconds: float, told_to: bool) -> None:
    """Else a worker that ends at once would have the next one begun at once, without an end."""
    async with staged(bounds=Bounds(idle_ends=seconds)) as s:
        await s.open()
        worker = await s.working()
        before = len(s.rows.audited)
        s.outpost.tally.crashes = 1 if told_to and not seconds else 0  # of one before: forgotten by a rest
        if told_to:
            await worker.say(t="idle")
            async with asyncio.timeout(PATIENCE):
                while not worker.of("rest"):
                    await asyncio.sleep(0.005)
        await worker.say(t="rested", names=[["api.test", "198.18.3.4"]])
        async with asyncio.timeout(PATIENCE):
            while len(s.outlets.workers) < 2 or not s.outlets.workers[1].of("listen"):  # who rang is still there
                await asyncio.sleep(0.005)
        rests = told_to and not seconds
        assert s.outpost.tally.crashes == (0 if rests else 1)
        assert [action for action, _ in s.rows.audited[before:]] == ([] if rests else ["egress.worker_ended"])
        assert s.outlets.workers[1].of("names")[0]["items"] == ([["api.test", "198.18.3.4"]] if rests else [])


async def test_one_whose_question_is_open_is_not_told_to_rest() -> None:
    async with staged(bounds=Bounds(idle_ends=0.0)) as s:
        released = asyncio.Event()
        real = s.rows.lend

        async def lend(actor: object, wanted: object) -> Any:
            await released.wait()
            return await real(actor, wanted)

        s.rows.lend = lend  # type: ignore[method-assign]
        await s.open()
        begun = await s.way_out.begin(Invoker(TENANT, USER, BOX, "x/1"))
        worker = await s.working()
        asked = {"credential": "crd_1", "binding": "bnd_1", "invocation": begun.id, "host": "api.test"}
        await worker.say(t="secret", n=1, method="GET", path="/", **asked)
        await worker.say(t="idle")
        await s.way_out.revoke("crd_9")  # is answered after what was said before
        assert not worker.of("rest")
        released.set()
        async with asyncio.timeout(PATIENCE):
            while not worker.of("secret"):
                await asyncio.sleep(0.005)
        await worker.say(t="idle")
        async with asyncio.timeout(PATIENCE):
            while not worker.of("rest"):
                await asyncio.sleep(0.005)
