"""A command in a box over a WebSocket: stdin, stdout, stderr, signals and its outcome, with back-pressure both ways.

Frames are described in the server's API. Imports nothing that a command's start does not need: no HTTP library.
"""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from ringfence.client.address import Address, unreachable
from ringfence.client.errors import ApiError, Failed, Unavailable, from_answer
from ringfence.client.once import lost

CHUNK = 64 << 10
ENDED_LIMIT = 8 << 20  # the outcome with two kept streams of 256 KiB, each byte escaped as six: 3 MiB, and room
QUEUED = 16  # output frames that wait for the reader; then the socket is not read, and the command waits
CLOSE_SECONDS = 3.0
Word = str | bytes


def request(
    argv: Sequence[Word],
    env: Mapping[str, Word],
    cwd: str | None,
    timeout: float | None,
    stdin: Literal["null", "pipe"],
    output: Literal["stream", "keep"],
) -> str:
    """The first frame. Text that holds surrogate escapes is what the bytes were."""
    return json.dumps(
        {
            "argv_b64": [_b64(word) for word in argv],
            "env_b64": {name: _b64(value) for name, value in env.items()},
            "cwd": cwd,
            "timeout": timeout,
            "stdin": stdin,
            "output": output,
        }
    )


def _b64(word: Word) -> str:
    return b64encode(os.fsencode(word)).decode("ascii")


class Running:
    """A command that has started. One reader of `output`, one writer."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._output: asyncio.Queue[tuple[Literal[1, 2], bytes] | None] = asyncio.Queue(QUEUED)
        self._credit = 0
        self._changed = asyncio.Event()  # credit or end
        self._started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """In the box."""
        return self._started.result()

    @property
    def ended(self) -> bool:
        """Its outcome, or why there is none, has arrived."""
        return self._ended.done()

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        """Chunks, each of stdout (1) or stderr (2), until both have ended. Read slowly and the command waits."""
        while (chunk := await self._output.get()) is not None:
            yield chunk

    async def write(self, data: bytes) -> None:
        """To stdin, as fast as the command takes it; nothing once it has ended."""
        view = memoryview(data)
        while view and not self._ended.done():
            if self._credit == 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            part = view[: min(CHUNK, self._credit)]
            self._credit -= len(part)
            await self._send(b"\0" + part)
            view = view[len(part) :]

    async def close_stdin(self) -> None:
        await self._send(b"\0")

    async def signal(self, number: int) -> None:
        await self._send(json.dumps({"signal": number}))

    async def outcome(self) -> dict[str, Any]:
        """The object of `exec --json`. With output streamed, read `output` to its end first. ApiError: the server
        failed, or the connection was lost (code `connection_lost`)."""
        return await asyncio.shield(self._ended)

    async def _send(self, frame: str | bytes) -> None:
        try:
            await self._socket.send(frame)
        except ConnectionClosed:
            return  # _receive sees the same and says what it means

    async def started(self) -> None:
        await asyncio.shield(self._started)

    async def receive(self) -> None:
        """Reads the socket until the command's end. Run beside whatever uses this object."""
        try:
            async for frame in self._socket:
                if isinstance(frame, bytes):
                    await self._output.put((2 if frame[0] == 2 else 1, frame[1:]))
                else:
                    self._note(json.loads(frame))
            self._fail(lost())
        except (ConnectionClosed, ValueError):
            self._fail(lost())
        finally:
            self._changed.set()
        await self._output.put(None)  # not when it was cancelled: nobody reads then, and the queue may be full for ever

    def _note(self, frame: dict[str, Any]) -> None:
        if "stdin" in frame:
            self._credit += int(frame["stdin"])
        elif "started" in frame:
            self._started.set_result(int(frame["started"]["pid"]))
        elif "ended" in frame and not self._ended.done():
            self._ended.set_result(frame["ended"])
        elif "error" in frame:
            self._fail(from_answer(frame))
        self._changed.set()

    def _fail(self, error: ApiError) -> None:
        for future in (self._started, self._ended):
            if not future.done():
                future.set_exception(error)
                future.exception()  # looked at: nobody may be waiting for it


@asynccontextmanager
async def running(address: Address, path: str, headers: dict[str, str], first: str) -> AsyncIterator[Running]:
    """Starts the command. Leaving early stops it: TERM, 2 s, KILL."""
    socket = await _connect(address, path, headers)
    try:
        command = Running(socket)
        receiving = asyncio.create_task(command.receive())
        try:
            await socket.send(first)
            await command.started()
            yield command
        finally:
            receiving.cancel()
            await asyncio.wait({receiving})
            if not command.ended:
                socket.transport.abort()  # whoever leaves early does not wait for a farewell behind unread output
    finally:
        await socket.close()


async def _connect(address: Address, path: str, headers: dict[str, str]) -> ClientConnection:
    by_socket: dict[str, Any] = {} if address.url else {"unix": True, "path": address.socket}
    try:
        return await connect(
            "ws" + address.base.removeprefix("http") + path,
            additional_headers=headers,
            compression=None,
            proxy=None,
            ping_interval=None,  # a reader that pauses is alive all the same
            close_timeout=CLOSE_SECONDS,
            max_size=ENDED_LIMIT,
            max_queue=QUEUED,
            **by_socket,
        )
    except InvalidStatus as error:
        raise _denied(error) from None
    except InvalidURI as error:
        raise Unavailable("unavailable", f"{address} is no address", "check RINGFENCE_URL") from error
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise unreachable(address, str(error)) from error


def _denied(error: InvalidStatus) -> ApiError:
    try:
        return from_answer(json.loads(error.response.body or b""), error.response.status_code)
    except ValueError:
        return Failed("failed", f"the server refused the command: HTTP {error.response.status_code}")
