"""Which fields of a request, and which betas, go up to a provider: those whose reach and price are known. Pure.

A field that is not known here may open a way out of the box, reach what others keep at the provider, or cost a
multiple of what is counted; providers invent one a month. It is refused by its name, and a beta is left out, unless the
upstream's table names it (`fields`, `betas`). Must never let one through because nobody has thought of it. Sources: the
API references of the two providers, the parameters of their Python clients, and those of vLLM and llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.models.upstreams import CACHE_TTL, Upstream
from ringfence.host.models.reaching import HOSTED, SHARED
from ringfence.host.models.spellings import CHAT, MESSAGES, RESPONSES, Spelling
from ringfence.host.models.spoken_errors import Wrong


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_OPENAIS = _names(
    "model stream stream_options metadata user safety_identifier store service_tier temperature top_p top_logprobs",
    "tools tool_choice parallel_tool_calls prompt_cache_key prompt_cache_retention prompt_cache_options",
)
_SAMPLING = _names(  # of servers that one runs oneself
    "top_k min_p top_a typical_p tfs_z repetition_penalty repeat_penalty repeat_last_n length_penalty samplers",
    "mirostat mirostat_tau mirostat_eta dynatemp_range dynatemp_exponent xtc_probability xtc_threshold",
    "min_tokens ignore_eos stop_token_ids bad_words include_stop_str_in_output skip_special_tokens",
    "add_special_tokens spaces_between_special_tokens add_generation_prompt continue_final_message",
    "chat_template_kwargs cache_prompt",
    "guided_json guided_regex guided_choice guided_grammar structured_outputs json_schema grammar",
    "reasoning include_reasoning reasoning_format thinking enable_thinking",
)
_KNOWN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        CHAT.path: _OPENAIS
        | _SAMPLING
        | _names(
            "messages frequency_penalty presence_penalty logit_bias logprobs n seed stop max_tokens",
            "max_completion_tokens functions function_call response_format reasoning_effort verbosity",
            "prediction modalities",
        ),
        RESPONSES.path: _OPENAIS
        | _names(
            "input instructions include reasoning text truncation max_output_tokens max_tool_calls client_metadata"
        ),
        MESSAGES.path: _names(
            "model messages system max_tokens metadata stop_sequences stream temperature top_k top_p tools tool_choice",
            "thinking output_config cache_control context_management service_tier speed inference_geo",
        ),
    }
)


def _clears(value: Any) -> bool:
    """What it does is to leave out what is old. A compaction is a second answer, which an answer's own use does not
    have."""
    edits = value.get("edits", ()) if isinstance(value, dict) and value.keys() <= {"edits"} else None
    return isinstance(edits, list | tuple) and all(
        isinstance(each, dict) and str(each.get("type")).startswith("clear_") for each in edits
    )


_USUAL: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {  # values that cost what is counted, of fields of which others do not
        "service_tier": lambda value: value in ("auto", "default", "standard_only"),
        "speed": lambda value: value == "standard",
        "inference_geo": lambda value: value == "global",
        "modalities": lambda value: value == ["text"],
        "prompt_cache_options": lambda value: isinstance(value, dict) and value.keys() <= {"mode"},
        "context_management": _clears,
    }
)

_DATE = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d)\Z")
_BETAS = _names(  # without their dates. What they allow in a body is held against the above
    "claude-code interleaved-thinking dev-full-thinking thinking-token-count thinking-display-updates",
    "fine-grained-tool-streaming token-efficient-tools computer-use structured-outputs effort task-budgets",
    "context-management model-context-window-exceeded prompt-caching extended-cache-ttl output-128k output-300k",
    "pdfs token-counting max-tokens-3-5-sonnet responses=experimental",
)


def check(spelling: Spelling, body: Mapping[str, Any], upstream: Upstream) -> None:
    """Wrong, with the field's name. What is null counts as not said. Behind `reaching`, which has judged its own."""
    known = _KNOWN[spelling.path]
    for name, value in body.items():
        if value is None or name in upstream.fields or name in HOSTED or name in SHARED:
            continue
        if name not in known:
            raise _refused(name, "the gateway does not know what this field reaches and costs")
        usual = _USUAL.get(name)
        if usual is not None and not usual(value):
            raise _refused(name, "with this value the provider's prices are others than those that are counted")


def without_ttl(body: dict[str, Any], upstream: Upstream) -> None:
    """In place. An hour in the provider's cache costs more than the usual minutes, which are what is counted; nothing
    is answered otherwise. What is in a tool's schema, or in a call, is not the provider's."""
    if CACHE_TTL in upstream.fields:
        return
    own = {"cache_control": body.get("cache_control")}
    todo: list[Any] = [body.get("messages"), body.get("system"), body.get("tools"), own]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if isinstance(one.get("cache_control"), dict):
                one["cache_control"].pop("ttl", None)
            todo += [one.get("content"), one.get("source")]


def betas(said: str, upstream: Upstream) -> str:
    """Of a header's list, those that go up."""
    return ",".join(each for each in _each(said) if each in upstream.betas or _DATE.sub("", each) in _BETAS)


def _each(said: str) -> Iterable[str]:
    return (each.strip() for each in said.split(",") if each.strip())


def _refused(name: str, why: str) -> Wrong:
    return Wrong(400, "not_supported", f"{name[:64]}: {why}; the operator can allow it (fields of the upstream)")
