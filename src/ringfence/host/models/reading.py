"""What the three spellings of an answer have in common: pieces go in, text comes out, and at the end a reply. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from ringfence.host.kernel.errors import Failed, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.ports import ModelReply

Stop = Literal["end", "tool_calls", "length"]
MAX_REPLY = 4 << 20  # characters of text and arguments together: the journal takes 256 KiB, a frame 1 MiB
FILTERED = "the provider's own rules stopped the answer"


class Reading(Protocol):
    """Of one answer."""

    @property
    def ended(self) -> bool:
        """The provider said that this was all."""

    def take(self, said: Mapping[str, Any]) -> str:
        """The piece of text in an event. Unavailable, Refused, Failed: the event is an error."""

    def reply(self) -> ModelReply:
        """Once it has ended; without usage. Refused: the provider stopped it."""


class Text:
    """What was said so far, in pieces. Failed: it is more than anybody could use."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._long = 0

    def add(self, piece: object) -> str:
        """The piece itself; "" for what is no text."""
        if not isinstance(piece, str) or not piece:
            return ""
        self._long += len(piece)
        if self._long > MAX_REPLY:
            raise Failed(f"the model's answer has more than {MAX_REPLY} characters")
        self._pieces.append(piece)
        return piece

    @property
    def whole(self) -> str:
        return "".join(self._pieces)


def error_in(said: object, words: str) -> RingfenceError:
    """Of an error object inside a stream. `words`: the provider's, without any secret."""
    kind = str(said.get("type") or said.get("code") or "") if isinstance(said, Mapping) else ""
    if any(sign in kind for sign in ("overloaded", "rate_limit", "server_error", "api_error", "timeout")):
        return Unavailable(f"the provider broke off: {words}")
    if any(sign in kind for sign in ("permission", "authentication", "content_filter", "policy")):
        return Refused(f"the provider refused: {words}")
    return Failed(f"the provider broke off: {words}")


def words_of(said: object) -> str:
    """A provider's message, short and on one line."""
    found = said.get("message") if isinstance(said, Mapping) else said
    text = " ".join(str(found if isinstance(found, str) else "no message").split())
    return "".join(one if one.isprintable() else "?" for one in text)[:500]
