"""The sockets of a box's resolver: datagrams, and connections of a few questions. Bounded; one question at a time.

It must never let a flood of questions keep the worker from its connections: after each answer the others have their turn. Nor may it
take a question that it does not answer: what has come and was not taken is there for the next worker.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from ringfence.host.egress.arrivals import exactly, readable
from ringfence.host.egress.idleness import Idleness

_LONGEST = 4096  # bytes of a question: names have 255, options of EDNS some dozens
_CONNECTIONS = 16
_QUESTIONS = 64  # of one connection
_SECONDS = 5.0  # between two questions, and for one to come whole
_LENGTH = struct.Struct("!H")
_BACK_OFF = 0.1

Answer = Callable[[bytes], bytes | None]


async def datagrams(sock: socket.socket, answer: Answer, idleness: Idleness) -> None:
    """Until cancelled. `sock`: non-blocking, bound; the caller's."""
    loop = asyncio.get_running_loop()
    while True:
        await readable(sock)  # one turn of the loop at least
        try:
            with idleness.busy():
                data, source = sock.recvfrom(_LONGEST)
                said = _answered(answer, data)
                if said is not None:
                    await loop.sock_sendto(sock, said, source)
        except BlockingIOError:  # it was damaged on its way
            continue
        except OSError:  # who asked has gone, or has no port any more
            await asyncio.sleep(_BACK_OFF)


async def connections(sock: socket.socket, answer: Answer, idleness: Idleness) -> None:
    """Until cancelled. `sock`: non-blocking, listening; the caller's."""
    free = asyncio.Semaphore(_CONNECTIONS)

    def over(_: asyncio.Task[None]) -> None:
        idleness.over()
        free.release()

    async with asyncio.TaskGroup() as group:
        while True:
            await free.acquire()
            await readable(sock)
            try:
                opened, _ = sock.accept()
            except OSError as error:
                free.release()
                if not isinstance(error, BlockingIOError):
                    await asyncio.sleep(_BACK_OFF)
                continue
            opened.setblocking(False)
            idleness.begin()
            group.create_task(_connection(opened, answer)).add_done_callback(over)


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
