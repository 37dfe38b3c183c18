"""The sockets of a box's resolver: datagrams, and connections of a few questions. Bounded; one question at a time.

It must never let a flood of questions keep the worker from its connections: after each answer the others have their turn.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from ringfence.host.egress.arrivals import exactly

_LONGEST = 4096  # bytes of a question: names have 255, options of EDNS some dozens
_CONNECTIONS = 16
_QUESTIONS = 64  # of one connection
_SECONDS = 5.0  # between two questions, and for one to come whole
_LENGTH = struct.Struct("!H")
_BACK_OFF = 0.1

Answer = Callable[[bytes], bytes | None]


async def datagrams(sock: socket.socket, answer: Answer) -> None:
    """Until cancelled. `sock`: non-blocking, bound; the caller's."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data, source = await loop.sock_recvfrom(sock, _LONGEST)
            said = _answered(answer, data)
            if said is not None:
                await loop.sock_sendto(sock, said, source)
        except OSError:  # who asked has gone, or has no port any more
            await asyncio.sleep(_BACK_OFF)
        await asyncio.sleep(0)  # a datagram that is there already is taken without a pause


async def connections(sock: socket.socket, answer: Answer) -> None:
    """Until cancelled. `sock`: non-blocking, listening; the caller's."""
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(_CONNECTIONS)
    async with asyncio.TaskGroup() as group:
        while True:
            await free.acquire()
            try:
                opened, _ = await loop.sock_accept(sock)
            except OSError:
                free.release()
                await asyncio.sleep(_BACK_OFF)
                continue
            task = group.create_task(_connection(opened, answer))
            task.add_done_callback(lambda _: free.release())
            await asyncio.sleep(0)


async def _connection(sock: socket.socket, answer: Answer) -> None:
    """RFC 7766. Never raises but for cancellation."""
    loop = asyncio.get_running_loop()
    with sock:
        try:
            for _ in range(_QUESTIONS):
                async with asyncio.timeout(_SECONDS):
                    (size,) = _LENGTH.unpack(await exactly(sock, _LENGTH.size))
                    if size > _LONGEST:
                        return
                    said = _answered(answer, await exactly(sock, size))
                    if said is None:
                        return
                    await loop.sock_sendall(sock, _LENGTH.pack(len(said)) + said)
                await asyncio.sleep(0)
        except OSError:  # left, or late
            return


def _answered(answer: Answer, wire: bytes) -> bytes | None:
    """A question that meets a fault of ours gets no word; the next one does. Its text is a box's, so nobody is told more."""
    try:
        return answer(wire)
    except Exception:
        return None
