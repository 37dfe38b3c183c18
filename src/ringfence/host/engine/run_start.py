"""What a new executor is told: the fields of the wire's run.start, cut to fit one frame. Pure but for reading the store.

Recorded steps are not sent: the loop asks again from its checkpoint and is answered from the journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringfence.host.engine.history import (
    FRAME_BYTES,
    OVERHEAD,
    TAIL_BYTES,
    History,
    ascii_bytes,
    cut,
    first,
    frame_bytes,
    newest,
    spoken,
)
from ringfence.host.engine.parts import Parts, weak
from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import NotFound, TooLarge, Unavailable
from ringfence.host.kernel.posture import Posture, paragraph
from ringfence.host.kernel.reads import Brief
from ringfence.host.kernel.runs import Run, StepState
from ringfence.host.kernel.threads import Message, Summary

_GONE = "Is not there any more: what it was used for before is answered, a new call is refused."


def next_step(steps: Mapping[int, StepState]) -> int:
    """The first number that the journal has no end for."""
    n = 1
    while steps.get(n, StepState.BEGUN) is not StepState.BEGUN:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class Told:
    """Of the thread, what fits."""

    summary: dict[str, Any] | None
    messages: list[dict[str, Any]]
    earlier: int
    steers: list[dict[str, Any]]


def own_message(own: Message, room: int, *, may_cut: bool) -> dict[str, Any]:
    """The turn's own. One that does not fit is cut when the loop has it in its checkpoint (`may_cut`), else TooLarge."""
    item = spoken(own)
    if frame_bytes(item) <= room:
        return item
    if not may_cut:
        raise TooLarge(
            f"the message has {ascii_bytes(own.text)} bytes as JSON; the loop can be given {room}",
            remedy="put the text into a file of the box and name the file",
        )
    return spoken(cut(own, room))


async def told(history: History, said: Sequence[Message], summary: Summary | None, room: int, *, may_cut: bool) -> Told:
    """`said`: the turn's own message and its steers. What matters most is put in first: its own message, the summary,
    the steers, then the tail before it. A summary that does not fit is left out, and what it says is in `earlier`."""
    own, steers = said[0], said[1:]
    message = own_message(own, room, may_cut=may_cut)
    room -= frame_bytes(message)
    brief, after = None, 0
    if summary is not None and summary.cursor < own.cursor:  # else a later turn made it: it knows what came after us
        brief = {"cursor": summary.cursor, "text": summary.text}
        if frame_bytes(brief) > room:
            brief = None
        else:
            room, after = room - frame_bytes(brief), summary.cursor
    given = first(steers, room)
    room -= sum(frame_bytes(item) for item in given)
    text = TAIL_BYTES - len(own.text.encode("utf-8", "surrogatepass"))
    found, _ = await history.newest(None, after, None, max(0, text), max(0, room))
    chosen = newest(found, text, room)
    left_out = found[: len(found) - len(chosen)]
    earlier = left_out[-1].cursor + 1 if left_out else 0
    return Told(brief, [*chosen, message], earlier, given)


async def specs(parts: Parts, run: Run, brief: Brief) -> list[dict[str, Any]]:
    """Of the tools that the host carries out: fields of wire.messages.ToolSpec, by name. With those that are declared no more
    and that the run has used: a loop that does not know them would ask for its own steps in another way."""
    found = [tool.capability for _, tool in sorted(parts.capabilities.items())]
    there = [{"name": one.name, "description": one.summary, "parameters": dict(one.schema)} for one in found]
    rows = await parts.store.effects.of_run(run.id) if brief.steps else []
    gone = sorted({row.capability for row in rows} - set(parts.capabilities))
    return [*there, *({"name": name, "description": _GONE, "parameters": {"type": "object"}} for name in gone)]


async def run_start(parts: Parts, run: Run, token: str, box: Box, brief: Brief) -> Mapping[str, Any]:
    """TooLarge; Unavailable: the server has no such model."""
    config, said = parts.config, brief.said
    model = parts.models.get(config.model)
    if model is None:
        raise Unavailable(f"the model {config.model!r} is not there", remedy="ringfence config check")
    if not said:
        raise NotFound(f"turn {run.turn} has no message")
    posture = paragraph(
        Posture(
            driver=parts.driver.name,
            mode=config.mode,
            weak=tuple(weak(parts)),
            network=False,
            memory_bytes=box.limits.memory,
            pids=box.limits.pids,
            disk_bytes=box.limits.disk,
        )
    )
    state = brief.checkpoint.state if brief.checkpoint is not None else None
    tools = await specs(parts, run, brief)
    room = FRAME_BYTES - OVERHEAD - ascii_bytes(posture) - len(json.dumps(tools))
    room -= ascii_bytes(state) if state is not None else 0
    history = History(parts.store, run.thread, said[0], brief.tail)
    seen = await told(history, said, brief.summary, max(0, room), may_cut=state is not None)
    return {
        "run": run.id,
        "token": token,
        "thread": brief.thread.name,
        "actor": brief.user.name,
        "epoch": run.epoch,
        "summary": seen.summary,
        "messages": seen.messages,
        "earlier": seen.earlier,
        "steers": seen.steers,
        "checkpoint": state,
        "next_step": next_step(brief.steps),
        "model": config.model,
        "window": model.window,
        "tools": tools,
        "posture": posture,
    }
