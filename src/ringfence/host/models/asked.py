"""A request to the gateway, read: which upstream it goes to, and what of it goes there. Pure.

The model's alias is all that chooses. Fields that would say where else to go, or with which key, are left out; what the
provider would keep, share between users or carry out itself is refused, and what nobody knows the price of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.json_bounds import CONVERSATION, beyond
from ringfence.host.kernel.models.granting import AROUND_TOOLS, Expected
from ringfence.host.kernel.models.upstreams import Kind, Upstream
from ringfence.host.kernel.strict_json import values_of
from ringfence.host.models import fields
from ringfence.host.models.reaching import reaches, shares
from ringfence.host.models.spellings import CHAT, MESSAGES, RESPONSES, Spelling, limits_of
from ringfence.host.models.spoken_errors import Wrong

MAX_BODY = 20 << 20
_MAX_ANSWERS = 128  # `n` of chat completions
_ANY = 1 << 31  # tokens: as many as there may be
_SHORT = 64 * 1024  # bytes of a body that are copied for one write less
# What clients and gateways of other makers take for routing. A prefix covers the rest of three clouds.
_ROUTING = frozenset(
    [
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "base_url",
        "client",
        "custom_llm_provider",
        "default_headers",
        "deployment_id",
        "extra_body",
        "extra_headers",
        "extra_query",
        "fallbacks",
        "headers",
        "organization",
        "project",
        "proxy",
        "timeout",
    ]
)
_ROUTING_PREFIXES = ("aws_", "azure_", "vertex_")


@dataclass(frozen=True, slots=True)
class Route:
    kind: Kind
    spelling: Spelling | None  # None: a list of models
    path: str  # behind base_url
    counted: bool = True  # whether it costs


_OPENAI, _ANTHROPIC = "/model/openai/v1", "/model/anthropic/v1"
ROUTES: Mapping[tuple[str, str], Route] = MappingProxyType(
    {
        ("POST", f"{_OPENAI}/chat/completions"): Route(Kind.OPENAI, CHAT, CHAT.path),
        ("POST", f"{_OPENAI}/responses"): Route(Kind.OPENAI, RESPONSES, RESPONSES.path),
        ("GET", f"{_OPENAI}/models"): Route(Kind.OPENAI, None, "", counted=False),
        ("POST", f"{_ANTHROPIC}/messages"): Route(Kind.ANTHROPIC, MESSAGES, MESSAGES.path),
        ("POST", f"{_ANTHROPIC}/messages/count_tokens"): Route(
            Kind.ANTHROPIC, MESSAGES, f"{MESSAGES.path}/count_tokens", counted=False
        ),
        ("GET", f"{_ANTHROPIC}/models"): Route(Kind.ANTHROPIC, None, "", counted=False),
    }
)


def kind_of(path: str) -> Kind:
    """Whose words an error is to be in."""
    return Kind.ANTHROPIC if path.startswith("/model/anthropic") else Kind.OPENAI


def route_of(method: str, path: str) -> Route:
    """HEAD is GET, and has its answer's head alone. Wrong."""
    route = ROUTES.get(("GET" if method == "HEAD" else method, path))
    if route is not None:
        return route
    others = [each for each, at in ROUTES if at == path]
    if not others:
        raise Wrong(404, "not_found", f"the gateway has no {method} {path[:200]}")
    allow = ", ".join([*others, "HEAD"] if "GET" in others else others)
    raise Wrong(405, "method_not_allowed", f"{path} takes {allow} and no {method}", allow=allow)


@dataclass(frozen=True, slots=True)
class Asked:
    """It lives as long as the answer; its text does not."""

    upstream: Upstream
    route: Route
    text: list[bytes]  # JSON without the limit and the last brace; empty once it was given away
    expected: Expected
    answers: int  # of how many the limit is for each
    limit: int | None  # that the client set; None: none
    limits: tuple[str, ...]  # fields that are to say it
    least: int  # an answer that may have less is refused by the provider
    stream: bool
    ours: bool  # the event of usage was asked for by us: the client is not to see it
    unseen: int = 0  # tokens at most that the model may write and not show, in a stream

    def body(self, output: int, *, bounded: bool) -> list[bytes]:
        """In pieces, for whoever empties the list: the text is kept nowhere else. Once. `output`: tokens of all answers
        together that were granted. `bounded`: there are budgets, so that a client that sets no limit is given one."""
        text, end = self.text.pop(), b"}"
        if self.route.counted and (self.limit is not None or bounded):
            each = max(1, output // self.answers)
            least = min(each, self.limit or each)
            end = "".join(f',"{name}":{least}' for name in self.limits).encode() + end
        return [text + end] if len(text) <= _SHORT else [text, end]


def read(route: Route, raw: bytes, upstreams: Mapping[str, Upstream]) -> Asked:
    """Wrong. For a thread when it is large: 20 MiB take 0.5 s, in steps that let others have their turn."""
    body = _object(raw)
    upstream = _upstream(body, route, upstreams)
    _check(route, body, upstream)
    ours = _prepared(route, body, upstream)
    (limit, limits), answers = _limit(route, body, upstream), _answers(route, body)
    body["model"] = upstream.model
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))[:-1].encode()  # it has a model at least
    output = (upstream.max_output if limit is None else limit) * answers
    return Asked(
        upstream,
        route,
        [text],
        Expected(_most_input(body, len(text)), output),
        answers,
        limit,
        limits,
        _thinking(body) + 1,
        bool(body.get("stream")),
        ours,
        _unseen(body, upstream),
    )


def _object(raw: bytes) -> dict[str, Any]:
    much = beyond(raw, CONVERSATION)
    if much:
        raise Wrong(413, "too_large", f"the request has {much}")
    try:
        (value,) = values_of(b"[" + raw + b"]")
    except (Invalid, ValueError) as error:
        said = error.message if isinstance(error, Invalid) else "it is no JSON text"
        raise Wrong(400, "malformed", f"the body of the request: {said}") from None
    if not isinstance(value, dict):
        raise Wrong(400, "malformed", "the body of the request is no JSON object")
    dropped = [name for name in value if name in _ROUTING or name.startswith(_ROUTING_PREFIXES)]
    return {name: one for name, one in value.items() if name not in dropped}


def _upstream(body: Mapping[str, Any], route: Route, upstreams: Mapping[str, Upstream]) -> Upstream:
    alias = body.get("model")
    found = upstreams.get(alias) if isinstance(alias, str) else None
    if found is not None and found.provider is route.kind:
        return found
    known = ", ".join(sorted(each.alias for each in upstreams.values() if each.provider is route.kind))
    shown = repr(alias[:128]) if isinstance(alias, str) else "none"
    raise Wrong(404, "model_not_found", f"the gateway has no model {shown}; there are: {known or 'none'}")


def _check(route: Route, body: Mapping[str, Any], upstream: Upstream) -> None:
    assert route.spelling is not None
    shared = shares(body)
    if shared:
        raise Wrong(400, "not_supported", f"{shared} is not supported: nothing is kept at the provider")
    reached = "" if upstream.provider_tools else reaches(route.spelling.path, body)
    if reached:
        raise Wrong(
            403,
            "denied",
            f"{reached}: the provider would reach out of the box's walls; the operator can allow it "
            "(provider_tools of the upstream)",
        )
    fields.check(route.spelling, body, upstream)


def _prepared(route: Route, body: dict[str, Any], upstream: Upstream) -> bool:
    """Nothing is kept at the provider, and a stream says what it used. True: because we asked."""
    body.pop("store", None)
    if route.spelling is MESSAGES:
        fields.without_ttl(body, upstream)
    if route.spelling is RESPONSES:
        body["store"] = False
    if route.spelling is not CHAT or not body.get("stream"):
        return False
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return False
    body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return True


def _limit(route: Route, body: dict[str, Any], upstream: Upstream) -> tuple[int | None, tuple[str, ...]]:
    """And the fields that are to say it. Taken out of the body, where there will be one."""
    assert route.spelling is not None
    if not route.counted:
        return None, ()
    found = {name: body.pop(name) for name in route.spelling.limits if name in body}
    said = {name: one for name, one in found.items() if one is not None}
    for name, one in said.items():
        if type(one) is not int or not 0 < one < 1 << 31:
            raise Wrong(400, "malformed", f"{name} is no number of tokens")
    return min(said.values(), default=None), limits_of(route.spelling, upstream, tuple(said))


def _answers(route: Route, body: Mapping[str, Any]) -> int:
    n = body.get("n", 1) if route.spelling is CHAT else 1
    if n is None:
        return 1
    if type(n) is not int or not 1 <= n <= _MAX_ANSWERS:
        raise Wrong(400, "malformed", f"n is not 1 to {_MAX_ANSWERS}")
    return n


def _thinking(body: Mapping[str, Any]) -> int:
    thinking = body.get("thinking")
    tokens = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return tokens if type(tokens) is int and tokens > 0 else 0


def _unseen(body: Mapping[str, Any], upstream: Upstream) -> int:
    thinking, reasoning = body.get("thinking"), body.get("reasoning")
    if upstream.hidden_reasoning or body.get("reasoning_effort") not in (None, "none"):
        return _ANY
    if isinstance(reasoning, dict) and reasoning.get("effort") != "none":
        return _ANY
    if isinstance(thinking, dict) and thinking.get("type") != "disabled":
        return _thinking(body) or _ANY
    return 0


# --- how much is read ------------------------------------------------------------------------------------------------

# No tokenizer makes more tokens of a text than it has bytes; what a provider puts around a message is less than its
# JSON, and around tools some hundred tokens. Pictures and files are not text: one is counted as so many at most, a
# document of a hundred dense pages. What only stands at the provider is not counted before it is used.
_MOST_OF_ATTACHMENT = 100_000
_ATTACHED = 4096  # characters: what is longer, and looks like data, is an attachment
_DATA = re.compile(r"(data:(image|audio|video|application)/[^,]{0,200},)?[A-Za-z0-9+/=_-]*")  # of its beginning


def _most_input(body: Mapping[str, Any], size: int) -> int:
    saved, todo = 0, [body.get("messages"), body.get("input")]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            for name, value in one.items():
                if isinstance(value, str) and len(value) > _ATTACHED and _is_data(one, name, value):
                    saved += max(0, len(value) - _MOST_OF_ATTACHMENT)
                elif isinstance(value, dict | list):
                    todo.append(value)
    return size - saved + (AROUND_TOOLS if body.get("tools") else 0)


def _is_data(one: Mapping[str, Any], name: str, value: str) -> bool:
    """A text may be as long, and have no blank in its beginning either: it is what it says it is."""
    if name not in ("data", "file_data", "url", "image_url") or one.get("type") == "text":
        return False
    return _DATA.fullmatch(value, 0, _ATTACHED) is not None
