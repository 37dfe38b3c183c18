"""What calls of a model use: tokens by kind, money, and their limits. Pure.

Money is whole micros: millionths of whatever unit the operator's prices are in. A price of 3 for a million tokens is 3
micros a token, so prices are kept in nanos (thousandths of a micro) for each token, and a cost is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

UNIT = 1_000_000  # micros of one unit of money
NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `input` has none of those that came from, or went into, the provider's cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def taken(self) -> int:
        """All that the model read."""
        return self.input + self.cache_read + self.cache_write

    @property
    def tokens(self) -> int:
        return self.taken + self.output


@dataclass(frozen=True, slots=True)
class Prices:
    """Nanos of one token."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    @property
    def worst_input(self) -> int:
        return max(self.input, self.cache_read, self.cache_write)

    def cost(self, usage: Usage) -> int:
        """Micros, rounded up."""
        nanos = (
            usage.input * self.input
            + usage.output * self.output
            + usage.cache_read * self.cache_read
            + usage.cache_write * self.cache_write
        )
        return -(-nanos // 1000)


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of both."""

    tokens: int = 0
    micros: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.micros + other.micros)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.micros - other.micros)

    def least(self, other: Amount) -> Amount:
        return Amount(min(self.tokens, other.tokens), min(self.micros, other.micros))


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """Of each user in a period, and of each run. 0 = none. Money in micros."""

    period: str = "month"  # or "day", both of UTC
    user_tokens: int = 0
    user_money: int = 0
    run_tokens: int = 0
    run_money: int = 0

    @property
    def user(self) -> Amount:
        return Amount(self.user_tokens or NO_LIMIT, self.user_money or NO_LIMIT)

    @property
    def run(self) -> Amount:
        return Amount(self.run_tokens or NO_LIMIT, self.run_money or NO_LIMIT)

    @property
    def any(self) -> bool:
        return bool(self.user_tokens or self.user_money or self.run_tokens or self.run_money)

    def period_of(self, now: datetime) -> str:
        """`2026-01` or `2026-01-31`. `now`: aware UTC."""
        return now.strftime("%Y-%m-%d" if self.period == "day" else "%Y-%m")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run, or a user in a period, has used; what is reserved for calls under way is in `reserved`, and in no
    other."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    micros: int = 0
    reserved: Amount = field(default_factory=Amount)

    def as_json(self, limit: Amount) -> dict[str, Any]:
        """For `run show` and `user show`: money in units; null where there is no limit."""
        return {
            "calls": self.calls,
            "input_tokens": self.usage.taken,
            "cached_tokens": self.usage.cache_read,
            "output_tokens": self.usage.output,
            "tokens": self.usage.tokens,
            "money": units(self.micros),
            "reserved": {"tokens": self.reserved.tokens, "money": units(self.reserved.micros)},
            "limit": {
                "tokens": None if limit.tokens == NO_LIMIT else limit.tokens,
                "money": None if limit.micros == NO_LIMIT else units(limit.micros),
            },
        }


def units(micros: int) -> float:
    return micros / UNIT


def counted(raw: Mapping[str, Any], *names: str) -> int:
    """The first of `names` that is a number of tokens; 0: none is. What a provider says is not believed to be
    well-formed."""
    for name in names:
        value = raw.get(name)
        if type(value) is int and 0 <= value < 1 << 40:
            return value
    return 0
