"""A provider on loopback: records what arrives, byte by byte, and answers what a test wants, piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Arrived:
    method: str
    target: str
    headers: dict[str, str]  # in lower case
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        found = json.loads(self.raw)
        assert isinstance(found, dict)
        return found


@dataclass
class Answer:
    """`hang`: after the last piece, for ever. `drop`: the connection ends there, without the end of the body."""

    pieces: Sequence[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    delay: float = 0.0
    hang: bool = False
    drop: bool = False


def as_json(value: object, status: int = 200, **headers: str) -> Answer:
    return Answer([json.dumps(value).encode()], status, {"content-type": "application/json", **headers})


@dataclass
class Provider:
    port: int = 0
    arrived: list[Arrived] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # one for each request; the last one again and again
    left: list[float] = field(default_factory=list)  # when somebody left during an answer, by the loop's clock
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        self.arrived.append(Arrived(method, target, headers, raw))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await self._answer(answer, reader, writer)

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {value}" for name, value in answer.headers.items())]
        writer.write("\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode())
        gone = asyncio.ensure_future(reader.read(1))
        try:
            for piece in answer.pieces:
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
                if await _within(gone, answer.delay):
                    return self._noted()
            if answer.hang:
                await gone
                return self._noted()
            if answer.drop:
                return False
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            gone.cancel()
            await asyncio.wait([gone])  # else it would still be reading when the next request is
        return True

    def _noted(self) -> bool:
        self.left.append(asyncio.get_running_loop().time())
        return False


async def _within(gone: asyncio.Future[bytes], seconds: float) -> bool:
    done, _ = await asyncio.wait([gone], timeout=seconds)
    return bool(done)


@asynccontextmanager
async def a_provider(*answers: Answer) -> AsyncIterator[Provider]:
    provider = Provider(answers=list(answers))
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()


# --- what the two providers say --------------------------------------------------------------------------------------


def event(value: object, name: str = "") -> bytes:
    data = value if isinstance(value, str) else json.dumps(value)
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


def chat(*words: str, usage: bool = True, finish: str = "stop") -> list[bytes]:
    """A stream of chat completions, with the event of use at its end."""
    whole = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "real-1"}

    def choice(delta: dict[str, Any], end: str | None = None) -> dict[str, Any]:
        return {**whole, "choices": [{"index": 0, "delta": delta, "finish_reason": end}]}

    pieces = [event(choice({"role": "assistant", "content": ""}))]
    pieces += [event(choice({"content": word})) for word in words]
    pieces.append(event(choice({}, finish)))
    if usage:
        spent = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
        pieces.append(
            event({**whole, "choices": [], "usage": {**spent, "prompt_tokens_details": {"cached_tokens": 40}}})
        )
    return [*pieces, event("[DONE]")]


def messages(*words: str, output: int = 7) -> list[bytes]:
    """A stream of Anthropic's messages."""
    start: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "real-1",
        "content": [],
        "stop_reason": None,
    }
    start |= {"stop_sequence": None, "usage": {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 1}}
    pieces = [event({"type": "message_start", "message": start}, "message_start")]
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    pieces.append(event(block, "content_block_start"))
    for word in words:
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        pieces.append(event(delta, "content_block_delta"))
    pieces.append(event({"type": "content_block_stop", "index": 0}, "content_block_stop"))
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    pieces.append(event({**end, "usage": {"output_tokens": output}}, "message_delta"))
    return [*pieces, event({"type": "message_stop"}, "message_stop")]


def responses(*words: str) -> list[bytes]:
    """A stream of OpenAI's responses."""
    whole: dict[str, Any] = {"id": "r1", "object": "response", "created_at": 1, "model": "real-1", "output": []}
    whole |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress"}
    pieces = [event({"type": "response.created", "response": whole, "sequence_number": 0}, "response.created")]
    for number, word in enumerate(words, 1):
        delta: dict[str, Any] = {
            "type": "response.output_text.delta",
            "item_id": "i",
            "output_index": 0,
            "content_index": 0,
        }
        pieces.append(event({**delta, "delta": word, "logprobs": [], "sequence_number": number}, delta["type"]))
    text = {"type": "output_text", "text": "".join(words), "annotations": []}
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [text]}
    used: dict[str, Any] = {"input_tokens": 100, "output_tokens": 7, "total_tokens": 107}
    used |= {"input_tokens_details": {"cached_tokens": 40}, "output_tokens_details": {"reasoning_tokens": 0}}
    done = {**whole, "status": "completed", "output": [item], "usage": used}
    last = {"type": "response.completed", "response": done, "sequence_number": len(words) + 1}
    return [*pieces, event(last, "response.completed")]
