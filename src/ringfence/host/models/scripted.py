"""Provider `scripted`: no model. It plays the answers of a script, turns the lines of messages into tool calls, and
says so.

Deterministic and without a memory: the same conversation gives the same answer. Without a script, or for a message
that no rule of it knows, the calls of this turn's message are made one for each answer and in their order, then those
of what its author said meanwhile. It must never pretend to have understood anything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ringfence.host.kernel.errors import Failed, Invalid, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.script import Answer, Rule, pieces_of
from ringfence.host.models.lines import Call, author_of, calls_of, cut, told_all
from ringfence.host.models.playback import Cue, cue
from ringfence.host.models.turn import Work, call_id, work_of

SAYS = "This is the scripted provider: it is no model and understands nothing."
HOW = "A line that begins with `$ ` is run as a command; `@read PATH` and `@write PATH TEXT` use the file tools."
MAX_CALLS = 180  # of one piece of work; the loop gives up at 200 answers of its model, compacting included
_READ_CHARS = 1024 * 1024  # of what is asked for: the longest message and as much again three times
_QUOTE_CHARS = 1000
_LAST_CHARS = 300
_NAMES = 20
_ERRORS: Mapping[str, type[RingfenceError]] = {"unavailable": Unavailable, "refused": Refused, "failed": Failed}


class Scripted:
    """ports.Model. `window`: tokens that it claims to take; nothing here depends on it."""

    def __init__(self, rules: Sequence[Rule] = (), window: int = 200_000) -> None:
        self._rules = tuple(rules)
        self._window = window
        # Up to 16 MiB are read, parsed and counted for each answer: one at a time, and never on the event loop.
        self._thread = ThreadPoolExecutor(1, "scripted")

    @property
    def window(self) -> int:
        return self._window

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        """Messages {"role", "text", "tool_calls", "tool_call_id"}. Without tools the answer is a count of what is
        there. Invalid: there are tools and no user message. What a script says besides: Unavailable, Refused, Failed,
        or no answer ever."""
        if tools and not any(message.get("role") == "user" for message in messages):
            raise Invalid("the conversation has no user message")
        loop = asyncio.get_running_loop()
        said, taken = await loop.run_in_executor(self._thread, _thought, self._rules, messages, tools)
        if isinstance(said, Cue):
            return await _played(said, taken, on_delta)
        for piece in pieces_of(said.text):
            on_delta(piece)
            await asyncio.sleep(0)  # those who watch get it in pieces
        return _with_usage(said, taken)


def _thought(
    rules: Sequence[Rule], messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> tuple[Cue | ModelReply, int]:
    """(what to say, tokens of the conversation)."""
    found = cue(rules, messages) if tools else None
    taken = sum(_tokens(str(m.get("text", "")), m.get("tool_calls")) for m in messages)
    if found is not None:
        return found, taken
    work = work_of(messages)
    offered = {str(tool.get("name")) for tool in tools}
    return _next(work, offered) if tools else _counted(messages, work), taken


# --- a script --------------------------------------------------------------------------------------------------------


async def _played(found: Cue, taken: int, on_delta: Callable[[str], None]) -> ModelReply:
    answer = found.answer
    await asyncio.sleep(answer.delay)
    for piece in answer.pieces:
        await asyncio.sleep(piece.delay)
        on_delta(piece.text)
    await _interrupted(answer)
    reply = ModelReply(answer.text, found.tool_calls, answer.stop, answer.usage)
    return reply if answer.usage is not None else _with_usage(reply, taken)


async def _interrupted(answer: Answer) -> None:
    if answer.hang:
        await asyncio.Event().wait()
    if answer.error is not None:
        code, message = answer.error
        raise _ERRORS[code](message, remedy="the script of the scripted provider says so")


# --- lines -----------------------------------------------------------------------------------------------------------


def _calls(work: Work) -> tuple[list[Call], list[str]]:
    """Of all that is asked, in order. A message that comes later adds to the end: the number of a call never
    changes."""
    calls: list[Call] = []
    others: list[str] = []
    left = _READ_CHARS
    for text in work.asked:
        whole = len(text) <= left
        its, rest = calls_of(text if whole else text[:left].rpartition("\n")[0])  # no half command is run
        left = left - len(text) if whole else 0
        calls += its
        others += rest
    return calls, others


def _next(work: Work, offered: set[str]) -> ModelReply:
    every, others = _calls(work)
    calls = [call for call in every if call.name in offered][:MAX_CALLS]
    if work.done < len(calls):
        call, n = calls[work.done], work.done + 1
        wanted = {"id": call_id(work, n), "name": call.name, "arguments": call.arguments}
        return ModelReply(text="", tool_calls=[wanted], stop="tool_calls")
    parts = [SAYS]
    if not every:
        parts.append(f"It did nothing. {HOW}")
    if others:
        quoted = "\n".join(f"> {line}" for line in others)
        parts.append(f"It did not read:\n{cut(quoted, _QUOTE_CHARS)}")
    unused = len(every) - len(calls)
    if unused:
        parts.append(f"{unused} calls were left out: their tool is not offered, or they are more than {MAX_CALLS}.")
    parts += told_all((call, work.results.get(n)) for n, call in enumerate(calls, 1))
    return ModelReply(text="\n\n".join(parts), tool_calls=[], stop="end")


def _counted(messages: Sequence[Mapping[str, Any]], work: Work) -> ModelReply:
    """What is asked without tools: to sum up, because there is no room or no time. It can count, and no more."""
    texts = [str(m.get("text", "")) for m in messages if m.get("role") == "user"]
    spoken = [text for text in texts if author_of(text)] or texts
    names = list(dict.fromkeys(name for text in spoken if (name := author_of(text))))
    people = f" by {', '.join(names[:_NAMES])}" if names else ""
    if len(names) > _NAMES:
        people += f" and {len(names) - _NAMES} more"
    replies = sum(m.get("role") == "assistant" and bool(m.get("text")) for m in messages)
    last = f"; last: {cut(spoken[-1], _LAST_CHARS)}" if spoken else ""
    parts = [
        f"{SAYS} It was asked without tools and can only count: {len(spoken)} messages{people}, {replies} answers{last}"
    ]
    calls = _calls(work)[0][:MAX_CALLS]
    if work.done:
        parts += told_all((call, work.results.get(n)) for n, call in enumerate(calls[: work.done], 1))
        left = [cut(call.line, _LAST_CHARS) for call in calls[work.done :]]
        parts += ["Not done:\n" + "\n".join(left[:_NAMES])] if left else []
    return ModelReply(text="\n\n".join(parts), tool_calls=[], stop="end")


def _with_usage(reply: ModelReply, taken: int) -> ModelReply:
    """Tokens as bytes / 4, which is about right for English and what a loop estimates with."""
    return ModelReply(reply.text, reply.tool_calls, reply.stop, (taken, _tokens(reply.text, reply.tool_calls)))


def _tokens(text: str, calls: object) -> int:
    size = len(text.encode("utf-8", "replace")) + (len(json.dumps(calls)) if calls else 0)
    return -(-size // 4)
