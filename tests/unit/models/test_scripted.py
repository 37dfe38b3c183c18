"""The scripted provider without a script: deterministic, one call for each answer, honest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.models.lines import calls_of
from ringfence.host.models.scripted import MAX_CALLS, SAYS, Scripted
from tests.support.conversation import TOOLS, Conversation, heard, message


async def talk(text: str, results: Mapping[str, Any] | None = None) -> tuple[list[dict[str, Any]], str]:
    """(calls made, final text), every call answered by `results` of its number."""
    conversation = Conversation(Scripted(), text)
    said = dict(results or {})

    def result(call: Mapping[str, Any]) -> Any:
        return said.get(str(len(conversation.calls)), {"ok": True, "exit_code": 0, "reason": "exit"})

    final = await conversation.to_the_end(result)
    return conversation.calls, final


async def test_lines_become_calls_one_after_another() -> None:
    results = {
        "1": {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "one\n", "stderr": ""},
        "2": {"ok": False, "exit_code": 3, "reason": "exit", "stdout": "", "stderr": "bad\n"},
    }
    calls, text = await talk("please:\n$ echo one\nthen\n$ exit 3\n@write f hello there\n@read f", results)
    assert [(c["name"], c["arguments"]) for c in calls] == [
        ("shell", {"command": "echo one"}),
        ("shell", {"command": "exit 3"}),
        ("write", {"path": "f", "text": "hello there"}),
        ("read", {"path": "f"}),
    ]
    assert len({call["id"] for call in calls}) == 4
    assert "no model" in text
    assert "> please:\n> then" in text
    assert "$ echo one\n[exit code 0]\none" in text
    assert "$ exit 3\n[exit code 3]\nbad" in text


async def test_without_calls_it_says_that_it_did_nothing() -> None:
    calls, text = await talk("Write me a poem.")
    assert calls == []
    assert "scripted provider" in text
    assert "did nothing" in text
    assert "> Write me a poem." in text


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            {"ok": False, "exit_code": None, "signal": None, "reason": "interrupted", "message": "not run again"},
            "[interrupted not run again]",
        ),
        ({"ok": False, "exit_code": None, "signal": 9, "reason": "exit"}, "[ended by signal 9]"),
        ({"ok": False, "exit_code": None, "signal": 9, "reason": "oom", "message": "limit"}, "[oom limit]"),
        ({"ok": False, "exit_code": 124, "signal": None, "reason": "timeout"}, "[timeout exit code 124]"),
        ({"ok": False, "error": "refused: no"}, "[failed]\nrefused: no"),
        ("not an object", "not an object"),
    ],
)
async def test_ends_are_told(result: Any, said: str) -> None:
    _, text = await talk("$ x", {"1": result})
    assert said in text


async def test_a_user_message_is_needed() -> None:
    with pytest.raises(Invalid):
        await Scripted().generate([message("assistant", "x")], TOOLS, heard)


def test_what_is_a_call() -> None:
    assert calls_of("$\n$ \n $ x\n$x\n@read\n@readme x\n@write")[0] == []
    assert [call.line for call in calls_of("alice: $ ls\nbob: $ ls")[0]] == ["$ ls"]
    assert [call.arguments for call in calls_of("@write p")[0]] == [{"path": "p", "text": ""}]
    assert calls_of("alice: hello") == ([], ["alice: hello"])


async def test_it_is_bounded() -> None:
    huge = {
        str(n): {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "y" * 100_000 + f"end{n}"}
        for n in range(1, MAX_CALLS + 99)
    }
    calls, text = await talk("\n".join(f"$ {n}" for n in range(MAX_CALLS + 15)), huge)
    assert len(calls) == MAX_CALLS
    assert "15 calls were left out" in text
    assert "end1\n" in text
    assert len(text) < 110_000


async def test_a_tool_that_is_not_offered_is_not_used() -> None:
    conversation = Conversation(Scripted(), "$ ls\n@read f", tools=[TOOLS[1]])
    assert "1 calls were left out" in await conversation.to_the_end()
    assert [call["name"] for call in conversation.calls] == ["read"]


async def test_what_it_says_comes_in_pieces_and_is_counted() -> None:
    conversation = Conversation(Scripted(), "x" * 400)
    pieces: list[str] = []
    reply = await Scripted().generate(conversation.messages, TOOLS, pieces.append)
    assert 2 <= len(pieces) <= 4
    assert "".join(pieces) == reply.text
    assert reply.usage == (3 + 100, -(-len(reply.text) // 4))  # 10 and 400 bytes at four a token, rounded up
    called = await Scripted().generate([message("user", "$ ls")], TOOLS, pieces.append)
    assert called.usage is not None and called.usage[1] > 10, "the call itself is output"
    assert Scripted(window=5000).window == 5000


# --- turns and steers ------------------------------------------------------------------------------------------------


async def test_earlier_turns_are_done_with() -> None:
    conversation = Conversation(Scripted(), "alice: $ old")
    conversation.agent("$ mine")
    conversation.user("alice: $ new")
    await conversation.to_the_end()
    assert conversation.commands == ["new"]


async def test_a_turn_that_ended_without_a_reply_is_not_done_again() -> None:
    """Cancelled or failed; perhaps of somebody else, whose lines must not run in this box."""
    conversation = Conversation(Scripted(), "alice: $ sleep 1000", "bob: $ echo bob")
    await conversation.to_the_end()
    assert conversation.commands == ["echo bob"]


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_steer_makes_no_call_lost_or_done_twice(after: int) -> None:
    """It comes when one, two or all three calls were made: theirs are made first, then its own."""
    conversation = Conversation(Scripted(), "alice: $ a\n$ b\n$ c")
    for _ in range(after):
        await conversation.ask()
    conversation.user("alice: and\n$ d\n$ e")
    text = await conversation.to_the_end()
    assert conversation.commands == ["a", "b", "c", "d", "e"]
    assert "> alice: and" in text and text.index("$ c\n[exit code 0]") < text.index("$ d\n[exit code 0]")


async def test_two_steers_are_done_in_their_order() -> None:
    conversation = Conversation(Scripted(), "alice: $ a\n$ b")
    await conversation.ask()
    conversation.user("alice: $ c")
    conversation.user("alice: $ d")
    await conversation.to_the_end()
    assert conversation.commands == ["a", "b", "c", "d"]


async def test_steers_before_the_first_call_are_told_from_turns_without_a_reply() -> None:
    """By the note that the loop puts between the turn's own message and what was said meanwhile."""
    conversation = Conversation(Scripted(), "alice: $ cancelled", "alice: $ a")
    conversation.messages.append(message("system", "[Said meanwhile]"))
    conversation.user("alice: $ b")
    conversation.user("alice: $ c")
    await conversation.ask()
    conversation.user("alice: $ d")
    await conversation.to_the_end()
    assert conversation.commands == ["a", "b", "c", "d"]


async def test_the_same_words_as_a_turn_that_was_cancelled_are_done_once() -> None:
    conversation = Conversation(Scripted(), "alice: $ a\n$ b", "alice: $ a\n$ b")
    await conversation.to_the_end()
    assert conversation.commands == ["a", "b"]


async def test_a_history_that_becomes_a_summary_in_mid_turn_changes_nothing() -> None:
    conversation = Conversation(Scripted(), "alice: $ old", "bob: $ older", "alice: $ a\n$ b")
    await conversation.ask()
    conversation.messages[1:3] = [message("assistant", "[a summary]")]
    await conversation.to_the_end()
    assert conversation.commands == ["a", "b"]


async def test_notes_of_the_loop_are_nobodys_words() -> None:
    conversation = Conversation(Scripted(), "alice: $ a\n$ b")
    await conversation.ask()
    conversation.messages.append(message("system", "$ rm x"))
    await conversation.to_the_end()
    assert conversation.commands == ["a", "b"]


async def test_a_steer_after_the_answer_is_a_piece_of_work_of_its_own() -> None:
    """The loop was about to finish and is told that more was said."""
    conversation = Conversation(Scripted(), "alice: $ a")
    await conversation.to_the_end()
    conversation.user("alice: $ b\n$ c")
    text = await conversation.to_the_end()
    assert conversation.commands == ["a", "b", "c"]
    assert "$ a" not in text and "$ c\n" in text
    assert len({call["id"] for call in conversation.calls}) == 3


async def test_a_loop_that_dropped_old_steps_goes_on_where_it_was() -> None:
    conversation = Conversation(Scripted(), "alice: $ a\n$ b\n$ c\n$ d")
    for _ in range(3):
        await conversation.ask()
    del conversation.messages[2:6]  # the first two calls with their results
    text = await conversation.to_the_end()
    assert conversation.commands == ["a", "b", "c", "d"]
    assert "$ a\n[its result was dropped to make room]" in text
    assert "$ c\n[exit code 0]" in text


# --- without tools ---------------------------------------------------------------------------------------------------


async def test_asked_without_tools_it_counts_and_claims_no_more() -> None:
    conversation = Conversation(Scripted(), "alice: $ ls", tools=())
    conversation.agent("files")
    conversation.user("bob: thanks\n$ rm x")
    conversation.user("Sum up what was said.")
    reply = await conversation.ask()
    assert (reply.stop, reply.tool_calls) == ("end", [])
    assert reply.text.startswith(SAYS)
    assert "2 messages by alice, bob, 1 answers; last: bob: thanks" in reply.text


async def test_without_people_it_counts_too() -> None:
    reply = await Scripted().generate([message("assistant", "x")], (), heard)
    assert "0 messages, 1 answers" in reply.text and "last" not in reply.text


async def test_winding_down_tells_what_was_done_and_what_was_not() -> None:
    conversation = Conversation(Scripted(), "alice: $ a\n$ b\n$ c")
    await conversation.ask()
    conversation.tools = ()
    conversation.user("There is no more time.")
    text = (await conversation.ask()).text
    assert "$ a\n[exit code 0]" in text
    assert "Not done:\n$ b\n$ c" in text
    assert conversation.commands == ["a"]


async def test_a_count_is_short_however_long_the_thread() -> None:
    said = [f"user{n}: " + "x" * 5000 for n in range(300)]
    conversation = Conversation(Scripted(), *said, tools=())
    text = (await conversation.ask()).text
    assert "300 messages by user0," in text and "and 280 more" in text
    assert len(text) < 2000


async def test_results_are_read_by_their_call() -> None:
    """Not by their place: one that is missing does not shift the others."""
    conversation = Conversation(Scripted(), "alice: $ a\n$ b")
    await conversation.ask(lambda _: {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "of a"})
    await conversation.ask(lambda _: {"ok": True, "exit_code": 0, "reason": "exit", "stdout": "of b"})
    conversation.messages = [m for m in conversation.messages if "of a" not in json.dumps(m)]
    text = await conversation.to_the_end()
    assert "of b" in text.partition("$ b")[2] and "dropped" in text.partition("$ b")[0]
