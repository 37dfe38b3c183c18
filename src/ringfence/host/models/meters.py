"""What an answer says of its use, in each of the three spellings; and how much of it there was when it says nothing.
Pure.

A provider's word is taken as it is, but for what is no number. Must never raise for an answer that is not as it
should be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ringfence.host.kernel.models.usage import Usage, counted

# Bytes of a text that are a token. Few, to count what nobody says: a token of English has 4, one of Chinese 3. Many, to
# cut off a stream that goes beyond its limit: no text has more (a token may be a whole indentation), so whoever keeps
# to the limit is never cut.
FEW_BYTES = 3
MANY_BYTES = 8


class Meter:
    """Takes an answer's events, or the one object that it is. `text`: bytes of what the model wrote, as far as it
    shows."""

    def __init__(self, usage: Callable[[Mapping[str, Any]], Usage | None], text: Callable[[Mapping[str, Any]], int]):
        self._usage, self._text = usage, text
        self.usage: Usage | None = None
        self.text, self.thought = 0, False
        self._last = False  # the word on its use is of all that was written

    def take(self, said: Mapping[str, Any]) -> None:
        found = self._usage(said)
        written, item = self._text(said), said.get("item")
        if found is not None:
            self.usage = found if self.usage is None else _later(self.usage, found)
            self._last = bool(found.output) and said.get("type") != "message_start"
        elif written:
            self._last = False
        self.text += written
        self.thought = self.thought or (isinstance(item, Mapping) and item.get("type") == "reasoning")

    @property
    def least(self) -> int:
        """Tokens of output that were there for certain."""
        said = self.usage.output if self.usage is not None else 0
        return max(said, self.text // MANY_BYTES)

    def used(self, asked: int, most: int, *, whole: bool, unseen: int = 0) -> Usage:
        """What is counted. `asked`: tokens that were read at most; without the provider's word a third of them, since
        they are bytes mostly, and what was written, of output `most` at most. `whole`: the answer came to its end.
        `unseen`: tokens that may have been written besides and do not show."""
        written = min(-(-self.text // FEW_BYTES) + unseen, most)
        if self.usage is None:
            return Usage(input=-(-asked // FEW_BYTES), output=written)
        if self._last or (whole and self.usage.output):
            return self.usage
        return replace(self.usage, output=max(self.usage.output, written))


def _later(one: Usage, other: Usage) -> Usage:
    """Of a stream the later word stands, where it says anything."""
    return Usage(
        other.input or one.input,
        other.output or one.output,
        other.cache_read or one.cache_read,
        other.cache_write or one.cache_write,
    )


def chat_meter() -> Meter:
    return Meter(lambda said: openai_usage(said.get("usage")), _chat_text)


def responses_meter() -> Meter:
    return Meter(_responses_usage, _responses_text)


def messages_meter() -> Meter:
    return Meter(_messages_usage, _messages_text)


def openai_usage(said: object) -> Usage | None:
    """Of chat completions and of responses. What came from the cache is among the input there."""
    if not isinstance(said, Mapping):
        return None
    details = said.get("prompt_tokens_details") or said.get("input_tokens_details")
    cached = counted(details, "cached_tokens") if isinstance(details, Mapping) else 0
    taken = counted(said, "prompt_tokens", "input_tokens")
    cached = min(cached, taken)
    return Usage(input=taken - cached, output=counted(said, "completion_tokens", "output_tokens"), cache_read=cached)


def _anthropic_usage(said: object) -> Usage | None:
    if not isinstance(said, Mapping):
        return None
    return Usage(
        input=counted(said, "input_tokens"),
        output=counted(said, "output_tokens"),
        cache_read=counted(said, "cache_read_input_tokens"),
        cache_write=counted(said, "cache_creation_input_tokens"),
    )


def _responses_usage(said: Mapping[str, Any]) -> Usage | None:
    inner = said.get("response")
    return openai_usage(inner.get("usage") if isinstance(inner, Mapping) else said.get("usage"))


def _messages_usage(said: Mapping[str, Any]) -> Usage | None:
    inner = said.get("message")
    return _anthropic_usage(inner.get("usage") if isinstance(inner, Mapping) else said.get("usage"))


# --- text ------------------------------------------------------------------------------------------------------------


def _long(*values: object) -> int:
    return sum(len(value.encode("utf-8", "replace")) for value in values if isinstance(value, str))


def _maps(value: object) -> Iterable[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _chat_text(said: Mapping[str, Any]) -> int:
    total = 0
    for choice in _maps(said.get("choices")):
        part = choice.get("delta") or choice.get("message")
        if isinstance(part, Mapping):
            total += _long(part.get("content"), part.get("reasoning_content"), part.get("refusal"))
            calls = [call.get("function") for call in _maps(part.get("tool_calls"))]
            total += sum(_long(each.get("name"), each.get("arguments")) for each in calls if isinstance(each, Mapping))
    return total


def _responses_text(said: Mapping[str, Any]) -> int:
    if "type" in said and "delta" in said:
        return _long(said.get("delta"))
    total = 0
    for item in _maps(said.get("output")):
        total += _long(item.get("arguments")) + sum(_long(part.get("text")) for part in _maps(item.get("content")))
    return total


def _messages_text(said: Mapping[str, Any]) -> int:
    delta = said.get("delta")
    if isinstance(delta, Mapping):
        return _long(delta.get("text"), delta.get("partial_json"), delta.get("thinking"))
    return sum(_long(block.get("text"), block.get("thinking")) for block in _maps(said.get("content")))
