"""The files wire as the helper speaks it: frames, chunks, errors. The sizes are those of protocol.py.

    request   {"op", "path_b64", ...}
    stat, list, remove, usage      {"ok": {...}} or {"error": {"code", "text"}}
    get       the same, then chunks until length 0; or, in their place, FILES_ABORT and an error frame
    put       {"ready": {}} or an error; then the peer's chunks until length 0, or FILES_ABORT and a frame that says why;
              then one {"ok"} or error. An error that comes before the peer's end is that one: the rest is discarded

It must never send before it has decided, and never keep more than one chunk in memory. Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

from ringfence.spawner.protocol import FILES_ABORT, FILES_CHUNK, FILES_FRAME

LENGTH = struct.Struct(">I")
# A peer that moves no byte for this long is gone; a slow one only has to move some.
PROGRESS_SECONDS = 60.0

# What an errno means to whoever asked. The rest is `failed`.
CODES: dict[int, str] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EXDEV: "refused",  # leads out of the tree
    errno.ELOOP: "refused",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
    errno.ENXIO: "refused",  # a socket
    errno.EROFS: "read_only",
    errno.EBUSY: "refused",
    errno.ENAMETOOLONG: "refused",
    errno.EINVAL: "refused",
    errno.EISDIR: "is_directory",
    errno.ENOTEMPTY: "not_empty",
    errno.EEXIST: "exists",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EFBIG: "too_large",
}


class FilesError(Exception):
    """One request failed; the connection goes on."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Answered(Exception):
    """One request failed, and its answer has been sent."""


class Broken(Exception):
    """The peer broke the wire, or is gone: the helper ends."""


def error_of(error: OSError) -> FilesError:
    code = CODES.get(error.errno or 0, "failed")
    reason = {errno.EXDEV: "leads out of the box", errno.ELOOP: "a link that leads nowhere"}.get(error.errno or 0)
    return FilesError(code, reason or error.strerror or str(error))


class Wire:
    """The helper's end of a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray(FILES_CHUNK)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def request(self, idle: float) -> dict[str, Any] | None:
        """The next request; None after `idle` seconds without one, or at the peer's end. Raises Broken."""
        self._sock.settimeout(idle)
        try:
            first = self._sock.recv(1)
        except (TimeoutError, ConnectionError):
            return None
        if not first:
            return None
        self._sock.settimeout(PROGRESS_SECONDS)
        (length,) = LENGTH.unpack(first + bytes(self._exactly(LENGTH.size - 1)))
        return self._object(length)

    def answer(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self._send(LENGTH.pack(len(data)) + data)

    def answer_error(self, error: FilesError) -> None:
        self.answer({"error": {"code": error.code, "text": error.text}})

    def chunk(self, data: bytes | memoryview) -> None:
        self._send(LENGTH.pack(len(data)))
        self._send(data)

    def end(self) -> None:
        self._send(LENGTH.pack(0))

    def abort(self, error: FilesError) -> None:
        self._send(LENGTH.pack(FILES_ABORT))
        self.answer_error(error)

    def chunks(self) -> Iterator[memoryview]:
        """The peer's chunks; each is valid until the next is asked for. FilesError `aborted`: the peer gave up."""
        while True:
            (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
            if length == 0:
                return
            if length == FILES_ABORT:
                (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
                self._object(length)
                raise FilesError("aborted", "the sender gave up")
            if length > FILES_CHUNK:
                raise Broken(f"a chunk of {length} bytes; the limit is {FILES_CHUNK}")
            yield self._exactly(length)

    def gone(self) -> bool:
        """Whether the peer has closed its end, without waiting or taking a byte."""
        # A socket with a time-out waits for it even under MSG_DONTWAIT, so ask whether there is something to see first.
        if not self._poll.poll(0):
            return False
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _object(self, length: int) -> dict[str, Any]:
        if length > FILES_FRAME:
            raise Broken(f"a frame of {length} bytes; the limit is {FILES_FRAME}")
        data = bytearray()
        while len(data) < length:
            data += self._exactly(min(length - len(data), FILES_CHUNK))
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Broken("a frame that is not JSON") from error
        if not isinstance(value, dict):
            raise Broken("a frame that is not an object")
        return value

    def _exactly(self, length: int) -> memoryview:
        view = memoryview(self._buffer)[:length]
        have = 0
        while have < length:
            try:
                count = self._sock.recv_into(view[have:])
            except OSError as error:
                raise Broken("the peer is gone or stalls") from error
            if not count:
                raise Broken("the peer ended in mid-frame")
            have += count
        return view

    def _send(self, data: bytes | memoryview) -> None:
        # sendall's time-out is for the whole of the data: at most one chunk or frame, so it is one of progress.
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise Broken("the peer is gone or stalls") from error


def unpack_bytes(request: dict[str, Any], name: str) -> bytes:
    """The bytes of a base64 field. Raises Broken."""
    value = request.get(name)
    if not isinstance(value, str):
        raise Broken(f"{name} is missing")
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise Broken(f"{name} is not base64") from error


def pack_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")
