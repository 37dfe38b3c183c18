"""HTTP/1 messages as they are on the wire, read by a reader of our own that is neither side's. It is given good framing or says so."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field

Fields = tuple[tuple[bytes, bytes], ...]
"""(name in lower case, value without white space around it), in the order of the wire."""


@dataclass(frozen=True)
class Message:
    """`first`: its first line. `trailers` of a chunked one. `whole`: it did not end before its framing says."""

    first: bytes
    fields: Fields
    body: bytes = b""
    trailers: Fields = ()
    whole: bool = True

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]

    @property
    def status(self) -> int:
        """0: its first line has none."""
        found = re.match(rb"HTTP/1\.[01] ([0-9]{3})(?: |$)", self.first)
        return int(found.group(1)) if found is not None else 0

    @property
    def says_close(self) -> bool:
        return any(b"close" in value.lower() for value in self.values(b"connection"))


@dataclass
class Got:
    """What a client was answered: `interim` statuses before each, `frames` behind a 101. `silent`: it waited in vain."""

    answers: list[Message] = field(default_factory=list)
    interim: list[tuple[int, ...]] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    silent: bool = False


async def head(reader: asyncio.StreamReader) -> Message | None:
    """None: the end came first."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, OSError):
        return None
    first, *lines = raw[:-4].split(b"\r\n")
    return Message(first, _fields(lines))


def _fields(lines: list[bytes]) -> Fields:
    pairs = (line.partition(b":") for line in lines)
    return tuple((name.lower(), value.strip(b" \t")) for name, _, value in pairs)


async def body(reader: asyncio.StreamReader, of: Message, *, to_the_end: bool) -> Message:
    """`to_the_end`: it goes on to the end of the connection if nothing else is said."""
    if of.values(b"transfer-encoding"):
        return await _chunked(reader, of)
    lengths = of.values(b"content-length")
    try:
        if lengths:
            return Message(of.first, of.fields, await reader.readexactly(int(lengths[0])))
        return Message(of.first, of.fields, await reader.read(-1) if to_the_end else b"")
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return Message(of.first, of.fields, whole=False)


async def _chunked(reader: asyncio.StreamReader, of: Message) -> Message:
    pieces = []
    try:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        lines = []
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            lines.append(line[:-2])
    except (asyncio.IncompleteReadError, OSError, ValueError):
        return Message(of.first, of.fields, b"".join(pieces), whole=False)
    return Message(of.first, of.fields, b"".join(pieces), _fields(lines))


# --- frames of WebSockets: RFC 6455 section 5.2, short ones ------------------------------------------------------------

TEXT, CLOSE = 1, 8


def frame(kind: int, payload: bytes, mask: bytes = b"") -> bytes:
    masked = bytes(each ^ mask[at % 4] for at, each in enumerate(payload)) if mask else payload
    return bytes([0x80 | kind, (0x80 if mask else 0) | len(payload)]) + mask + masked


async def next_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """asyncio.IncompleteReadError: the end."""
    kind, size = await reader.readexactly(2)
    mask = await reader.readexactly(4) if size & 0x80 else bytes(4)
    payload = await reader.readexactly(size & 0x7F)
    return kind & 0xF, bytes(each ^ mask[at % 4] for at, each in enumerate(payload))
