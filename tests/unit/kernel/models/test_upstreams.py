"""[[model_upstream]] and [model_budget] in the file of settings."""

from __future__ import annotations

import json

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.models.upstreams import Api, Bound, Kind, Upstream
from ringfence.host.kernel.models.usage import BudgetLimits, Prices
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.settings_file import parse
from ringfence.host.kernel.settings_text import as_toml

FULL = """
model = "claude"
[model_budget]
period = "day"
user_tokens = 1000000
run_money = 2.5
[[model_upstream]]
alias = "claude"
provider = "anthropic"
base_url = "https://llm.example/"
model = "claude-9"
key = "claude-key"
window = 400000
max_output = 32000
prices = { input = 3, output = 15.0, cache_read = 0.3 }
[[model_upstream]]
alias = "local/qwen2.5:7b"
provider = "openai"
api = "responses"
base_url = "http://127.0.0.1:8000/v1"
model = "qwen"
limit_field = "max_tokens"
provider_tools = true
fields = ["top_n_sigma", "cache_control.ttl"]
betas = ["context-1m-2025-08-07", "realtime=v1"]
hidden_reasoning = true
"""
ONE = '[[model_upstream]]\nalias = "a"\nprovider = "openai"\nbase_url = "https://x.example/v1"\nmodel = "m"\n'


def test_a_full_file() -> None:
    settings = parse(FULL)
    claude, qwen = settings.model_upstream
    assert claude == Upstream(
        "claude",
        Kind.ANTHROPIC,
        "https://llm.example",
        "claude-9",
        "claude-key",
        window=400_000,
        max_output=32_000,
        prices=Prices(3000, 15_000, 300, 3000),
    )
    assert qwen.limit_field is Bound.OLDER and claude.limit_field is Bound.CLIENTS
    assert (qwen.api, qwen.key, qwen.provider_tools, qwen.host) == (Api.RESPONSES, "", True, "127.0.0.1:8000")
    assert (qwen.fields, qwen.betas) == (
        ("top_n_sigma", "cache_control.ttl"),
        ("context-1m-2025-08-07", "realtime=v1"),
    )
    assert qwen.hidden_reasoning and not claude.hidden_reasoning and (claude.fields, claude.betas) == ((), ())
    assert settings.model_budget == BudgetLimits("day", 1_000_000, 0, 0, 2_500_000)
    assert parse(as_toml(settings)) == settings
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('model = "claud"\n' + FULL.replace('model = "claude"\n', "", 1), "did you mean claude"),
        ('model = "gpt"', "there are: scripted"),
        (ONE + ONE, "different aliases"),
        (ONE.replace('"a"', '"scripted"'), "not 'scripted'"),
        (ONE.replace("https://x.example/v1", "http://x.example/v1"), "https:// URL"),
        (ONE.replace("https://x.example/v1", "https://u:secret-word@x.example"), "without name, password"),
        (ONE.replace("x.example/v1", "x.example/v1?api-key=secret-word"), "without a query"),
        (ONE.replace('"openai"', '"cohere"'), "one of openai, anthropic"),
        (ONE + 'api = "messages"', "one of chat, responses"),
        (ONE.replace('"openai"', '"anthropic"') + 'api = "responses"', "of provider openai"),
        (ONE + 'limit_field = "max_output_tokens"', "one of max_completion_tokens, max_tokens"),
        (ONE.replace('"openai"', '"anthropic"') + 'limit_field = "max_tokens"', "of provider openai"),
        (ONE + "max_output = 300000", "below their window"),
        (ONE + 'fields = "speed"', "a list of at most 64 names"),
        (ONE + 'fields = ["a b"]', "a list of names"),
        (ONE + "betas = [1]", "a list of names"),
        (ONE + "hidden_reasoning = 1", "true or false"),
        (ONE + 'key = "sk-proj-Secret-Word"', "name of a secret"),
        (ONE + 'key = "crd_0123"', "name of a secret"),
        (ONE + "prices = { input = 1 }", "tables with output"),
        (ONE + "prices = { input = 1, output = 0.0001 }", "three digits"),
        (ONE + "prise = 1", "did you mean prices"),
        ("[model_budget]\nuser_tokens = -1", "whole number"),
        ('[model_budget]\nperiod = "week"', "day, month"),
        ('[model_budget]\nuser_money = "5"', "a number"),
    ],
)
def test_what_is_none(text: str, says: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse(text)
    assert says in f"{raised.value.message} {raised.value.remedy}"
    assert "ecret-" not in f"{raised.value.message} {raised.value.remedy} {raised.value.details}"
