"""The listeners of a box: ready before they are needed, deaf while they are nobody's, and going round."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from ringfence.host.egress.chores import Chores
from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.confine import NOFILE
from ringfence.host.egress.keeping import MOST_IDLE
from ringfence.host.egress.sockets import FIRST, MOST, READY, Sockets
from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.listeners import Listener


class Outlets:
    """Sockets of this host, of ports that it chooses; what was asked for is in `asked`."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.real: dict[int, int] = {}
        self.failing = False

    async def listen(self, box: BoxId, port: int) -> list[Listener]:
        if self.failing:
            raise Unavailable("the spawner has gone")
        self.asked.append(port)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.real[port] = free.getsockname()[1]
        sock = socket.create_server(
            ("127.0.0.1", self.real[port])
        )  # by number: such a port stays bound while it is deaf
        return [Listener("proxy" if port else "transparent", port or 1022, sock.detach())]

    async def worker(self, box: BoxId) -> int:
        raise AssertionError

    async def end_worker(self, box: BoxId) -> None:
        raise AssertionError

    async def trust(self, box: BoxId, certificate: str) -> None:
        raise AssertionError


class Made:
    def __init__(self) -> None:
        self.outlets, self.chores = Outlets(), Chores()
        self.appeared: list[Listener] = []
        self.sockets = Sockets(BoxId("b" * 16), self.outlets, self.chores, self.appeared.append)

    async def settled(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def heard(self, port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.outlets.real[port]), 5).close()
        except ConnectionRefusedError:
            return False
        return True


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    one = Made()
    await one.sockets.open([200])
    await one.settled()
    yield one
    one.sockets.close()
    await one.chores.close()


async def test_a_command_takes_what_is_ready_and_only_that_one_hears(made: Made) -> None:
    assert made.outlets.asked == [0, 200, *range(201, 201 + FIRST - 1)]
    before = list(made.outlets.asked)
    listener = await made.sockets.take()
    assert made.outlets.asked == before and listener.port == 201 and made.appeared == [listener]
    assert made.heard(201) and made.heard(200) and not made.heard(202)
    made.sockets.drop(201)
    assert not made.heard(201)
    assert len(made.sockets) == 2  # the fixed one, and 200


async def test_a_port_is_anothers_only_after_all_that_are_ready(made: Made) -> None:
    used = []
    for _ in range(2 * READY):
        used.append((await made.sockets.take()).port)
        made.sockets.drop(used[-1])
        await made.settled()
    assert all(used[at] not in used[at + 1 : at + READY - 1] for at in range(READY, len(used)))  # one of them is 200
    assert made.heard((await made.sockets.take()).port)  # one that was deaf before


async def test_there_are_as_many_as_a_worker_has_descriptors_for_and_then_it_is_said(made: Made) -> None:
    """With all its connections, and what it keeps of upstreams."""
    bounds = Bounds()
    assert MOST + 2 * bounds.connections + MOST_IDLE + 40 < NOFILE
    while len(made.sockets) < MOST + 1:  # and the fixed one of this
        await made.sockets.take()
        await asyncio.sleep(0)
    assert len(set(made.outlets.asked)) == len(made.outlets.asked)
    with pytest.raises(Conflict, match="600 commands"):
        await made.sockets.take()
    made.sockets.drop(300)
    assert (await made.sockets.take()).port


async def test_who_has_none_ready_and_no_spawner_is_told(made: Made) -> None:
    made.outlets.failing = True
    for _ in range(FIRST - 1):
        await made.sockets.take()
    with pytest.raises(Unavailable):
        await made.sockets.take()
