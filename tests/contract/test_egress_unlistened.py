"""A listener that a worker lets go lives on at the server, deaf until its port is another command's."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path

from tests.support.egress_rig import INVOCATION, rig

PORT = 250


def watched() -> int:
    """Entries of this process's epoll sets."""
    found = 0
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            found += len(re.findall(r"^tfd:", Path(f"/proc/self/fdinfo/{name}").read_text(), re.M))
        except OSError:  # of the listing itself
            continue
    return found


def two(address: tuple[str, int]) -> tuple[socket.socket, socket.socket]:
    """Both are in the queue before either is accepted, or nearly so."""
    return socket.create_connection(address), socket.create_connection(address)


async def test_what_is_no_longer_listened_on_is_no_longer_watched(tmp_path: Path) -> None:
    """Watched, a deaf one is ready for ever: the loop never sleeps, and the next of its descriptor is accepted from twice."""
    async with rig(tmp_path) as way:
        await asyncio.sleep(0.05)  # the rig's own are there by then
        before = watched()
        with socket.create_server(("127.0.0.1", 0)) as kept:
            for _ in range(3):
                way.serving.listen(PORT, kept.dup(), invocation=INVOCATION, transparent=False)
                await asyncio.sleep(0.01)
                assert watched() == before + 1
                way.serving.unlisten(PORT)
                await asyncio.sleep(0.01)
                assert watched() == before
            kept.shutdown(socket.SHUT_RDWR)
            used = os.times()
            await asyncio.sleep(0.3)
            assert sum(os.times()[:2]) - sum(used[:2]) < 0.2, "seconds of CPU, of 0.3"


async def test_one_that_closes_at_once_takes_nobody_with_it(tmp_path: Path) -> None:
    """After other commands have come and gone, on the same descriptor."""
    async with rig(tmp_path) as way:
        kept = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
        for sock in kept:
            way.serving.listen(PORT, sock.dup(), invocation=INVOCATION, transparent=False)
            await asyncio.sleep(0)
            address = sock.getsockname()
            gone, stays = await asyncio.to_thread(two, address)
            gone.close()
            stays.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(
                stays, b"CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n"
            )
            async with asyncio.timeout(5):
                answer = await asyncio.get_running_loop().sock_recv(stays, 100)
            assert answer.startswith(b"HTTP/1.1 403 ")
            stays.close()
            way.serving.unlisten(PORT)
            await asyncio.sleep(0.01)
            sock.shutdown(socket.SHUT_RDWR)
        for sock in kept:
            sock.close()
