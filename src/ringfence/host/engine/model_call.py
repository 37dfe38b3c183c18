"""One call of the model, for as long as somebody wants its answer. Knows no model, and decides no deadline.

It ends when its run is no longer at work, and at the soft deadline, so that a model that hangs cannot eat the time in
which the loop sums up. Past it no call offers tools, and one without them is the loop's last words: it is let be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ringfence.host.engine.live import Held
from ringfence.host.kernel.errors import RingfenceError, StaleEpoch, Unavailable
from ringfence.host.kernel.ports import ModelReply

ENDED = "the soft deadline of the run has passed: the model is asked once more, without tools"


async def while_wanted(
    held: Held, call: Callable[[], Coroutine[Any, Any, ModelReply]], *, tools: bool, passed: bool
) -> ModelReply:
    """`tools`: some are offered; `passed`: the soft deadline, before the call. StaleEpoch: the run is over. Unavailable:
    its loop has been told of the soft deadline."""
    if passed and tools:  # asked by a new executor, or while the loop was being told: it has heard before it is refused
        await _first(held.over, held.hurried)
        raise _ended(held)
    ends = [held.over] if passed else [held.over, held.hurried]
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(_settled(call()))
        over = [group.create_task(end.wait()) for end in ends]
        await asyncio.wait([asked, *over], return_when=asyncio.FIRST_COMPLETED)
        for wait in over:
            wait.cancel()
        if not asked.done():
            asked.cancel()
    if asked.cancelled():
        raise _ended(held)
    result = asked.result()
    if isinstance(result, RingfenceError):
        raise result
    return result


def _ended(held: Held) -> RingfenceError:
    if held.over.is_set():
        return StaleEpoch(f"run {held.id} is no longer at work")
    return Unavailable(ENDED, run=held.id)


async def _first(*events: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


async def _settled(work: Coroutine[Any, Any, ModelReply]) -> ModelReply | RingfenceError:
    """The error as a value, so that the group that waits for it is not broken by it."""
    try:
        return await work
    except RingfenceError as error:
        return error
