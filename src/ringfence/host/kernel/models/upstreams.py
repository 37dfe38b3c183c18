"""[[model_upstream]]: which models there are, by alias, and where each is. Pure; a key is the name of a secret of the
vault.

The table is all that decides where a request goes: nothing that a box or a loop says changes an address, a model or a
key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from ringfence.host.kernel.declared import fields_of, tables_of, url
from ringfence.host.kernel.errors import NameInvalid
from ringfence.host.kernel.models.usage import UNIT, BudgetLimits, Prices
from ringfence.host.kernel.outward.storing import check_credential_name

MAX_UPSTREAMS = 64
MAX_PRICE = 100_000  # of a million tokens
MAX_NAMED = 64  # fields, betas
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}\Z")
_FIELD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}\Z")
RESERVED = "scripted"  # the provider that is none
CACHE_TTL = "cache_control.ttl"  # how long a thing is in the provider's cache, as an entry of `fields`


class Kind(StrEnum):
    """What an upstream speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class Api(StrEnum):
    """Which of OpenAI's the native loop uses; foreign clients use the one that they ask for."""

    CHAT = "chat"
    RESPONSES = "responses"


class Bound(StrEnum):
    """Which field bounds an answer of OpenAI's chat completions."""

    CLIENTS = ""  # that of whoever asks: the newer one when it names none
    NEWER = "max_completion_tokens"
    OLDER = "max_tokens"  # all that some servers of other makers know


@dataclass(frozen=True, slots=True)
class Upstream:
    alias: str
    provider: Kind
    base_url: str  # without a slash at its end; OpenAI's with /v1, Anthropic's without
    model: str  # as the provider calls it
    key: str = ""  # name of a secret; "" = the upstream wants none
    api: Api = Api.CHAT
    limit_field: Bound = Bound.CLIENTS
    window: int = 200_000  # tokens, the answer included
    max_output: int = 16_384  # tokens of an answer, when whoever asks does not say
    prices: Prices = field(default_factory=Prices)
    provider_tools: bool = False  # whether the provider may fetch and run things for whoever asks
    fields: tuple[str, ...] = ()  # of requests, that go up besides those whose reach and price are known
    betas: tuple[str, ...] = ()  # the same of betas
    hidden_reasoning: bool = False  # whether the model thinks, unasked, what it does not show

    @property
    def host(self) -> str:
        """For people."""
        return urlsplit(self.base_url).netloc


def upstreams(value: object) -> tuple[Upstream, ...]:
    """ValueError: what is allowed."""
    needed = ("alias", "provider", "base_url", "model")
    found = tuple(
        Upstream(**fields_of(raw, _FIELDS, needed)) for raw in tables_of(value, MAX_UPSTREAMS, "model_upstream")
    )
    if len({each.alias for each in found}) != len(found):
        raise ValueError("of different aliases")
    for each in found:
        if each.api is not Api.CHAT and each.provider is not Kind.OPENAI:
            raise ValueError("tables whose api is of provider openai")
        if each.limit_field is not Bound.CLIENTS and each.provider is not Kind.OPENAI:
            raise ValueError("tables whose limit_field is of provider openai")
        if each.max_output >= each.window:
            raise ValueError("tables whose max_output is below their window")
    return found


def upstream_from_json(raw: Mapping[str, Any]) -> Upstream:
    """What dataclasses.asdict made."""
    known = {
        "provider": Kind(raw["provider"]),
        "api": Api(raw["api"]),
        "limit_field": Bound(raw.get("limit_field", "")),
        "prices": Prices(**raw["prices"]),
        "fields": tuple(raw.get("fields", ())),
        "betas": tuple(raw.get("betas", ())),
    }
    return Upstream(**{**raw, **known})


def budgets_from_json(raw: Mapping[str, Any]) -> BudgetLimits:
    return BudgetLimits(**raw)


def as_table(upstream: Upstream) -> dict[str, object]:
    """As one writes it in the file; what has its default is left out."""
    raw, unset = asdict(upstream), asdict(Upstream("", Kind.OPENAI, "", ""))
    always = ("alias", "provider", "base_url", "model")
    table = {name: value for name, value in raw.items() if name in always or value != unset[name]}
    table |= {name: str(table[name]) for name in ("provider", "api", "limit_field") if name in table}
    if "prices" in table:
        table["prices"] = {name: nanos / 1000 for name, nanos in raw["prices"].items()}
    return table


def money(value: object) -> int:
    """Micros. ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1_000_000_000:
        raise ValueError("a number from 0 to 1000000000, in the unit of the prices")
    return round(value * UNIT)


def _alias(value: object) -> str:
    if not isinstance(value, str) or not _ALIAS.match(value) or value == RESERVED:
        raise ValueError(f"1 to 128 of letters, digits and . _ : / @ -, and not {RESERVED!r}")
    return value


def _model(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256 or not value.isprintable():
        raise ValueError("1 to 256 characters")
    return value


def _key(value: object) -> str:
    allowed = "the name of a secret: 1 to 64 of a-z 0-9 . _ -"
    if not isinstance(value, str):
        raise ValueError(allowed)
    try:
        return check_credential_name(value) if value else ""
    except NameInvalid:
        raise ValueError(allowed) from None


def _base_url(value: object) -> str:
    whole = url(value)
    if urlsplit(whole).query:
        raise ValueError("a URL without a query")
    return whole.rstrip("/")


def _kind(value: object) -> Kind:
    if value not in tuple(Kind):
        raise ValueError("one of " + ", ".join(Kind))
    return Kind(str(value))


def _api(value: object) -> Api:
    if value not in tuple(Api):
        raise ValueError("one of " + ", ".join(Api))
    return Api(str(value))


def _limit_field(value: object) -> Bound:
    if not isinstance(value, str) or value not in tuple(Bound):
        raise ValueError("one of max_completion_tokens, max_tokens")
    return Bound(value)


def _tokens(value: object) -> int:
    if type(value) is not int or not 256 <= value <= 10_000_000:
        raise ValueError("a whole number from 256 to 10000000")
    return value


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _named(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_NAMED:
        raise ValueError(f"a list of at most {MAX_NAMED} names")
    if any(not isinstance(each, str) or not _FIELD.match(each) for each in value):
        raise ValueError("a list of names: 1 to 128 of letters, digits and _ . = -")
    return tuple(value)


def _price(value: object) -> int:
    """Nanos of a token. A price has at most three digits behind the point."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_PRICE:
        raise ValueError(f"a number from 0 to {MAX_PRICE}, of a million tokens")
    nanos = round(value * 1000)
    if abs(nanos - value * 1000) > 1e-6:
        raise ValueError("a number of at most three digits behind the point")
    return nanos


def _prices(value: object) -> Prices:
    """Those of the cache are the input's when they are not said."""
    if not isinstance(value, Mapping):
        raise ValueError("a table of input, output, cache_read, cache_write")
    said = fields_of(
        value, dict.fromkeys(("input", "output", "cache_read", "cache_write"), _price), ("input", "output")
    )
    return Prices(**{"cache_read": said["input"], "cache_write": said["input"], **said})


_FIELDS: Mapping[str, Callable[[object], object]] = MappingProxyType(
    {
        "alias": _alias,
        "provider": _kind,
        "base_url": _base_url,
        "model": _model,
        "key": _key,
        "api": _api,
        "limit_field": _limit_field,
        "window": _tokens,
        "max_output": _tokens,
        "prices": _prices,
        "provider_tools": _yes,
        "fields": _named,
        "betas": _named,
        "hidden_reasoning": _yes,
    }
)
