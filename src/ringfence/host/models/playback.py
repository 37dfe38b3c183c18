"""Which answer of a script belongs to a conversation. Pure and without a memory: the conversation alone decides, so
that a loop that was killed and asks again is given the same answer.

The newest user message that some rule's `when` is contained in chooses the rule; how many answers of the rule follow
it in the conversation chooses the answer. A message that no rule knows (a steer, `go on`) leaves the rule of the
message before it in force as long as that one's turn has not ended.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.script import Answer, Rule
from ringfence.host.models.turn import same_turn

_ID = re.compile(r"said_\d+_(\d+)_\d+\Z")


@dataclass(frozen=True, slots=True)
class Cue:
    answer: Answer
    tool_calls: tuple[dict[str, Any], ...]  # {"id", "name", "arguments"}


def cue(rules: Sequence[Rule], messages: Sequence[Mapping[str, Any]]) -> Cue | None:
    """None: no rule's turn. Failed: the rule has no further answer."""
    users = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    for at in reversed(users):
        text = str(messages[at].get("text", ""))
        rule = next((rule for rule in rules if rule.when in text), None)
        if rule is not None:
            given = _given(rule, messages[at + 1 :])
            return None if given is None else _cue(rule, given, users.index(at) + 1)
        if not same_turn(messages, at):
            return None
    return None


def _cue(rule: Rule, given: int, user: int) -> Cue:
    if given >= len(rule.answers):
        raise Failed(
            f"the script has {len(rule.answers)} answers for {rule.when!r}, and the loop asks for one more",
            remedy="let the last answer have a text and no tool_calls",
        )
    answer = rule.answers[given]
    calls = tuple(
        {"id": f"said_{user}_{given + 1}_{n}", "name": call.name, "arguments": dict(call.arguments)}
        for n, call in enumerate(answer.calls, 1)
    )
    return Cue(answer, calls)


def _given(rule: Rule, after: Sequence[Mapping[str, Any]]) -> int | None:
    """How many of the rule's answers `after` has. The ids of tool calls say which answer made them, as a loop that
    runs out of room may have dropped some; a loop that was given an answer without text and call keeps a note of its
    own instead. None: an assistant message is no answer of the rule, or one that ended the turn."""
    given = 0
    for message in after:
        if message.get("role") == "system" and given < len(rule.answers) and rule.answers[given].empty:
            given += 1
        if message.get("role") != "assistant":
            continue
        calls = message.get("tool_calls") or ()
        found = _ID.match(str(calls[0].get("id", ""))) if calls else None
        given = int(found[1]) if found else given + 1
        if given > len(rule.answers):
            return None
        answer = rule.answers[given - 1]
        if answer.final or bool(answer.calls) != bool(calls):
            return None
        if not calls and answer.text != str(message.get("text", "")):
            return None
    return given
