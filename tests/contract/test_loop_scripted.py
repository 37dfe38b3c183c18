"""The native loop and the scripted provider together: every call of a turn is made once, whatever is said and killed when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.script import parse_script
from ringfence.host.models.scripted import Scripted
from tests.support.loop_host import Chat, Generate, LoopHost, said

MOST = 200
CANCELLED = said(900, "$ sleep 1000")
OWN = said(1000, "$ a\n$ b\n$ c")
FIRST, SECOND = said(1010, "and\n$ d"), said(1020, "$ e\n$ f")
THREAD = [said(n, f"$ old {n} " + "x" * 4000, "ringfence" if n % 2 else "bob") for n in range(1, 60)]


def provider(*rules: dict[str, Any]) -> Generate:
    model = Scripted(parse_script(json.dumps(rules)))

    def generate(messages: list[Chat], tools: list[dict[str, Any]]) -> dict[str, Any]:
        reply: ModelReply = asyncio.run(model.generate(messages, tools, lambda _: None))
        usage = {"input_tokens": reply.usage[0], "output_tokens": reply.usage[1]} if reply.usage else None
        return {**asdict(reply), "usage": usage}

    return generate


def commands(host: LoopHost) -> list[str]:
    return [str(arguments.get("command")) for _, arguments, _ in host.journal.values()]


def steered(first: int, second: int) -> Callable[[], LoopHost]:
    """Said during these calls of the model; the first is told to the loop, the second never."""
    plans = [(first, FIRST, first), (second, SECOND, 0)]
    return lambda: LoopHost(provider(), thread=[CANCELLED], own=OWN, steers=plans)


def compacted() -> LoopHost:
    result = {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "y" * 40_000}
    plans = [(1, FIRST, 1), (4, SECOND, 0)]
    thread = [*THREAD, CANCELLED]
    return LoopHost(
        provider(), thread=thread, own=OWN, steers=plans, window=30_000, tail=20, result=lambda n, arguments: result
    )


def played() -> LoopHost:
    """A rule, with an answer that is cut off and one that is none."""
    one = {"name": "shell", "arguments": {"command": "a"}}
    answers = [{"text": ""}, {"tool_calls": [one]}, {"text": "the ", "stop": "length"}, {"text": "end"}]
    return LoopHost(provider({"when": "deploy", "answers": answers}), thread=[CANCELLED], own=said(1000, "deploy"))


CASES = {
    "before the first call": (steered(1, 1), list("abcdef")),
    "between": (steered(2, 3), list("abcdef")),
    "with the answer": (steered(4, 5), list("abcdef")),
    "compacted": (compacted, list("abcdef")),
    "a script": (played, ["a"]),
}


@pytest.mark.parametrize(("case", "expected"), CASES.values(), ids=CASES)
def test_every_call_is_made_once(case: Callable[[], LoopHost], expected: list[str]) -> None:
    host = case()
    assert host.attempt()
    assert commands(host) == expected
    assert host.reply is not None


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("case", "expected"), CASES.values(), ids=CASES)
def test_killed_at_any_ask_every_call_is_made_once(
    case: Callable[[], LoopHost], expected: list[str], done: bool
) -> None:
    for n in range(1, MOST):
        host = case()
        if host.attempt((n, done)):
            assert n > len(host.asks), "it was killed at every ask"
            return
        assert host.attempt()
        assert commands(host) == expected, f"killed at ask {n}"
    raise AssertionError("a run with more asks than the test looks at")


def test_a_script_is_joined_to_one_reply() -> None:
    host = played()
    host.attempt()
    assert host.reply == "the end"


def test_a_loop_that_winds_down_tells_what_was_done() -> None:
    host = LoopHost(provider(), own=OWN)
    host.wind_down_at = 6
    assert host.attempt()
    assert host.reply is not None and "can only count" in host.reply
    assert 1 <= len(commands(host)) < 3
    for command in "abc":
        assert f"$ {command}" in host.reply
