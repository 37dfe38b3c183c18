"""Bytes of file descriptors without blocking the loop and without O_NONBLOCK, which others who share them would feel."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator, Callable

CHUNK = 64 << 10
PIPE_ROOM = 4096  # PIPE_BUF: a pipe that polls writable has room for that much (man 7 pipe), so the write never waits


async def chunks(fd: int) -> AsyncIterator[bytes]:
    """What can be read, until end of file."""
    loop = asyncio.get_running_loop()
    while True:
        await _ready(fd, loop.add_reader, loop.remove_reader)
        data = os.read(fd, CHUNK)
        if not data:
            return
        yield data


async def write(fd: int, data: bytes) -> None:
    """All of it. BrokenPipeError: nobody reads any more."""
    loop = asyncio.get_running_loop()
    most = CHUNK if stat.S_ISREG(os.fstat(fd).st_mode) else PIPE_ROOM
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    view = memoryview(data)
    while view:
        if not poll.poll(0):
            await _ready(fd, loop.add_writer, loop.remove_writer)
        view = view[os.write(fd, view[:most]) :]


async def _ready(fd: int, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    """Regular files and /dev/null cannot be polled (EPERM, man 2 epoll_ctl): they never keep anybody waiting."""
    ready = asyncio.Event()
    try:
        add(fd, ready.set)
    except PermissionError:
        return
    try:
        await ready.wait()
    finally:
        remove(fd)
