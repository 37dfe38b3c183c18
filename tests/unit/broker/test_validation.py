"""Strict types: what a value of JSON may and may not stand for."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.host.broker.validation import Shapes
from ringfence.host.kernel.errors import Failed
from ringfence.wire.framing import RemoteProtocolError
from ringfence.wire.messages import (
    METHODS,
    Attachment,
    ChatMessage,
    Finished,
    Generated,
    HelloReply,
    LiveRun,
    ModelGenerate,
    ThreadMessage,
    ToolCall,
    ToolSpec,
    Usage,
)

SHAPES = Shapes()
HELLO: dict[str, Any] = {
    "generation": 1,
    "digest": "d",
    "guest": "g",
    "landlock": 6,
    "seccomp": 1,
    "runs": [{"run": "r", "token": "t"}],
    "commands": [],
    "orphans": [5],
}


def test_nested_dataclasses_come_out_whole() -> None:
    reply = SHAPES.result(METHODS["hello"], HELLO)
    assert reply == HelloReply(1, "d", "g", 6, 1, [LiveRun("r", "t")], [], [5])
    call: dict[str, Any] = {"id": "1", "name": "shell", "arguments": {"command": "true", "deep": [{"x": 1.5}]}}
    message = {"role": "assistant", "text": "", "tool_calls": [call]}
    tool: dict[str, Any] = {"name": "shell", "description": "d", "parameters": {"type": "object"}}
    asked = SHAPES.params(
        METHODS["model.generate"],
        {"token": "t", "model": "m", "call": 1, "messages": [message], "blob": None, "tools": [tool]},
    )
    chat = [ChatMessage("assistant", "", [ToolCall(**call)])]
    assert asked == ModelGenerate("t", "m", 1, chat, None, [ToolSpec(**tool)])
    reply = {"text": "", "tool_calls": [], "stop": "end", "usage": {"input_tokens": 1, "output_tokens": 2}}
    assert SHAPES.result(METHODS["model.generate"], reply) == Generated("", [], "end", Usage(1, 2))


def test_what_the_host_says_is_whole_and_of_the_rows_type() -> None:
    message = ThreadMessage("user", "alice", "hi", 3, [Attachment("a", 1)])
    plain = {"role": "user", "author": "alice", "text": "hi", "cursor": 3}
    finish = METHODS["run.finish"]
    assert SHAPES.answer(finish, Finished([message])) == {
        "steers": [{**plain, "attachments": [{"path": "a", "size": 1}]}]
    }
    assert SHAPES.answer(finish, {"steers": (plain,)}) == {"steers": [{**plain, "attachments": []}]}
    assert SHAPES.answer(METHODS["run.fail"], None) == {}
    steer = METHODS["run.steer"]
    assert SHAPES.say(steer, {"run": "r", "message": message})["message"]["attachments"] == [{"path": "a", "size": 1}]
    wrong: list[Any] = [None, {}, {"steers": [plain], "more": 1}, {"steers": [{**plain, "cursor": True}]}, [], "x"]
    for answer in wrong:
        with pytest.raises(Failed):
            SHAPES.answer(finish, answer)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": True},
        {"generation": 1.0},
        {"generation": "1"},
        {"generation": None},
        {"digest": 1},
        {"orphans": [True]},
        {"orphans": [1.0]},
        {"orphans": {"0": 5}},
        {"runs": [{"run": "r"}]},
        {"runs": [{"run": "r", "token": "t", "user": "bob"}]},
        {"runs": [["r", "t"]]},
        {"commands": [{"key": "k", "state": "paused"}]},
        {"more": 1},
    ],
)
def test_nothing_is_converted_and_nothing_is_extra(change: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        SHAPES.result(METHODS["hello"], {**HELLO, **change})


@pytest.mark.parametrize("name", list(HELLO))
def test_every_field_is_wanted(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=name):
        SHAPES.result(METHODS["hello"], {key: value for key, value in HELLO.items() if key != name})


@pytest.mark.parametrize("stream", [True, 1.0, "1", 3, None])
def test_a_literal_number_is_that_number(stream: object) -> None:
    good = {"key": "k", "stream": 1, "data_b64": ""}
    assert SHAPES.params(METHODS["cmd.output"], good).stream == 1
    with pytest.raises(RemoteProtocolError):
        SHAPES.params(METHODS["cmd.output"], {**good, "stream": stream})


def test_what_was_sent_is_not_in_the_error() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        SHAPES.params(METHODS["run.finish"], {"token": ["a-secret-token"], "text": "", "seen": 1})
    assert "secret" not in str(caught.value)
    assert "token" in str(caught.value)


def test_every_row_has_a_validator() -> None:
    for method in METHODS.values():
        with pytest.raises(RemoteProtocolError):
            SHAPES.params(method, {"no such": "field"})
