"""The kernel's end of the files wire: one box's files through its helper, as `kernel.ports.BoxFiles`.

The helper is the one that opens anything; here paths are only mapped and bytes carried. It must never touch a file
itself, believe a length that the helper sends beyond the limits of the wire, or keep more of a file than one chunk.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from ringfence.host.drivers.files_paths import shown, tree_path
from ringfence.host.kernel.errors import (
    Conflict,
    DiskFull,
    Failed,
    Invalid,
    NotFound,
    Refused,
    RingfenceError,
    TooLarge,
    Unavailable,
)
from ringfence.host.kernel.ports import FileInfo
from ringfence.spawner.protocol import FILES_ABORT, FILES_CHUNK, FILES_FRAME

LENGTH = struct.Struct(">I")
PAGE = 1000  # entries that the helper sends at most in one reply
# The helper gives up after 60 s without a byte; we a little later, so that its own words arrive first.
PROGRESS_SECONDS = 65.0
REPLY_SECONDS = 600.0  # deleting or counting a large tree, fsync of a large file

FileInfos = list[FileInfo]

_ERRORS: Mapping[str, tuple[type[RingfenceError], str]] = {
    "not_found": (NotFound, "no such file"),
    "refused": (Refused, "refused"),
    "is_directory": (Conflict, "is a folder"),
    "not_empty": (Conflict, "folder is not empty"),
    "exists": (Conflict, "is in the way"),
    "disk_full": (DiskFull, "the disk of the box is full"),
    "read_only": (Unavailable, "the disk of the box takes no write"),
    "too_large": (TooLarge, "larger than a file of the box may be"),
}
_REMEDIES: Mapping[str, str] = {
    "not_empty": "remove it with --recursive",
    "disk_full": "remove files, or raise the box's disk limit",
    "read_only": "ringfence box stop U, then ringfence box start U: what an error made read-only is mounted anew then",
    "is_directory": "name a file",
    "refused": "see what it is: ringfence files stat U PATH; content is of regular files, and no link leads out of the box",
}


class FilesClient:
    """An async context; one request at a time, further callers wait.

    `fd`: a connected stream socket to the box's files helper, taken over. A request that is
    cancelled, or a `get` that is not read to its end, closes the connection: the helper then deletes what it had half
    of. Unavailable from every method after that.
    """

    def __init__(self, fd: int) -> None:
        self._socket: socket.socket | None = socket.socket(fileno=fd)
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._unread = False  # of the file that is being fetched; under the lock

    async def __aenter__(self) -> FilesClient:
        sock, self._socket = self._socket, None
        if sock is None:
            raise Failed("a files client can be entered once")
        sock.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=sock, limit=FILES_CHUNK)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    def cut(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    # --- BoxFiles ----------------------------------------------------------------------------------------------------

    async def stat(self, path: bytes) -> FileInfo:
        info = _info(await self._simple(path, {"op": "stat"}))
        return replace(info, name=b"user") if tree_path(path) == b"home" else info

    async def list(self, path: bytes, after: bytes | None, limit: int) -> FileInfos:
        if limit < 1:
            raise Invalid(f"limit must be at least 1, not {limit}")
        found: FileInfos = []
        while len(found) < limit:
            request = {"op": "list", "limit": min(PAGE, limit - len(found)), "after_b64": _packed(after)}
            reply = await self._simple(path, request)
            entries = reply.get("entries")
            if not isinstance(entries, list) or len(entries) > limit - len(found):
                raise _nonsense()
            found += [_info(entry) for entry in entries]
            if not entries or reply.get("more") is not True:
                break
            after = found[-1].name
        return found

    async def get(self, path: bytes) -> AsyncGenerator[bytes, None]:
        async with self.fetch(path) as (_, content):
            async for chunk in content:
                yield chunk

    @contextlib.asynccontextmanager
    async def fetch(self, path: bytes) -> AsyncIterator[tuple[FileInfo, AsyncIterator[bytes]]]:
        async with self._exchange(path, {"op": "get"}):
            info = _info(_ok(await self._reply(), path))
            self._unread = True
            yield info, self._content(path)
            if self._unread:  # not read to its end: the rest would be taken for the next answer
                self._open().transport.abort()

    async def _content(self, path: bytes) -> AsyncGenerator[bytes, None]:
        while (length := await self._length(PROGRESS_SECONDS)) != 0:
            if length == FILES_ABORT:
                _ok(await self._reply(), path)
                raise _nonsense()
            if length > FILES_CHUNK:
                raise _nonsense()
            yield await self._read(length, PROGRESS_SECONDS)
        self._unread = False

    async def put(self, path: bytes, data: AsyncIterator[bytes], mode: int) -> FileInfo:
        if not 0 <= mode <= 0o777:
            raise Invalid(f"mode {mode:o} is not one of 0 to 777 (octal)", remedy="use permission bits only, like 644")
        async with self._exchange(path, {"op": "put", "mode": mode}):
            ready = await self._reply()
            if "ready" not in ready:
                _ok(ready, path)
                raise _nonsense()
            # Read while we send: a full disk is known at once and not after the last byte.
            answer = asyncio.ensure_future(self._reply())
            try:
                await self._send_all(data, answer)
                return _info(_ok(await answer, path))
            finally:
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)

    async def remove(self, path: bytes, recursive: bool) -> None:
        await self._simple(path, {"op": "remove", "recursive": recursive})

    async def usage(self) -> tuple[int, int]:
        reply = await self._simple(b".", {"op": "usage"})
        return _whole(reply.get("bytes")), _whole(reply.get("inodes"))

    # --- the wire ----------------------------------------------------------------------------------------------------

    async def _simple(self, path: bytes, request: dict[str, Any]) -> dict[str, Any]:
        async with self._exchange(path, request):
            return _ok(await self._reply(), path)

    @contextlib.asynccontextmanager
    async def _exchange(self, path: bytes, request: dict[str, Any]) -> AsyncIterator[None]:
        """One request. Whatever ends it, other than its full answer, ends the connection too: half an answer would be
        taken for the next one's."""
        body = json.dumps({**request, "path_b64": _packed(tree_path(path))}).encode()
        async with self._lock:
            writer, meant = self._open(), None
            try:
                self._write(LENGTH.pack(len(body)) + body)
                await self._drain()
                yield
            except _Answered as answered:
                meant = answered.meant
            except (OSError, EOFError) as error:  # TimeoutError and IncompleteReadError too
                writer.transport.abort()
                raise _lost() from error
            except BaseException:
                writer.transport.abort()
                raise
        if meant is not None:
            raise meant

    def _open(self) -> asyncio.StreamWriter:
        if self._writer is None:
            raise Failed("a files client is used inside `async with`")
        if self._writer.is_closing():
            raise _lost()
        return self._writer

    async def _send_all(self, data: AsyncIterator[bytes], answer: asyncio.Future[dict[str, Any]]) -> None:
        source = aiter(data)
        while True:
            try:
                piece = await anext(source)
            except StopAsyncIteration:
                break
            except Exception as error:  # the source's; a cancellation is no Exception and closes the connection
                self._write_abort("the sender failed")
                await answer
                raise _Answered(error) from error
            await self._send(memoryview(piece), answer)
            if answer.done():  # with an error; the helper throws away what comes until it sees our end
                self._write_abort("the receiver gave up")
                return
        self._write(LENGTH.pack(0))
        await self._drain()

    async def _send(self, data: memoryview, answer: asyncio.Future[dict[str, Any]]) -> None:
        while data and not answer.done():
            self._write(LENGTH.pack(len(data[:FILES_CHUNK])))
            self._write(data[:FILES_CHUNK])
            await self._drain()
            data = data[FILES_CHUNK:]

    def _write_abort(self, text: str) -> None:
        body = json.dumps({"error": {"code": "aborted", "text": text}}).encode()
        self._write(LENGTH.pack(FILES_ABORT) + LENGTH.pack(len(body)) + body)

    def _write(self, data: bytes | memoryview) -> None:
        self._open().write(data)

    async def _drain(self) -> None:
        async with asyncio.timeout(PROGRESS_SECONDS):
            await self._open().drain()

    async def _reply(self) -> dict[str, Any]:
        length = await self._length(REPLY_SECONDS)
        if length > FILES_FRAME:
            raise _nonsense()
        try:
            value = json.loads(await self._read(length, PROGRESS_SECONDS))
        except (ValueError, RecursionError) as error:
            raise _nonsense() from error
        if not isinstance(value, dict):
            raise _nonsense()
        return value

    async def _length(self, seconds: float) -> int:
        (length,) = LENGTH.unpack(await self._read(LENGTH.size, seconds))
        return int(length)

    async def _read(self, length: int, seconds: float) -> bytes:
        assert self._reader is not None
        async with asyncio.timeout(seconds):
            return await self._reader.readexactly(length)


class _Answered(Exception):
    """The exchange is complete and the connection whole; `meant` is what the caller gets."""

    def __init__(self, meant: Exception) -> None:
        super().__init__(str(meant))
        self.meant = meant


def _ok(reply: Mapping[str, Any], path: bytes) -> dict[str, Any]:
    """The object under "ok". Raises _Answered with the error that the reply is, Failed when it is neither."""
    found, error = reply.get("ok"), reply.get("error")
    if isinstance(found, dict):
        return found
    if not isinstance(error, dict):
        raise _nonsense()
    code, text = str(error.get("code", ""))[:40], str(error.get("text", ""))[:500]
    kind, words = _ERRORS.get(code, (Failed, "failed"))
    message = f"{shown(path)}: {words} ({text})" if text else f"{shown(path)}: {words}"
    raise _Answered(kind(message, remedy=_REMEDIES.get(code, ""), reason=code))


def _info(entry: Any) -> FileInfo:
    if not isinstance(entry, dict):
        raise _nonsense()
    target = entry.get("target_b64")
    return FileInfo(
        name=_unpacked(entry.get("name_b64")),
        kind=_kind(entry.get("kind")),
        size=_whole(entry.get("size")),
        mode=_whole(entry.get("mode")),
        mtime_ns=_whole(entry.get("mtime_ns"), signed=True),
        target=None if target is None else _unpacked(target),
    )


def _kind(value: object) -> Literal["file", "directory", "symlink", "other"]:
    match value:
        case "file" | "directory" | "symlink" | "other":
            return value
    raise _nonsense()


def _whole(value: object, *, signed: bool = False) -> int:
    if type(value) is not int or not (-(1 << 63) if signed else 0) <= value < 1 << 63:
        raise _nonsense()
    return value


def _packed(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode("ascii")


def _unpacked(value: object) -> bytes:
    if not isinstance(value, str):
        raise _nonsense()
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise _nonsense() from error


def _nonsense() -> Failed:
    return Failed("the files helper broke its wire", remedy="try again; report it when it happens twice")


def _lost() -> Unavailable:
    return Unavailable("the box's files helper has ended or does not answer", remedy="try again")
