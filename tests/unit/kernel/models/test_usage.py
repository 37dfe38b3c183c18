"""Tokens, money, and how much of what is left a call is given."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.models.granting import LEAST_OUTPUT, Expected, fit, output_of
from ringfence.host.kernel.models.usage import NO_LIMIT, Amount, BudgetLimits, Prices, Spent, Usage, counted

TOKENS = st.integers(0, 1 << 30)
NANOS = st.integers(0, 1 << 20)
PRICES = st.builds(Prices, NANOS, NANOS, NANOS, NANOS)


@given(
    st.builds(Expected, TOKENS, TOKENS),
    PRICES,
    st.builds(Amount, st.integers(-(1 << 40), 1 << 40), st.integers(0, 1 << 50)),
)
def test_never_more_than_there_is_nor_than_is_wanted(expected: Expected, prices: Prices, room: Amount) -> None:
    amount = fit(expected, prices, room)
    if amount is None:
        return
    output = output_of(expected, amount)
    assert amount.tokens <= room.tokens and amount.micros <= room.micros
    assert min(LEAST_OUTPUT, expected.output) <= output <= expected.output
    worst = Usage(cache_write=expected.input, output=output)
    dearest = Prices(prices.input, prices.output, prices.cache_read, prices.worst_input)
    assert dearest.cost(worst) <= amount.micros, "whatever it turns out to be"
    for usage in (Usage(input=expected.input, output=output), Usage(cache_read=expected.input, output=output)):
        assert prices.cost(usage) <= amount.micros


@given(st.builds(Expected, TOKENS, TOKENS), PRICES)
def test_without_a_limit_all_is_given(expected: Expected, prices: Prices) -> None:
    amount = fit(expected, prices, Amount(NO_LIMIT, NO_LIMIT))
    assert amount is not None and output_of(expected, amount) == expected.output


def test_a_cost_is_rounded_up_and_money_is_in_units() -> None:
    prices = Prices(input=3000, output=15_000, cache_read=300, cache_write=3750)
    assert prices.cost(Usage(1_000_000, 100_000, 10, 0)) == 3_000_000 + 1_500_000 + 3
    assert (prices.cost(Usage(cache_read=1)), prices.cost(Usage())) == (1, 0)
    shown = Spent(2, Usage(1, 2, 3, 4), 1_500_000, Amount(5, 6)).as_json(Amount(100, NO_LIMIT))
    assert (shown["input_tokens"], shown["cached_tokens"], shown["tokens"], shown["money"]) == (8, 3, 10, 1.5)
    assert shown["limit"] == {"tokens": 100, "money": None}


def test_periods() -> None:
    at = datetime(2026, 3, 9, 23, 59, tzinfo=UTC)
    assert (BudgetLimits().period_of(at), BudgetLimits(period="day").period_of(at)) == ("2026-03", "2026-03-09")
    assert not BudgetLimits().any and BudgetLimits(run_money=1).any


@pytest.mark.parametrize("value", [None, -1, 1.5, "7", True, 1 << 60])
def test_what_is_no_number_of_tokens_is_none(value: object) -> None:
    assert counted({"a": value, "b": 4}, "a", "b") == 4
    assert counted({"a": value}, "a") == 0
