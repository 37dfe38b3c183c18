"""How much of what is left a call may have. Pure.

What a call reads is bounded before it goes out, what it writes by the limit that is sent with it: so a call never uses
more than was reserved for it, and calls beside each other never more than there was.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.host.kernel.models.usage import Amount, Prices

AROUND_TOOLS = 1000  # tokens that a provider adds of its own when tools are offered: 300 to 800
LEAST_OUTPUT = 256  # tokens: an answer that may be shorter than that is none


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens. `input`: at most so many are read; `output`: so many are asked for."""

    input: int
    output: int


def fit(expected: Expected, prices: Prices, room: Amount) -> Amount | None:
    """All of it where there is room, else what there is, if that is an answer at all."""
    paid = -(-expected.input * prices.worst_input // 1000)
    output = min(expected.output, room.tokens - expected.input)
    if prices.output:
        output = min(output, (room.micros - paid) * 1000 // prices.output)
    if output < min(LEAST_OUTPUT, expected.output) or paid > room.micros:
        return None
    nanos = expected.input * prices.worst_input + output * prices.output
    return Amount(expected.input + output, -(-nanos // 1000))


def output_of(expected: Expected, given: Amount) -> int:
    """Tokens of output that `fit` gave."""
    return max(0, given.tokens - expected.input)
