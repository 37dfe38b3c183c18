"""The first of several addresses that takes a connection: IPv6 and IPv4 by turns, each a quarter of a second after the one
before (RFC 8305). It must never look a name up: what is given here is dialled."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Sequence

_STEP = 0.25  # RFC 8305 5
_EACH = 5.0  # seconds for one address: two retransmissions of a SYN (1 s, 3 s)


async def connected(addresses: Sequence[str], port: int) -> socket.socket:
    """Non-blocking, without delay. OSError: of the last that failed."""
    left = _by_turns(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException = OSError("no address")
    try:
        while left or running:
            if left:
                running.add(asyncio.create_task(_connect(left.pop(0), port)))
            done, running = await asyncio.wait(
                running, timeout=_STEP if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            running |= {task for task in done if task.exception() is None}
            if won := next((task for task in done if task.exception() is None), None):
                running.discard(won)
                return won.result()
            failure = next((error for task in done if (error := task.exception()) is not None), failure)
        raise failure
    finally:
        await _ended(running)


async def _ended(running: set[asyncio.Task[socket.socket]]) -> None:
    for task in running:
        task.cancel()
    for late in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(late, socket.socket):
            late.close()


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(_EACH):
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _by_turns(addresses: Sequence[str]) -> list[str]:
    new, old = ([each for each in addresses if (":" in each) is v6] for v6 in (True, False))
    return [each for pair in itertools.zip_longest(new, old) for each in pair if each is not None]
