"""Requests to the gateway, as boxes may write them: read or refused, and what goes on is what the table says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.models.upstreams import Bound, Kind, Upstream
from ringfence.host.models.asked import ROUTES, Route, read
from ringfence.host.models.spoken_errors import Wrong, body, event

TABLE = {
    "gpt": Upstream("gpt", Kind.OPENAI, "https://x.test/v1", "real"),
    "claude": Upstream("claude", Kind.ANTHROPIC, "https://y.test", "real"),
}
OLDER, NEWER = Bound.OLDER.value, Bound.NEWER.value
COUNTED = [route for route in ROUTES.values() if route.counted]
NAMES = st.sampled_from(
    [
        "model",
        "messages",
        "input",
        "tools",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "store",
        "system",
        "thinking",
        "metadata",
        "api_base",
        "aws_secret",
        "top_k",
        "reasoning",
        "type",
        "url",
        "image_url",
        "file_id",
        "content",
        "role",
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 40)
    | st.text(max_size=8)
    | st.sampled_from(["gpt", "tool_use", "url"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(COUNTED), st.dictionaries(NAMES, VALUES, max_size=8), st.integers(1, 1 << 20))
def test_any_object_is_read_or_refused(route: Route, said: dict[str, Any], output: int) -> None:
    said["model"] = "gpt" if route.kind is Kind.OPENAI else "claude"
    try:
        asked = read(route, json.dumps(said).encode(), TABLE)
    except Wrong as wrong:
        assert wrong.status in (400, 403, 413)
        return
    size = len(asked.text[0])
    gone = json.loads(b"".join(asked.body(output, bounded=True)))
    assert asked.text == [], "it is kept nowhere else"
    assert (
        gone["model"] == "real" and not {"api_base", "aws_secret"} & gone.keys() and gone.get("store") in (None, False)
    )
    assert route.spelling is not None
    [limit] = {gone[name] for name in route.spelling.limits if name in gone}
    assert limit * asked.answers <= max(output, asked.answers) and asked.expected.input >= size - 200_000
    assert asked.limit is None or limit <= asked.limit


@given(st.sampled_from(COUNTED), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(route: Route, raw: bytes) -> None:
    with pytest.raises(Wrong):
        read(route, raw, TABLE)


@pytest.mark.parametrize(
    ("more", "output", "said"),
    [
        ({}, 500, {NEWER: 500}),
        ({OLDER: 100}, 500, {OLDER: 100}),
        ({OLDER: 900}, 500, {OLDER: 500}),
        ({NEWER: 900}, 500, {NEWER: 500}),
        ({OLDER: 900, NEWER: 200}, 500, {OLDER: 200, NEWER: 200}),
        ({OLDER: 900, NEWER: None}, 500, {OLDER: 500}),
        ({OLDER: 900, "n": 4}, 400, {OLDER: 100}),
        ({OLDER: None}, 500, {NEWER: 500}),
    ],
)
def test_the_limit_is_what_was_granted(more: dict[str, Any], output: int, said: dict[str, int]) -> None:
    """In the client's spelling: a server that it was made for may know no other, and an answer without a bound would
    be more than is reserved."""
    body_of = json.dumps({"model": "gpt", "messages": [], **more}).encode()
    gone = json.loads(b"".join(read(COUNTED[0], body_of, TABLE).body(output, bounded=True)))
    assert {name: gone[name] for name in (OLDER, NEWER) if name in gone} == said
    for bound in (Bound.OLDER, Bound.NEWER):  # of a table that says which
        table = {"gpt": replace(TABLE["gpt"], limit_field=bound)}
        gone = json.loads(b"".join(read(COUNTED[0], body_of, table).body(output, bounded=True)))
        assert {name: gone[name] for name in (OLDER, NEWER) if name in gone} == {bound.value: min(said.values())}


def test_a_picture_is_counted_as_one_and_a_text_by_its_bytes() -> None:
    route = COUNTED[0]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000}}
    for content, least, most in (([picture], 100_000, 110_000), ("words and " * 30_000, 300_000, 301_000)):
        said = {"model": "gpt", "messages": [{"role": "user", "content": content}]}
        assert least <= read(route, json.dumps(said).encode(), TABLE).expected.input <= most


@pytest.mark.parametrize(
    ("route", "part", "counted"),
    [
        (
            2,
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "A" * 900_000}},
            0,
        ),
        (2, {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A" * 900_000}}, 1),
        (
            2,
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "\u6587" * 300_000}},
            1,
        ),
        (2, {"type": "document", "source": {"type": "url", "data": '{"a":1,' * 130_000}}, 1),
        (0, {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 900_000}}, 0),
        (0, {"type": "file", "file": {"file_data": "data:text/plain;base64," + "A" * 900_000}}, 1),
        (0, {"type": "input_audio", "input_audio": {"format": "wav", "data": "A" * 900_000}}, 0),
    ],
)
def test_a_document_that_is_text_is_counted_as_text(route: int, part: dict[str, Any], counted: int) -> None:
    """Whether there is a blank in its beginning or not."""
    said = {"model": "claude" if route else "gpt", "messages": [{"role": "user", "content": [part]}]}
    found = read(COUNTED[route], json.dumps(said).encode(), TABLE).expected.input
    assert (found > 890_000) is bool(counted) and (counted or found < 110_000)


def test_errors_are_whole_objects_in_each_ones_words() -> None:
    wrong = Wrong(429, "budget_exhausted", "used \n up")
    assert json.loads(body(Kind.OPENAI, wrong))["error"]["type"] == "insufficient_quota"
    assert json.loads(body(Kind.ANTHROPIC, wrong))["error"] == {"type": "rate_limit_error", "message": "used \n up"}
    for kind, path in (
        (Kind.OPENAI, "/chat/completions"),
        (Kind.OPENAI, "/responses"),
        (Kind.ANTHROPIC, "/v1/messages"),
    ):
        said = event(kind, path, wrong)
        assert said.endswith(b"\n\n") and said.count(b"\n\n") == 1
        assert "used" in json.dumps(json.loads(said.partition(b"data: ")[2]))
