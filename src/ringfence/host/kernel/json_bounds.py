"""How much a JSON text would make of itself, found before anything parses it. Pure.

A text of 1 MiB may say 340,000 empty lists, which take a parser 0.7 s and 30 times their length; one of 31 MiB makes
600 MB, in a C call that nothing interrupts. So what a box sends is counted first, in memory that does not depend on the
text. It must never count less than a parser would make of the text, whatever the text is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_CHUNK = 64 * 1024  # pieces of one chunk are in memory at once: at most 64 Ki of them


@dataclass(frozen=True, slots=True)
class JsonBounds:
    containers: int  # lists and objects
    elements: int  # members of all lists and objects together, and the containers once more


# A frame has at most 10,000 keys and 1 MiB: an honest one has lines of text in it, not numbers. All that is done with one
# of 50,000 values takes 30 ms.
FRAME = JsonBounds(20_000, 50_000)
# A loop takes up at most 64 pages of 200 messages and a tail of 13,000 (guest/history.py): 26,000 messages of two
# containers and four members each, and some thousand steps of its own.
CONVERSATION = JsonBounds(60_000, 300_000)


def beyond(data: bytes, bounds: JsonBounds) -> str:
    """What is too much in it, in words; "" when it is within the bounds. Linear, 64 KiB a step: on a thread others get
    their turn. Text that is no JSON is judged as far as a parser would come with it."""
    least = min(bounds.containers, bounds.elements)
    if len(data) <= least or _raw(data) <= least:  # the text in its strings counted as well
        return ""
    containers = commas = 0
    for part in _outside(data):
        containers += part.count(b"[") + part.count(b"{")
        commas += part.count(b",")
        if containers > bounds.containers:
            return f"more than {bounds.containers} lists and objects"
        if containers + commas > bounds.elements:
            return f"more than {bounds.elements} values"
    return ""


def _raw(data: bytes) -> int:
    view = (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))
    return sum(part.count(b"[") + part.count(b"{") + part.count(b",") for part in view)


def _outside(data: bytes) -> Iterator[bytes]:
    """What is not within strings. A backslash outside of them is an error to every parser, so it does not matter what
    is made of the text behind one."""
    within, rest = 0, b""
    for at in range(0, len(data), _CHUNK):
        part = (rest + data[at : at + _CHUNK]).replace(b"\\\\", b"")  # from the left: each of them is an escape
        rest = part[-1:] if part.endswith(b"\\") else b""  # escapes what the next chunk begins with
        if rest:
            part = part[:-1]
        pieces = part.replace(b'\\"', b"").split(b'"')
        yield b"".join(pieces[within::2])
        within = (within + len(pieces) - 1) % 2
