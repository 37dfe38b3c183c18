"""The keys of the file of settings that are about models. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.models.upstreams import RESERVED, money, upstreams
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_key import LIST, MONEY, Key

_MOST_TOKENS = 1_000_000_000_000
_BUDGETS: Mapping[str, str] = MappingProxyType(
    {
        "user_tokens": "tokens of one user in a period, read and written, whoever calls the model; 0 = any number",
        "user_money": "the same in money, by the prices of the upstreams; one without prices costs nothing",
        "run_tokens": "tokens of one run; 0 = any number",
        "run_money": "the same in money",
    }
)


def _model(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 128 or not value.isprintable():
        raise ValueError(f"{RESERVED}, or the alias of a [[model_upstream]]")
    return value


def _period(value: object) -> str:
    if value not in ("day", "month"):
        raise ValueError("one of day, month")
    return str(value)


def _tokens(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_TOKENS:
        raise ValueError(f"a whole number from 0 to {_MOST_TOKENS}")
    return value


def _budget_key(name: str) -> Key:
    if name.endswith("_money"):
        return Key(f"model_budget.{name}", MONEY, "0 to 1000000000", _BUDGETS[name], money)
    return Key(f"model_budget.{name}", "whole number", f"0 to {_MOST_TOKENS}", _BUDGETS[name], _tokens)


MODEL = Key(
    "model",
    "name",
    f"{RESERVED}, or an alias of model_upstream",
    f"the model that the shared agent uses; `{RESERVED}` is none and says so",
    _model,
)
UPSTREAMS = Key(
    "model_upstream",
    LIST,
    "alias, provider, base_url, model; key, api, limit_field, window, max_output, prices, provider_tools, fields, betas, "
    "hidden_reasoning",
    "[[model_upstream]]: a model that the gateway knows, with the name of its key in the vault (operate.md)",
    upstreams,
)
BUDGETS = (
    Key("model_budget.period", "name", "day, month", "what the budgets of users are counted by, in UTC", _period),
    *(_budget_key(name) for name in _BUDGETS),
)


def check_model(settings: Settings, source: str) -> None:
    """Invalid: the model of the loop is none of those that are there."""
    known = [RESERVED, *(each.alias for each in settings.model_upstream)]
    if settings.model in known:
        return
    near = difflib.get_close_matches(settings.model, known, 1, 0.5)
    raise Invalid(
        f"{source}: model = {settings.model!r} is no alias of a [[model_upstream]]",
        remedy=(f"did you mean {near[0]}? " if near else "") + f"there are: {', '.join(known)}",
        key="model",
        value=settings.model,
        nearest=near[0] if near else None,
    )
