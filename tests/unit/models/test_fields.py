"""Fields and betas of a request: those that are known go up as they are, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.anthropic_beta_param import AnthropicBetaParam
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

from ringfence.host.kernel.models.upstreams import CACHE_TTL, Kind, Upstream
from ringfence.host.models import fields
from ringfence.host.models.asked import ROUTES, read
from ringfence.host.models.spoken_errors import Wrong

CHAT, RESPONSES, MESSAGES, COUNT = [route for route in ROUTES.values() if route.spelling is not None]
GPT = Upstream("gpt", Kind.OPENAI, "https://x.test/v1", "real")
CLAUDE = Upstream("claude", Kind.ANTHROPIC, "https://y.test", "real")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def gone(route: Any, said: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What goes up."""
    up = replace(GPT if route.kind is Kind.OPENAI else CLAUDE, **more)
    body = read(route, json.dumps({"model": up.alias, **said}).encode(), {up.alias: up}).body(100, bounded=False)
    found = json.loads(b"".join(body))
    assert isinstance(found, dict)
    return found


USUAL: list[tuple[Any, dict[str, Any]]] = [
    (
        CHAT,
        {
            "messages": [],
            "temperature": 1,
            "top_p": 0.5,
            "n": 2,
            "stop": ["x"],
            "seed": 1,
            "user": "u",
            "tools": [TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "response_format": {"type": "json_object"},
            "reasoning_effort": "low",
            "verbosity": "low",
            "modalities": ["text"],
            "service_tier": "auto",
            "metadata": {"a": "b"},
            "logit_bias": {"1": 2},
            "logprobs": True,
            "top_logprobs": 2,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "prediction": {"type": "content", "content": "x"},
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "audio": None,
            "web_search_options": None,
            "top_k": 4,
            "min_p": 0.1,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    ),
    (
        RESPONSES,
        {
            "input": "x",
            "instructions": "i",
            "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "low"},
            "truncation": "auto",
            "prompt_cache_key": "k",
            "tools": [{"type": "function", "name": "f"}],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "background": False,
            "service_tier": "default",
            "prompt_cache_options": {"mode": "explicit"},
        },
    ),
    (
        MESSAGES,
        {
            "messages": [],
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "tools": [{"name": "f", "input_schema": {}}],
            "tool_choice": {"type": "auto"},
            "stop_sequences": ["x"],
            "temperature": 1,
            "top_k": 3,
            "top_p": 0.9,
            "service_tier": "standard_only",
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
    ),
    (COUNT, {"messages": [], "system": "s", "thinking": {"type": "disabled"}, "tools": []}),
]


@pytest.mark.parametrize(("route", "said"), USUAL)
def test_what_clients_send_goes_up_as_it_is(route: Any, said: dict[str, Any]) -> None:
    found = gone(route, {**said})
    assert {name: found.get(name) for name in said} == said


OTHERWISE: list[tuple[Any, dict[str, Any]]] = [
    (CHAT, {"service_tier": "priority"}),
    (CHAT, {"service_tier": "flex"}),
    (CHAT, {"modalities": ["text", "audio"]}),
    (CHAT, {"audio": {"voice": "x", "format": "wav"}}),
    (CHAT, {"of_tomorrow": {}}),
    (CHAT, {"of_tomorrow": False}),
    (RESPONSES, {"service_tier": "fast"}),
    (RESPONSES, {"context_management": [{"type": "compaction"}]}),
    (RESPONSES, {"prompt_cache_options": {"ttl": "24h"}}),
    (RESPONSES, {"access_programs": {}}),
    (MESSAGES, {"speed": "fast"}),
    (MESSAGES, {"inference_geo": "us"}),
    (MESSAGES, {"context_management": {"edits": [{"type": "compact_20260112"}]}}),
    (MESSAGES, {"compaction": {}}),
    (MESSAGES, {"thread": {"type": "create"}}),
    (MESSAGES, {"diagnostics": {"previous_message_id": "msg_of_somebody"}}),
    (MESSAGES, {"billing_policy": {"bill_to": "user_profile"}}),
    (COUNT, {"of_tomorrow": 1}),
]


@pytest.mark.parametrize(("route", "more"), OTHERWISE)
def test_what_is_not_known_or_priced_otherwise_is_refused_by_its_name(route: Any, more: dict[str, Any]) -> None:
    """And goes up, the control, where the operator's table names it."""
    [name] = more
    with pytest.raises(Wrong) as wrong:
        gone(route, more)
    assert wrong.value.status == 400 and wrong.value.message.startswith(f"{name}: ")
    assert "fields of the upstream" in wrong.value.message
    with pytest.raises(Wrong):
        gone(route, more, provider_tools=True)
    assert gone(route, more, fields=(name,))[name] == more[name]


def test_no_entry_of_fields_opens_what_reaches_out_or_is_others() -> None:
    closed: list[dict[str, Any]] = [{"web_search_options": {}}, {"previous_response_id": "r"}, {"background": True}]
    for more in closed:
        with pytest.raises(Wrong):
            gone(CHAT, more, fields=tuple(more))


def test_what_is_kept_for_an_hour_is_kept_for_the_usual_minutes() -> None:
    """Its price is another. Nothing else of that name is touched: a schema's and a call's are not the provider's."""
    hour = {"type": "ephemeral", "ttl": "1h"}
    theirs = {"cache_control": {"ttl": "1h"}}
    said = {
        "cache_control": hour,
        "system": [{"type": "text", "text": "s", "cache_control": hour}],
        "tools": [{"name": "f", "input_schema": {"properties": theirs}, "cache_control": hour}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "cache_control": hour,
                        "content": [{"type": "text", "text": "x", "cache_control": hour}],
                    },
                    {"type": "tool_use", "id": "t", "name": "f", "cache_control": hour, "input": theirs},
                ],
            }
        ],
    }
    found = json.dumps(gone(MESSAGES, said))
    assert found.count('"ttl"') == 2 and found.count("ephemeral") == 6
    assert json.dumps(gone(MESSAGES, said, fields=(CACHE_TTL,))).count('"ttl"') == 8, "the control"


def test_betas_that_are_not_known_are_left_out() -> None:
    said = "claude-code-20250219, interleaved-thinking-2025-05-14,context-1m-2025-08-07, of-tomorrow-2027-01-01,"
    assert fields.betas(said, CLAUDE) == "claude-code-20250219,interleaved-thinking-2025-05-14"
    allowed = replace(CLAUDE, betas=("context-1m-2025-08-07",))
    assert fields.betas(said, allowed).endswith(",context-1m-2025-08-07")
    assert fields.betas("fast-mode-2026-02-01,mcp-client-2025-11-20", CLAUDE) == ""
    assert fields.betas("responses=experimental, realtime=v1", GPT) == "responses=experimental"


def test_every_field_of_the_providers_own_clients_was_looked_at() -> None:
    """A new version of a client brings new ones: each is in the lists, or here, as one that is refused."""
    known: list[tuple[Any, set[str], set[str]]] = [
        (CHAT, _of(completion_create_params.CompletionCreateParamsBase), {"audio", "moderation"}),
        (
            RESPONSES,
            _of(response_create_params.ResponseCreateParamsBase),
            {"access_programs", "background_options", "context_management", "image", "moderation"},
        ),
        (
            MESSAGES,
            _of(message_create_params.MessageCreateParamsBase),
            {"diagnostics", "user_profile_id", "workspace_id"},
        ),
        (
            MESSAGES,
            _of(beta_create_params.MessageCreateParamsBase),
            {"billing_policy", "compaction", "diagnostics", "fallback_credit_token", "thread"}
            | {"user_profile_id", "workspace_id"},
        ),
        (COUNT, _of(message_count_tokens_params.MessageCountTokensParams), {"user_profile_id", "workspace_id"}),
    ]
    # of a header; dropped as routing; refused for what they reach
    elsewhere = {"betas", "fallbacks", "web_search_options", "mcp_servers", "container"}
    elsewhere |= {"previous_response_id", "conversation", "prompt", "background"}
    for route, said, refused in known:
        assert said - fields._KNOWN[route.spelling.path] - elsewhere == refused


def _of(params: Any) -> set[str]:
    return set(params.__annotations__)


def test_every_beta_that_is_let_through_is_spelled_as_the_client_spells_it() -> None:
    spelled = {
        fields._DATE.sub("", each) for each in str(AnthropicBetaParam).replace("'", " ").split() if "-20" in each
    }
    ours = {each for each in fields._BETAS if "=" not in each}
    unknown = {
        "claude-code",
        "fine-grained-tool-streaming",
        "effort",
        "max-tokens-3-5-sonnet",
    }  # of other clients, and former
    assert ours - spelled == unknown
