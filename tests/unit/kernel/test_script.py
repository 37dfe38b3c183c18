"""The script's file: everything that it can say arrives; a slip is an error that says where it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.guest import native
from ringfence.host.kernel import arguments as arguments_
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.script import _ANSWER, Answer, Piece, Rule, ScriptedCall, parse_script, pieces_of
from ringfence.wire.framing import decode, encode


def test_everything_arrives() -> None:
    text = """
    [{"when": "deploy", "answers": [
        {"text": "I begin.", "tool_calls": [{"name": "shell", "arguments": {"command": "make"}}],
         "delay_seconds": 0.5, "usage": {"input_tokens": 10, "output_tokens": 2}},
        {"deltas": ["so ", {"text": "far", "delay_seconds": 1}], "stop": "length"},
        {"error": {"code": "unavailable"}},
        {"deltas": ["x"], "hang": true}]},
     {"when": "", "answers": [{"text": "anything"}]}]
    """
    first, second = parse_script(text)
    assert first == Rule(
        "deploy",
        (
            Answer(
                (Piece("I begin."),), (ScriptedCall("shell", {"command": "make"}),), "tool_calls", 0.5, usage=(10, 2)
            ),
            Answer((Piece("so "), Piece("far", 1.0)), stop="length"),
            Answer(error=("unavailable", "the script says unavailable")),
            Answer((Piece("x"),), hang=True),
        ),
    )
    assert second == Rule("", (Answer((Piece("anything"),)),))
    assert [a.final for a in (*first.answers, *second.answers)] == [False, False, False, True, True]


def one(answer: Any) -> str:
    return json.dumps([{"when": "x", "answers": [{"text": "ok"}, answer]}])


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 0


def with_arguments(arguments: Any) -> str:
    return one({"tool_calls": [{"name": "x"}, {"name": "shell", "arguments": arguments}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "the script: must be a list"),
        ("[1]", "rule 1: must be an object"),
        ('[{"when": "a", "answers": [{"text": NaN}]}]', "NaN"),
        ('[{"when": "a", "when": "b", "answers": []}]', "'when' is there twice"),
        ('[{"answers": [{"text": ""}]}]', "rule 1: when is missing"),
        ('[{"when": "a"}]', "rule 1: answers is missing"),
        ('[{"when": "a", "answers": []}]', "rule 1: answers must not be empty"),
        ('[{"wen": "a", "answers": []}]', "unknown key 'wen'; did you mean when?"),
        (one({}), "rule 1, answer 2: an answer needs text"),
        (one({"stop": "end"}), "an answer needs text"),
        (one({"txt": "a"}), "answer 2: unknown key 'txt'; did you mean text?"),
        (one({"text": 1}), "answer 2, text: must be text"),
        (one({"text": "\ud800"}), "half of a surrogate pair"),
        (one({"deltas": "a"}), "deltas: must be a list"),
        (one({"deltas": ["a", {"delay_seconds": 1}]}), "deltas, piece 2: text is missing"),
        (one({"deltas": ["a"], "text": "b"}), "text is not what the deltas are together"),
        (one({"deltas": [], "text": "b"}), "text is not what the deltas are together"),
        (one({"tool_calls": [{"arguments": {}}]}), "tool_calls, call 1: name is missing"),
        (one({"tool_calls": [{"name": "x", "arguments": []}]}), "arguments: must be an object"),
        (one({"tool_calls": [{"name": "x"}], "stop": "end"}), "stop 'end' does not go with 1 tool calls"),
        (one({"text": "x", "stop": "tool_calls"}), "does not go with 0 tool calls"),
        (one({"text": "x", "stop": "done"}), "one of end, tool_calls, length"),
        (one({"text": "x", "delay_seconds": -1}), "number of seconds from 0 to 86400"),
        (one({"text": "x", "delay_seconds": True}), "number of seconds"),
        (one({"text": "x", "delay_seconds": 1e9}), "number of seconds"),
        (one({"error": {"code": "broken"}}), "one of unavailable, refused, failed"),
        (one({"error": {"code": ["failed"]}}), "one of unavailable, refused, failed"),
        (one({"error": "failed"}), "error: must be an object"),
        (one({"hang": 1}), "hang: must be true or false"),
        (one({"hang": True, "error": {"code": "failed"}}), "an answer that hangs has no error"),
        (one({"text": "x", "usage": {"input_tokens": 1}}), "output_tokens is missing"),
        (one({"text": "x", "usage": {"input_tokens": 1, "output_tokens": -1}}), "whole number"),
        (one({"text": "x", "usage": {"input_tokens": 1, "output_tokens": 1 << 64}}), "output_tokens: must be a whole"),
        (with_arguments({"n": 1 << 63}), "call 2: arguments.n: an integer beyond 64 bits"),
        (with_arguments({"a": [1, {"b": -(1 << 63) - 1}]}), "call 2: arguments.a[1].b: an integer beyond 64 bits"),
        (with_arguments({"n": 0}).replace(": 0", ": " + "9" * 5000), "call 2: arguments.n: an integer beyond 64 bits"),
        (with_arguments({"n": 0}).replace(": 0", ": 1e999"), "call 2: arguments.n: a number that is not finite"),
        (with_arguments({"n": ["\ud800"]}), "call 2: arguments.n[0]: half of a surrogate pair"),
        (with_arguments({"\udc00": 1}), "call 2: arguments, a name: half of a surrogate pair"),
        (with_arguments(nested(17)), "call 2: arguments" + ".a" * 16 + ": deeper than 16 levels"),
        (with_arguments({"text": "x" * (192 << 10)}), "call 2: arguments: 196619 bytes as JSON; the limit is 196608"),
        (with_arguments({"list": [[]] * 1000}), "call 2: arguments: more than 1000 values"),
    ],
)
def test_a_slip_says_where_it_is(text: str, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_script(text, source="/srv/script.json")
    assert said in raised.value.message
    assert raised.value.message.startswith("/srv/script.json: ")
    assert "docs/operate.md" in raised.value.remedy


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": (1 << 63) - 1, "m": -(1 << 63), "flag": True, "none": None, "x": 1.5, "text": "\U0001f600"},
        nested(16),
        {"text": "x" * ((192 << 10) - len('{"text":""}'))},
        {"list": [[]] * 999},
    ],
)
def test_what_is_taken_arrives_at_the_loop_and_what_is_not_would_not(arguments: Any) -> None:
    [rule] = parse_script(with_arguments(arguments))
    assert rule.answers[1].calls[1].arguments == arguments
    call = {"id": "c", "name": "shell", "arguments": arguments}
    assert native._received(call)["arguments"] == arguments
    assert decode(encode({"p": call}).rstrip(b"\n")) == {"p": call}


def test_the_bounds_are_those_of_the_loop() -> None:
    ours = (arguments_.MAX_BYTES, arguments_.MAX_LEVELS, arguments_.MAX_VALUES)
    assert ours == (native.MAX_ARGUMENTS, native.MAX_LEVELS, native.MAX_VALUES)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["when", "answers", "text", "deltas", "tool_calls", "stop"]), inner)
        ),
        max_leaves=12,
    )
)
def test_no_json_does_more_than_be_invalid(value: Any) -> None:
    try:
        parse_script(json.dumps([{"when": "x", "answers": [value]}]))
    except Invalid as error:
        assert error.remedy


@given(st.text(max_size=1000))
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces_of(text)) == text
    assert len(pieces_of(text)) <= 4


def test_the_page_shows_a_script_that_is_one_and_tells_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operate.md").read_text()
    shown = page.partition("```json\n")[2].partition("```")[0]
    assert [rule.when for rule in parse_script(shown)] == ["deploy", "break"]
    assert all(f"| `{key}` |" in page for key in _ANSWER)
