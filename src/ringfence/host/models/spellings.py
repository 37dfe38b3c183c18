"""The three spellings of a conversation with a model, as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.models.upstreams import Api, Bound, Kind, Upstream
from ringfence.host.models import anthropic_messages, openai_chat, openai_responses
from ringfence.host.models.meters import Meter, chat_meter, messages_meter, responses_meter
from ringfence.host.models.reading import Reading
from ringfence.host.models.turns_out import ToolNames

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Spelling:
    path: str  # behind an upstream's base_url
    limits: tuple[str, ...]  # fields that bound an answer
    request: Callable[[str, Messages, Messages, ToolNames], dict[str, Any]]  # of model, messages, tools, names
    reading: Callable[[ToolNames], Reading]
    meter: Callable[[], Meter]


CHAT = Spelling(openai_chat.PATH, openai_chat.LIMITS, openai_chat.request, openai_chat.Reading, chat_meter)
RESPONSES = Spelling(
    openai_responses.PATH,
    (openai_responses.LIMIT,),
    openai_responses.request,
    openai_responses.Reading,
    responses_meter,
)
MESSAGES = Spelling(
    anthropic_messages.PATH,
    (anthropic_messages.LIMIT,),
    anthropic_messages.request,
    anthropic_messages.Reading,
    messages_meter,
)


def limits_of(spelling: Spelling, upstream: Upstream, said: Sequence[str] = ()) -> tuple[str, ...]:
    """Fields that are to bound the answer. `said`: those of whoever asks, which a server of its choice knows."""
    if spelling is CHAT and upstream.limit_field is not Bound.CLIENTS:
        return (upstream.limit_field.value,)
    return tuple(said) or spelling.limits[:1]


def spelling_of(upstream: Upstream) -> Spelling:
    """The native loop's."""
    if upstream.provider is Kind.ANTHROPIC:
        return MESSAGES
    return RESPONSES if upstream.api is Api.RESPONSES else CHAT
