"""A command over a WebSocket: stdin, stdout, stderr and signals, with back-pressure both ways.

Frames: client binary 0 + stdin data (0 alone = end of file), client text {"signal": n}; server binary 1|2 + data,
server text {"started": {"pid"}}, {"stdin": n} (n more bytes of stdin may be sent), {"ended": outcome} or
{"error": {...}} as the last.

Output is not read from the command faster than the socket takes it. Stdin has credit, so that the socket is always
read and a signal or the client's end is seen even while the command reads nothing; a client that sends without credit
is only read as fast as its command reads. A client that leaves stops the command: TERM, 2 s, KILL. So does one whose
token is revoked or expires, or whose user is removed: it is told so, and nothing else from then on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncIterator
from enum import Enum
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from ringfence.host.kernel.errors import Invalid, RingfenceError
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.ports import Command
from ringfence.host.web import shapes, shaping
from ringfence.host.web.answers import answer, internal
from ringfence.host.web.login import actor_of, engine_of, text_of
from ringfence.host.web.ports import ExecRequest, Presence
from ringfence.host.web.race import race
from ringfence.host.web.routes_exec import GRACE_SECONDS, argv_of, env_of

router = APIRouter(tags=["commands"])
WINDOW = 1 << 20  # bytes of stdin on their way; 1 MiB keeps 50 MiB/s going at 20 ms a round trip
FIRST_FRAME_SECONDS = 10.0
SERVER_STOPS = 1012  # RFC 6455 close code of our own shutdown: the box and its commands go on
NOT_UNDERSTOOD = 1003  # RFC 6455 section 7.4.1
_log = logging.getLogger("ringfence.web")


@router.websocket("/v1/tenants/{tenant}/users/{user}/exec/stream")
async def exec_stream(socket: WebSocket) -> None:
    try:
        tenant, user = (text_of(socket.path_params[each], f"the {each} in the address") for each in ("tenant", "user"))
        actor = await actor_of(socket)
    except RingfenceError as error:
        await socket.send_denial_response(answer(error))
        return
    await socket.accept()
    try:
        await _serve(socket, actor, tenant, user)
    except WebSocketDisconnect:
        return
    except RingfenceError as error:
        await _finish(socket, {"error": error.as_json()})
    except Exception:
        _log.exception("exec stream failed")
        await _finish(socket, {"error": internal().as_json()})


async def _serve(socket: WebSocket, actor: Actor, tenant: str, user: str) -> None:
    wanted = await _request(socket)
    presence = engine_of(socket).people.presence(actor)
    try:
        command = await engine_of(socket).commands.run(actor, tenant, user, wanted)
        try:
            end = await _Exchange(socket, command, wanted, presence).run()
        except Exception:  # not when the server ends: the command goes on
            await command.stop(GRACE_SECONDS)
            await command.release()
            raise
        await _last(socket, command, end, presence)
    finally:
        presence.close()


async def _last(socket: WebSocket, command: Command, end: _End, presence: Presence) -> None:
    if end is _End.SERVER_STOPS:
        return  # not released: it runs on, and nobody has its outcome
    if end is _End.WHOLE:
        await _finish(socket, {"ended": shaping.outcome(await command.outcome())})
    elif end is _End.MISUSED:
        await _finish(socket, {"error": _misuse().as_json()})
    await command.release()
    if end is _End.OVER:
        presence.check()


def _misuse() -> Invalid:
    return Invalid(
        "a frame is neither stdin nor a signal: the command was stopped",
        remedy='send binary 0 + data, or the text {"signal": 1 to 64}',
    )


async def _request(socket: WebSocket) -> ExecRequest:
    try:
        async with asyncio.timeout(FIRST_FRAME_SECONDS):
            first = await socket.receive_text()
        new = shapes.StreamCommand.model_validate_json(first)
    except TimeoutError:
        raise Invalid(f"no request within {FIRST_FRAME_SECONDS:.0f} s") from None
    except (ValidationError, KeyError) as error:
        what = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else "it is not text"
        raise Invalid(f"the first frame is no request: {what}", remedy="send {'argv': [...]} as text") from None
    return ExecRequest(
        argv=argv_of(new),
        env=env_of(new.env, new.env_b64),
        cwd=new.cwd,
        timeout=new.timeout,
        stdin=new.stdin,
        output=new.output,
    )


async def _text(socket: WebSocket, frame: dict[str, Any]) -> None:
    await socket.send_text(json.dumps(frame))


async def _finish(socket: WebSocket, frame: dict[str, Any]) -> None:
    try:
        await _text(socket, frame)
        await socket.close()
    except (WebSocketDisconnect, RuntimeError):
        return  # it left meanwhile: nobody to tell


class _Stdin:
    """Bytes between the socket and the command: bounded by WINDOW, given to the command in order."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        """Empty data = end of file. Waits while the window is full: only for clients that ignore their credit."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._size < WINDOW)
            if data and not self._ended:
                self._chunks.append(data)
                self._size += len(data)
            elif not data:
                self._ended = True
            self._changed.notify_all()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._chunks or self._ended)
                if not self._chunks:
                    return
                data = self._chunks.popleft()
                self._size -= len(data)
                self._changed.notify_all()
            yield data


class _End(Enum):
    WHOLE = "whole"  # the command has ended and its output is sent
    LEFT = "left"  # the client left; the command was stopped
    MISUSED = "misused"  # the client said what means nothing; the command was stopped
    OVER = "over"  # the actor may not speak any more; the command was stopped
    SERVER_STOPS = "server stops"  # the command goes on


class _Exchange:
    def __init__(self, socket: WebSocket, command: Command, request: ExecRequest, presence: Presence) -> None:
        self._socket = socket
        self._command = command
        self._request = request
        self._presence = presence
        self._stdin = _Stdin()

    async def run(self) -> _End:
        try:
            await _text(self._socket, {"started": {"pid": self._command.pid}})
        except WebSocketDisconnect:
            await self._command.stop(GRACE_SECONDS)
            return _End.LEFT
        talking, listening, over = await race(self._talk(), self._listen_and_feed(), self._presence.over())
        if not over.cancelled():
            await self._command.stop(GRACE_SECONDS)
            return _End.OVER
        if not talking.cancelled() and talking.result():
            return _End.WHOLE
        if not listening.cancelled() and listening.result() == SERVER_STOPS:
            return _End.SERVER_STOPS
        await self._command.stop(GRACE_SECONDS)
        misused = not listening.cancelled() and listening.result() == NOT_UNDERSTOOD
        return _End.MISUSED if misused else _End.LEFT

    async def _listen_and_feed(self) -> int:
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(self._feed())
            code = await self._listen()
            feeding.cancel()
        return code

    async def _talk(self) -> bool:
        """Output to the socket; False when the client is gone."""
        if self._request.output == "keep":
            await self._command.outcome()
            return True
        try:
            async for stream, data in self._command.output():
                await self._socket.send_bytes(b"%c%b" % (stream, data))
        except (WebSocketDisconnect, RuntimeError):
            return False
        return True

    async def _feed(self) -> None:
        if self._request.stdin == "null":
            return
        await self._grant(WINDOW)
        async for data in self._stdin.chunks():
            await self._command.write(data)
            await self._grant(len(data))
        await self._command.close_stdin()

    async def _grant(self, size: int) -> None:
        try:
            await _text(self._socket, {"stdin": size})
        except (WebSocketDisconnect, RuntimeError):
            return  # _listen sees the same end and acts on it

    async def _listen(self) -> int:
        """Until the client leaves or says what means nothing; returns the close code."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or 1005)
            if (data := message.get("bytes")) is not None:
                if data[:1] != b"\0":
                    return NOT_UNDERSTOOD
                await self._stdin.put(data[1:])
            elif (number := _signal(message.get("text") or "")) is not None:
                await self._command.signal(number)
            else:
                return NOT_UNDERSTOOD


def _signal(text: str) -> int | None:
    try:
        number = json.loads(text)["signal"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return number if type(number) is int and 1 <= number <= 64 else None
