"""What a turn may see of its thread, in pages: messages and replies, never a step of anybody.

A turn sees what was said before its own message, and the replies to that whenever they came. Messages that were posted
after it wait for their own turns and are not part of it; what its author said to it meanwhile are its steers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from ringfence.host.kernel.ids import ThreadId, TurnId
from ringfence.host.kernel.ports import Store
from ringfence.host.kernel.reads import Tail
from ringfence.host.kernel.threads import Message

TAIL_BYTES = 256 * 1024  # of text, UTF-8 (architecture.md section 6)
FRAME_BYTES = 1 << 20  # of one frame on the wire, in ASCII JSON
OVERHEAD = 16 * 1024  # names, ids and the envelope
# Of one message to a loop. 256 KiB of text are at most 768 KiB as ASCII JSON, but for control characters (six bytes each).
STEER_BYTES = 900 * 1024
_WORST = 12  # bytes of ASCII JSON that one character may take: two escapes of six
_CUT = "\n[... cut: this message does not fit into what an agent loop can be given ...]"
_LEAST = 75  # bytes of a frame that a message takes beside its text, with the shortest author and cursor and no file

MOST_MESSAGES = FRAME_BYTES // _LEAST + 1  # more than these never fit


def ascii_bytes(text: str) -> int:
    """Length of the text as it travels: ASCII JSON."""
    return len(json.dumps(text))


def spoken(message: Message) -> dict[str, Any]:
    """Fields of wire.messages.ThreadMessage."""
    return {
        "role": "agent" if message.author is None else "user",
        "author": message.author_name,
        "text": message.text,
        "cursor": message.cursor,
        "attachments": [{"path": one.path, "size": one.size} for one in message.attachments],
    }


def frame_bytes(item: dict[str, Any]) -> int:
    """Of the item in a list, as it travels."""
    return len(json.dumps(item)) + 2


def cut(message: Message, room: int) -> Message:
    """The message, or as much of its text as fits into `room` bytes of a frame in any case."""
    size = frame_bytes(spoken(message))
    if size <= room:
        return message
    left = room - (size - ascii_bytes(message.text)) - len(_CUT)
    return replace(message, text=message.text[: max(0, left) // _WORST] + _CUT)


def steer(message: Message) -> dict[str, Any]:
    """What an actor said to a turn under way. Cut alike wherever it is sent, so that a replay sees the same words."""
    return spoken(cut(message, STEER_BYTES))


def first(messages: Sequence[Message], room: int) -> list[dict[str, Any]]:
    """As many steers from the oldest on as fit into `room`: the rest is given out when the loop comes to its end."""
    chosen: list[dict[str, Any]] = []
    for message in messages:
        item = steer(message)
        room -= frame_bytes(item)
        if room < 0:
            break
        chosen.append(item)
    return chosen


def newest(messages: Sequence[Message], text_left: int, room: int) -> list[dict[str, Any]]:
    """The newest of `messages` within both bounds, oldest first."""
    items = [spoken(message) for message in messages]
    if (
        sum(map(_size, messages)) <= text_left and len(json.dumps(items)) <= room
    ):  # nearly always, at a third of the time
        return items
    chosen: list[dict[str, Any]] = []
    for message, item in zip(reversed(messages), reversed(items), strict=True):
        text_left -= _size(message)
        room -= frame_bytes(item)
        if text_left < 0 or room < 0:
            break
        chosen.append(item)
    return list(reversed(chosen))


def visible(messages: Sequence[Message], own: Message, earlier: Collection[TurnId]) -> list[Message]:
    """Those that belong before the turn's own message; `earlier`: turns that began before it."""
    return [m for m in messages if m.turn != own.turn and (m.cursor < own.cursor or m.turn in earlier)]


def _size(message: Message) -> int:
    return len(message.text.encode("utf-8", "surrogatepass"))


class History:
    """Of one turn, whose own message is given."""

    def __init__(self, store: Store, thread: ThreadId, own: Message, tail: Tail | None = None) -> None:
        """`tail`: what was read of the thread already, with at least as many messages as anybody wants first."""
        self._store, self._thread, self._own, self._tail = store, thread, own, tail
        self._began: dict[TurnId, bool] = {}  # before ours

    async def newest(
        self, before: int | None, after: int, limit: int | None, text: int, room: int
    ) -> tuple[list[Message], bool]:
        """(oldest first, whether there are older ones behind `after`). At least as many of the newest between the
        cursors as fill `limit` or one of the bounds, if there are that many."""
        found: list[Message] = []
        more = True
        while more and text >= 0 and room >= 0 and (limit is None or len(found) < limit):
            most = room // _LEAST + 1  # more than that never fit
            wanted = most if limit is None else min(most, limit - len(found))
            page, more = await self._page(before, after, wanted, text)
            before = page[0].cursor if page else before
            seen = visible(page, self._own, await self._earlier(page))
            text -= sum(_size(message) for message in seen)
            room -= sum(_LEAST + len(message.text) for message in seen)  # at the least: what fits is chosen later
            found = [*seen, *found]
        if limit is not None and len(found) > limit:
            return found[-limit:], True
        return found, more

    async def _page(self, before: int | None, after: int, limit: int, size: int) -> tuple[Sequence[Message], bool]:
        if before is None and self._tail is not None and self._tail.after == after:
            return self._tail.messages, self._tail.more
        return await self._store.reads.tail(self._thread, before, after, limit, size)

    async def _earlier(self, messages: Sequence[Message]) -> set[TurnId]:
        """Of the turns that spoke behind our own message, those that began before it."""
        late = {m.turn for m in messages if m.cursor > self._own.cursor and m.turn != self._own.turn}
        for turn in late - self._began.keys():
            said = await self._store.turns.said(turn)
            self._began[turn] = bool(said) and said[0].cursor < self._own.cursor
        return {turn for turn in late if self._began[turn]}


async def page_of(history: History, before: int, limit: int) -> dict[str, Any]:
    """Fields of wire.messages.ThreadPage: at least one message, if there is one."""
    room = FRAME_BYTES - OVERHEAD
    if before <= 0:
        return {"messages": [], "more": False}
    found, more = await history.newest(before, 0, limit, TAIL_BYTES, room)
    chosen = newest(found, TAIL_BYTES, room) or [spoken(cut(m, room)) for m in found[-1:]]
    return {"messages": chosen, "more": more or len(chosen) < len(found)}
