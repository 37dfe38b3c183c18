"""Sockets that are no streams: waiting for bytes, looking at them without taking them, so many exactly, and where a redirected
connection was meant for."""

from __future__ import annotations

import asyncio
import socket
import struct

_ORIGINAL_DST = 80  # SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST: linux/netfilter_ipv4.h, netfilter_ipv6/ip6_tables.h
_V4 = struct.Struct("!2xH4s8x")  # sockaddr_in
_V6 = struct.Struct("!2xH4x16s4x")  # sockaddr_in6


async def peeked(sock: socket.socket, most: int) -> bytes:
    """What is there, once something is; b"": the end. Not for waiting for more than that."""
    while True:
        try:
            return sock.recv(most, socket.MSG_PEEK)
        except BlockingIOError:
            await readable(sock)


async def readable(sock: socket.socket) -> None:
    """Until something is there, or the end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock)


def silence(sock: socket.socket, task: asyncio.Task[None]) -> None:
    """Ends the task that waits for this socket to be `readable`, and closes it: whatever has come to it and was not taken stays with
    who has the same socket still."""
    asyncio.get_running_loop().remove_reader(sock)
    task.cancel()
    task.add_done_callback(lambda _: sock.close())


async def exactly(sock: socket.socket, count: int) -> bytes:
    """ConnectionError: it ends before."""
    loop, got = asyncio.get_running_loop(), bytearray()
    while len(got) < count:
        piece = await loop.sock_recv(sock, count - len(got))
        if not piece:
            raise ConnectionError("it ends too early")
        got += piece
    return bytes(got)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def original_destination(sock: socket.socket) -> tuple[str, int]:
    """(address, port) that the box meant, before nft redirected it. OSError: it was not redirected."""
    if sock.family == socket.AF_INET6 and not _mapped(sock):
        port, packed = _V6.unpack(sock.getsockopt(socket.IPPROTO_IPV6, _ORIGINAL_DST, _V6.size))
        return socket.inet_ntop(socket.AF_INET6, packed), port
    port, packed = _V4.unpack(sock.getsockopt(socket.SOL_IP, _ORIGINAL_DST, _V4.size))
    return socket.inet_ntop(socket.AF_INET, packed), port


def _mapped(sock: socket.socket) -> bool:
    """A v4 connection on a dual-stack listener."""
    return str(sock.getpeername()[0]).startswith("::ffff:")
