"""The scripted provider with conversations of many MiB: nobody else waits, and little is made of them."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from ringfence.host.models.scripted import MAX_CALLS, Scripted

TOOLS = [{"name": "shell", "description": "", "parameters": {}}]
MIB = 1 << 20


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "text": text, "tool_calls": [], "tool_call_id": None, **more}


def many_values(n: int) -> dict[str, Any]:
    call = {"id": "c", "name": "shell", "arguments": {"a": [0.5] * n}}
    return message("", role="assistant", tool_calls=[call])


@pytest.mark.parametrize(
    "messages",
    [
        [message("$ a\n" * (4 * MIB))],
        [message("\n" * (16 * MIB))],
        [message("x")] * 26_000,
        [message("$ a\n" * 60_000)] * 60,
        [message("do it"), many_values(300_000)],
        [message("\u6f22" * (3 * MIB))],
    ],
)
async def test_the_work_is_not_the_event_loops(messages: list[dict[str, Any]]) -> None:
    """By CPU time, which a busy host does not change: on the event loop all of it would be this thread's."""
    own, whole = time.thread_time(), time.process_time()
    reply = await Scripted().generate(messages, TOOLS, lambda text: None)
    own, whole = time.thread_time() - own, time.process_time() - whole
    assert reply.usage is not None
    assert own < whole / 2


async def test_of_endless_lines_only_some_become_calls() -> None:
    tracemalloc.start()
    try:
        reply = await Scripted().generate([message("$ a\n" * (4 * MIB))], TOOLS, lambda text: None)
        assert tracemalloc.get_traced_memory()[1] < 300 * MIB  # 16 MiB of them made 1.6 GB
    finally:
        tracemalloc.stop()
    assert [call["arguments"] for call in reply.tool_calls] == [{"command": "a"}]


async def test_a_command_that_is_cut_is_not_run() -> None:
    """The first 1 MiB is read; what stands across its end is not."""
    text = "#" * (MIB - 10) + "\n$ rm -rf /tmp/mine"
    reply = await Scripted().generate([message(text)], TOOLS, lambda said: None)
    assert reply.tool_calls == []
    whole = "#" * (MIB - 30) + "\n$ rm -rf /tmp/mine"
    reply = await Scripted().generate([message(whole)], TOOLS, lambda said: None)
    assert [call["arguments"] for call in reply.tool_calls] == [{"command": "rm -rf /tmp/mine"}]
    assert MAX_CALLS < 200
