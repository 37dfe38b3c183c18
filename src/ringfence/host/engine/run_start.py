"""What a new executor is told: the fields of the wire's run.start, cut to fit one frame. Pure but for reading the store.

Recorded steps are not sent: the loop asks again from its checkpoint and is answered from the journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringfence.host.engine.parts import Parts, weak
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import TooLarge
from ringfence.host.kernel.ids import ThreadId, TurnId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.posture import Posture, paragraph
from ringfence.host.kernel.runs import Run, StepState
from ringfence.host.kernel.threads import Message, Thread

TAIL_BYTES = 256 * 1024  # of text, UTF-8 (architecture.md section 6)
FRAME_BYTES = 1 << 20  # of the whole run.start on the wire, in ASCII JSON
_OVERHEAD = 16 * 1024  # names, ids and the envelope
_PAGE = 200
_WORST = 12  # bytes of ASCII JSON that one character may take: two escapes of six


def ascii_bytes(text: str) -> int:
    """Length of the text as it travels: ASCII JSON."""
    return len(json.dumps(text))


def next_step(steps: Sequence[Any]) -> int:
    """The first number that the journal has no end for."""
    ended = {step.n for step in steps if step.state is not StepState.BEGUN}
    n = 1
    while n in ended:
        n += 1
    return n


def conversation(messages: Sequence[Message], turn: TurnId) -> list[Message]:
    """The messages that belong before the turn's own, and that one last. Messages that were posted after it and wait
    for their own turns are left out, and so are replies to them."""
    own = next(m for m in messages if m.turn == turn and m.author is not None)
    earlier_turns = {m.turn for m in messages if m.author is not None and m.cursor < own.cursor}
    before = [m for m in messages if m.turn in earlier_turns or (m.cursor < own.cursor and m.turn != turn)]
    return [*before, own]


def tail(messages: Sequence[Message], room: int, *, may_cut: bool) -> list[dict[str, Any]]:
    """The newest of `messages` (the last one is the turn's own) within TAIL_BYTES of text and `room` of the frame.
    Should not even the last one fit, it is cut when the loop has it in its checkpoint (`may_cut`), else TooLarge."""
    chosen: list[dict[str, Any]] = []
    text_left, frame_left = TAIL_BYTES, room
    for message in reversed(messages):
        text_left -= len(message.text.encode("utf-8", "surrogatepass"))
        frame_left -= ascii_bytes(message.text) + ascii_bytes(message.author_name) + 80
        if chosen and (text_left < 0 or frame_left < 0):
            break
        if frame_left < 0 and may_cut:
            message = replace(message, text=message.text[: max(0, room) // _WORST])
        elif frame_left < 0:
            raise TooLarge(
                f"the message has {ascii_bytes(message.text)} bytes as JSON; the loop can be given {room}",
                remedy="put the text into a file of the box and name the file",
            )
        role = "agent" if message.author is None else "user"
        chosen.append({"role": role, "author": message.author_name, "text": message.text, "cursor": message.cursor})
    return list(reversed(chosen))


async def _messages(parts: Parts, thread: ThreadId, turn: TurnId) -> list[Message]:
    found: list[Message] = []
    before: int | None = None
    while True:
        page = await parts.store.threads.messages(thread, before, _PAGE)
        found = [*page, *found]
        if len(page) < _PAGE or (_has_own(found, turn) and len(found) >= 2 * _PAGE):
            return found
        before = page[0].cursor


def _has_own(messages: Sequence[Message], turn: TurnId) -> bool:
    return any(m.turn == turn and m.author is not None for m in messages)


async def run_start(parts: Parts, run: Run, token: str, user: User, box: Box, thread: Thread) -> Mapping[str, Any]:
    """TooLarge."""
    checkpoint = await parts.store.steps.checkpoint(run.id)
    steps = await parts.store.steps.all(run.id)
    posture = paragraph(
        Posture(
            driver=parts.driver.name,
            mode=parts.config.mode,
            weak=tuple(weak(parts)),
            network=False,
            memory_bytes=box.limits.memory,
            pids=box.limits.pids,
        )
    )
    state = checkpoint.state if checkpoint is not None else None
    room = FRAME_BYTES - _OVERHEAD - ascii_bytes(posture) - (ascii_bytes(state) if state is not None else 0)
    messages = conversation(await _messages(parts, run.thread, run.turn), run.turn)
    return {
        "run": run.id,
        "token": token,
        "thread": thread.name,
        "actor": user.name,
        "epoch": run.epoch,
        "messages": tail(messages, room, may_cut=state is not None),
        "checkpoint": state,
        "next_step": next_step(steps),
        "model": parts.config.model,
        "posture": posture,
    }
