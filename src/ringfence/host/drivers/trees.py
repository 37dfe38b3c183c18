"""The kernel's end of the socket to whoever packs or unpacks a box's tree (ringfence.spawner.packing, unpacking).

Chunks and frames of the files wire. It must never believe a length beyond the limits of the wire, or take an archive for whole
without the last word of its other end.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from ringfence.host.kernel.errors import DiskFull, Failed, Refused, RingfenceError, TooLarge, Unavailable
from ringfence.host.kernel.life.copies import Copied
from ringfence.spawner.protocol import FILES_ABORT, FILES_CHUNK, FILES_FRAME

LENGTH = struct.Struct(">I")
_ERRORS: dict[str, tuple[type[RingfenceError], str]] = {
    "refused": (Refused, "what is in the archive is not taken; what the box has stays as it is"),
    "disk_full": (DiskFull, "raise the limit (ringfence box limits U --disk SIZE), or take a smaller copy"),
    "too_large": (TooLarge, "raise the limit: ringfence box limits U --fsize SIZE"),
    "read_only": (Unavailable, "ringfence box recover U --fsck"),
}
_OF_PACKING = _ERRORS | {"too_large": (TooLarge, "remove some of them in the box, or spread them over more folders")}


class TreePacking:
    """kernel.life.copies.Packing."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._copied: Copied | None = None

    def __aiter__(self) -> AsyncGenerator[bytes, None]:
        return self._chunks()

    @property
    def copied(self) -> Copied:
        if self._copied is None:
            raise Failed("the archive was not read to its end")
        return self._copied

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while (length := await _length(self._reader)) not in (0, FILES_ABORT):
                if length > FILES_CHUNK:
                    raise _nonsense()
                yield await self._reader.readexactly(length)
            self._copied = _copied(await _answer(self._reader, _OF_PACKING))
        except (OSError, EOFError) as error:
            raise _lost() from error


@asynccontextmanager
async def packing(fd: int) -> AsyncIterator[TreePacking]:
    """`fd`: a connected stream socket, taken over."""
    reader, writer = await _opened(fd)
    try:
        yield TreePacking(reader)
    finally:
        writer.transport.abort()


class TreeUnpacking:
    """kernel.life.copies.Unpacking."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.whole = False

    async def __call__(self, data: AsyncIterator[bytes]) -> Copied:
        answer = asyncio.ensure_future(_answer(self._reader))  # an error comes as soon as there is one
        try:
            try:
                await self._send(data, answer)
            except OSError as error:
                if not answer.done():
                    raise _lost() from error
            try:
                copied = _copied(await answer)
            except (OSError, EOFError) as error:
                raise _lost() from error
            self.whole = True
            return copied
        finally:
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

    async def _send(self, data: AsyncIterator[bytes], answer: asyncio.Future[dict[str, Any]]) -> None:
        async for piece in data:
            view = memoryview(piece)
            while view and not answer.done():
                chunk, view = view[:FILES_CHUNK], view[FILES_CHUNK:]
                self._writer.write(LENGTH.pack(len(chunk)))
                self._writer.write(chunk)
                await self._writer.drain()
            if answer.done():
                return
        self._writer.write(LENGTH.pack(0))
        await self._writer.drain()


@asynccontextmanager
async def unpacking(fd: int) -> AsyncIterator[TreeUnpacking]:
    """`fd`: a connected stream socket, taken over."""
    reader, writer = await _opened(fd)
    try:
        yield TreeUnpacking(reader, writer)
    finally:
        writer.transport.abort()


async def _opened(fd: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return await asyncio.open_unix_connection(sock=sock, limit=FILES_CHUNK)


async def _length(reader: asyncio.StreamReader) -> int:
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return int(length)


async def _answer(
    reader: asyncio.StreamReader, errors: Mapping[str, tuple[type[RingfenceError], str]] = _ERRORS
) -> dict[str, Any]:
    """The last word. Raises what it is an error of."""
    length = await _length(reader)
    if length > FILES_FRAME:
        raise _nonsense()
    data = await reader.readexactly(length)
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _nonsense() from error
    if isinstance(said, dict) and isinstance(wrong := said.get("error"), dict):
        kind, remedy = errors.get(str(wrong.get("code")), (Failed, "try again"))
        raise kind(str(wrong.get("text", ""))[:500] or "it failed without a word", remedy=remedy)
    if not isinstance(said, dict) or not isinstance(said.get("ok"), dict):
        raise _nonsense()
    found: dict[str, Any] = said["ok"]
    return found


def _copied(said: dict[str, Any]) -> Copied:
    with suppress(KeyError, TypeError, ValueError):
        left_out = {str(kind)[:40]: int(count) for kind, count in dict(said["left_out"]).items()}
        return Copied(int(said["entries"]), int(said["bytes"]), left_out)
    raise _nonsense()


def _nonsense() -> Failed:
    return Failed("whoever copies the box's tree broke the wire", remedy="try again; report it when it happens twice")


def _lost() -> Unavailable:
    return Unavailable("whoever copies the box's tree has ended", remedy="try again")
