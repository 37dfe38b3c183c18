"""A client of a proxy: says a conversation on one connection, and keeps what it is answered. Never raises for what it is told."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import replace

from tests.soak.conversations import HOST, Conversation, Said
from tests.soak.messages import CLOSE, TEXT, Got, Message, body, frame, head, next_frame

_PATIENCE = 30.0
_FOR_BROKEN = (
    3.0  # one that promises more than it sends is waited for by both, and rightly; a hostile one only by theirs
)
_MASK = b"mask"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def converse(talk: Conversation, port: int, trust: ssl.SSLContext, *, elaborate: bool) -> Got:
    """`port`: of the proxy, or of its transparent side. `elaborate`: with trailers. ConnectionError: no tunnel."""
    if not elaborate:
        talk = replace(talk, said=tuple(replace(each, trailer=b"") for each in talk.said))
    got, last = Got(), talk.said[-1].refused
    reader, writer = await _opened(talk, port, trust)
    try:
        async with asyncio.timeout(_FOR_BROKEN if last < 0 or (last > 0 and not elaborate) else _PATIENCE):
            await _said(talk, reader, writer, got)
    except TimeoutError:
        got.silent = True
    except OSError:
        pass
    finally:
        writer.transport.abort()
    return got


async def _opened(talk: Conversation, port: int, trust: ssl.SSLContext) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    if talk.way == "tunnel":
        writer.write(b"CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n" % (HOST, HOST))
        answered = await head(reader)
        if answered is None or answered.status != 200:
            raise ConnectionError(f"no tunnel: {answered}")
    if talk.way != "plain":
        await writer.start_tls(trust, server_hostname=HOST.decode())
    return reader, writer


async def _said(talk: Conversation, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, got: Got) -> None:
    if talk.together:
        writer.write(b"".join(each.raw + each.sent for each in talk.said))
    for each in talk.said:
        if not talk.together:
            writer.write(each.raw + (b"" if each.waits else each.sent))
        if not await _answered(each, reader, writer, got):
            return


async def _answered(each: Said, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, got: Got) -> bool:
    """Whether another request may follow."""
    interim: list[int] = []
    sent = not each.waits
    while (answer := await head(reader)) is not None and 100 <= answer.status < 200 and answer.status != 101:
        interim.append(answer.status)
        if not sent:
            writer.write(each.sent)
            sent = True
    if answer is None:
        return False
    if answer.status == 101:
        got.answers.append(answer)
        got.interim.append(tuple(interim))
        await _frames(each, reader, writer, got)
        return False
    bodyless = each.method == b"HEAD" or answer.status in (204, 304)
    whole = answer if bodyless else await body(reader, answer, to_the_end=True)
    got.answers.append(whole)
    got.interim.append(tuple(interim))
    return sent and whole.whole and not whole.says_close and (bodyless or _framed(whole))


def _framed(answer: Message) -> bool:
    return bool(answer.values(b"content-length") or answer.values(b"transfer-encoding"))


async def _frames(each: Said, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, got: Got) -> None:
    writer.write(b"".join(frame(TEXT, payload, _MASK) for payload in each.frames))
    with suppress(asyncio.IncompleteReadError):
        for _ in each.frames:
            got.frames.append((await next_frame(reader))[1])
        writer.write(frame(CLOSE, b"\x03\xe8", _MASK))  # 1000: RFC 6455 section 7.4.1
        while (await next_frame(reader))[0] != CLOSE:
            pass
