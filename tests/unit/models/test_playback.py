"""Scripts: which answer is given, in pieces, late, never, or as an error."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from ringfence.host.kernel.errors import Failed, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.script import parse_script
from ringfence.host.models.scripted import SAYS, Scripted
from tests.support.conversation import TOOLS, Conversation, heard, message


def scripted(*answers: dict[str, Any], when: str = "deploy", **more: list[dict[str, Any]]) -> Scripted:
    rules = [{"when": when, "answers": list(answers)}, *({"when": k, "answers": v} for k, v in more.items())]
    return Scripted(parse_script(json.dumps(rules)))


def shell(*commands: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "shell", "arguments": {"command": command}} for command in commands]}


async def test_answers_follow_one_another() -> None:
    model = scripted({**shell("a", "b"), "text": "first two"}, shell("c"), {"text": "all is well"})
    conversation = Conversation(model, "alice: please deploy it")
    assert (await conversation.ask()).text == "first two"
    assert await conversation.to_the_end() == "all is well"
    assert conversation.commands == ["a", "b", "c"]
    assert len({call["id"] for call in conversation.calls}) == 3


async def test_a_message_that_no_rule_knows_is_answered_by_its_lines() -> None:
    model = scripted(shell("a"), {"text": "done"})
    conversation = Conversation(model, "alice: $ ls")
    assert SAYS in await conversation.to_the_end()
    assert conversation.commands == ["ls"]


async def test_the_first_rule_that_knows_the_message_has_it() -> None:
    model = scripted({"text": "one"}, when="a", b=[{"text": "two"}])
    assert await Conversation(model, "a and b").to_the_end() == "one"
    assert await Conversation(model, "b only").to_the_end() == "two"


async def test_an_earlier_turn_does_not_choose_the_answer() -> None:
    """Neither one that was answered, at once or after steps, nor one that ended without a reply."""
    for history in (["quick"], ["done"], []):
        model = scripted(shell("a"), {"text": "done"}, quick=[{"text": "quick"}])
        conversation = Conversation(model, "alice: quick" if history == ["quick"] else "alice: deploy")
        for reply in history:
            conversation.agent(reply)
        conversation.user("bob: $ ls")
        await conversation.to_the_end()
        assert conversation.commands == ["ls"], history


async def test_the_same_words_again_begin_anew() -> None:
    conversation = Conversation(scripted(shell("a"), {"text": "done"}), "alice: deploy")
    for _ in range(2):
        assert await conversation.to_the_end() == "done"
        conversation.user("alice: deploy")
    assert conversation.commands == ["a", "a"]


async def test_what_no_rule_knows_does_not_disturb_a_turn_under_way() -> None:
    """A steer; a loop that asks for the rest of what was cut off, or for an answer where there was none."""
    model = scripted({"text": "part 1, ", "stop": "length"}, {"text": ""}, shell("a"), {"text": "the end"})
    conversation = Conversation(model, "alice: deploy")
    assert (await conversation.ask()).stop == "length"
    conversation.user("Go on.")
    assert (await conversation.ask()).text == ""
    conversation.user("Please answer.")
    await conversation.ask()
    conversation.user("alice: hurry up")
    assert (await conversation.ask()).text == "the end"
    assert conversation.commands == ["a"]


async def test_answers_that_are_none_are_counted_by_the_notes_of_the_loop() -> None:
    """It keeps no message for them."""
    conversation = Conversation(scripted({"text": ""}, {"text": " "}, {"text": "here"}), "alice: deploy")
    for note in ("[Answer now]", "[Answer now]"):
        assert (await conversation.ask()).text.strip() == ""
        conversation.messages[-1] = message("system", note)
    assert await conversation.to_the_end() == "here"


async def test_steers_before_the_first_answer_leave_the_rule_in_force() -> None:
    conversation = Conversation(scripted(shell("a"), {"text": "done"}), "alice: deploy")
    conversation.messages.append(message("system", "[Said meanwhile]"))
    conversation.user("alice: quickly")
    conversation.user("alice: please")
    assert await conversation.to_the_end() == "done"
    assert conversation.commands == ["a"]


async def test_a_steer_with_a_rule_of_its_own_begins_it() -> None:
    model = scripted(shell("a"), shell("b"), {"text": "done"}, stop=[{"text": "stopped"}])
    conversation = Conversation(model, "alice: deploy")
    await conversation.ask()
    conversation.user("alice: stop")
    assert await conversation.to_the_end() == "stopped"


async def test_a_loop_that_dropped_old_steps_is_given_the_next_answer() -> None:
    conversation = Conversation(scripted(shell("a"), shell("b"), shell("c"), {"text": "done"}), "alice: deploy")
    for _ in range(3):
        await conversation.ask()
    del conversation.messages[2:6]
    assert await conversation.to_the_end() == "done"


async def test_past_the_end_is_an_error_that_says_so() -> None:
    conversation = Conversation(scripted(shell("a")), "alice: deploy")
    await conversation.ask()
    with pytest.raises(Failed, match="1 answers for 'deploy'"):
        await conversation.ask()


@pytest.mark.parametrize(("code", "error"), [("unavailable", Unavailable), ("refused", Refused), ("failed", Failed)])
async def test_errors_come_after_what_was_said_before(code: str, error: type[RingfenceError]) -> None:
    model = scripted({"deltas": ["half a "], "error": {"code": code, "message": "no more"}})
    said: list[str] = []
    with pytest.raises(error, match="no more"):
        await model.generate([message("user", "deploy")], TOOLS, said.append)
    assert said == ["half a "]


async def test_a_model_that_hangs_has_said_its_pieces_and_can_be_left() -> None:
    said: list[str] = []
    model = scripted({"deltas": ["hm"], "hang": True})
    hanging = asyncio.ensure_future(model.generate([message("user", "deploy")], TOOLS, said.append))
    async with asyncio.timeout(30):
        while not said:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert said == ["hm"] and not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_pieces_come_with_their_delays() -> None:
    model = scripted({"delay_seconds": 0.1, "deltas": ["a", {"text": "b", "delay_seconds": 0.1}]})
    began, at = time.monotonic(), list[float]()
    reply = await model.generate([message("user", "deploy")], TOOLS, lambda _: at.append(time.monotonic() - began))
    assert reply.text == "ab"
    assert len(at) == 2 and at[0] >= 0.1 and at[1] >= 0.2


async def test_usage_is_what_the_script_says() -> None:
    model = scripted({"text": "x", "usage": {"input_tokens": 150_000, "output_tokens": 7}})
    assert (await model.generate([message("user", "deploy")], TOOLS, heard)).usage == (150_000, 7)


async def test_tools_that_do_not_exist_are_asked_for_all_the_same() -> None:
    reply = await Conversation(scripted({"tool_calls": [{"name": "teleport"}]}), "deploy").ask()
    assert (reply.tool_calls[0]["name"], reply.tool_calls[0]["arguments"]) == ("teleport", {})


async def test_without_tools_no_script_is_played() -> None:
    """Summing up makes no calls and uses up no answer."""
    conversation = Conversation(scripted(shell("a"), {"text": "done"}), "alice: deploy", tools=())
    assert "can only count: 1 messages by alice" in (await conversation.ask()).text
