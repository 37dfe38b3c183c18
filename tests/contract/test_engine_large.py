"""What a loop may have the server read: conversations of many MiB, bombs among them, and a journal of many results.

Positive control of the bounds: an honest conversation of the same size is put to the model.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.engine import conversations
from ringfence.host.engine.chat import MAX_CONVERSATION, chat_of
from ringfence.host.kernel.errors import Conflict, Invalid, RingfenceError, TooLarge
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.runs import Effect, RunState
from ringfence.host.models.scripted import Scripted
from ringfence.wire import messages as wire
from tests.support.engine_rig import Rig, eventually, rig
from tests.support.fakes import Loop, parked

MIB = 1 << 20


class Counting:
    """A model that counts those who ask at the same time."""

    window = 1000

    def __init__(self) -> None:
        self.now = self.most = 0

    async def generate(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_delta: Callable[[str], None]
    ) -> ModelReply:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1
        return ModelReply(f"{len(messages)} messages", (), "end")


async def put(loop: Loop, data: bytes) -> str:
    digest, token = hashlib.sha256(data).hexdigest(), loop.start["token"]
    for n in range(0, len(data), wire.BLOB_CHUNK):
        chunk = base64.b64encode(data[n : n + wire.BLOB_CHUNK]).decode()
        await loop.ask("blob.put", wire.BlobPut(token, digest, n // wire.BLOB_CHUNK, len(data), chunk))
    return digest


async def generate(loop: Loop, blob: str, call: int = 1) -> Any:
    tools = [wire.ToolSpec("shell", "runs", {"type": "object"})]
    asked = wire.ModelGenerate(loop.start["token"], "scripted", call, [], blob, tools)
    try:
        return await loop.ask("model.generate", asked)
    except RingfenceError as error:
        return error


def honest(size: int) -> bytes:
    text = "a line, and [more] of it\n" * 160
    one = json.dumps({"role": "user", "text": text, "tool_calls": [], "tool_call_id": None})
    return f"[{','.join([one] * (size // (len(one) + 1)))}]".encode()


def bomb(size: int) -> bytes:
    head = b'[{"role":"user","text":"x","tool_calls":[{"id":"c","name":"n","arguments":{"a":['
    return head + b"[],{}," * (size // 6) + b"0]}}]}]"


@contextmanager
def loops_share(r: Rig) -> Iterator[list[float]]:
    """Which part of the CPU time that was spent meanwhile was the event loop's; a busy host does not change it. Reading is
    left out: on PostgreSQL it is the loop's own, asyncpg has no threads. The garbage of the tests before is collected first:
    the thread that happens to allocate would pay for looking at it."""
    found: list[float] = []
    blobs, read = r.store.blobs, [0.0, 0.0]
    whole = blobs.whole

    async def reading(*which: Any) -> bytes:
        begun = _spent()
        try:
            return await whole(*which)
        finally:
            for at, (now, before) in enumerate(zip(_spent(), begun, strict=True)):
                read[at] += now - before

    blobs.whole = reading  # type: ignore[method-assign, assignment]
    gc.collect()
    gc.disable()
    try:
        before = _spent()
        yield found
        own, every = (now - was - left for now, was, left in zip(_spent(), before, read, strict=True))
        assert read[1] > 0, "it was read by that way"
        found.append(own / every)
    finally:
        gc.enable()
        blobs.whole = whole  # type: ignore[method-assign]


def _spent() -> tuple[float, float]:
    """Seconds of the CPU: this thread's, the process's."""
    return time.thread_time(), time.process_time()


async def at_work(r: Rig) -> Loop:
    return await r.loop(await r.say("alice", "go", thread="t"))


async def test_bombs_that_are_asked_for_at_once_cost_one_conversation(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",), script=parked, model=Counting()) as r:
        loop = await at_work(r)
        digest = await put(loop, bomb(15 * MIB))
        tracemalloc.start()
        try:
            with loops_share(r) as share:
                answers = await asyncio.gather(*(generate(loop, digest, n) for n in range(1, 21)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert {type(answer) for answer in answers} == {Invalid}
        assert "more than 60000 lists and objects" in answers[0].message
        assert peak < 80 * MIB  # chunks, whole, and the ask of a driver; parsed, each of the 20 would take 600 MB
        assert share[0] < 0.5, share  # parsed on the loop: 0.90 and more


async def test_a_large_honest_conversation_keeps_nobody_waiting(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",), script=parked, model=Scripted()) as r:
        loop = await at_work(r)
        digest = await put(loop, honest(MAX_CONVERSATION - 5000))
        with loops_share(r) as share:
            answer = await generate(loop, digest, 1)
        assert answer["usage"]["input_tokens"] > 3_500_000
        assert share[0] < 0.3, share


async def test_a_run_has_one_conversation_in_memory_and_every_ask_is_answered(tmp_path: Path) -> None:
    model = Counting()
    async with rig(tmp_path, ("alice",), script=parked, model=model) as r:
        loop = await at_work(r)
        digest = await put(loop, honest(MIB))
        answers = await asyncio.gather(*(generate(loop, digest, n) for n in range(1, 9)))
        assert len({answer["text"] for answer in answers}) == 1
        assert model.most == 1


async def test_a_conversation_has_a_bound_and_is_not_read_beyond_it(tmp_path: Path) -> None:
    async with rig(tmp_path, ("alice",), script=parked, model=Counting()) as r:
        loop = await at_work(r)
        digest = await put(loop, honest(MAX_CONVERSATION + MIB))
        answer = await generate(loop, digest)
        assert type(answer) is TooLarge
        assert f"the limit is {MAX_CONVERSATION}" in answer.message


async def test_nobody_is_parsed_beside_one_whose_loop_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = [0], [0]

    def slow(data: bytes) -> list[dict[str, Any]]:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.1)
        now[0] -= 1
        return chat_of(data)

    monkeypatch.setattr(conversations, "chat_of", slow)
    async with rig(tmp_path, ("alice", "bob"), script=parked, model=Counting()) as r:
        said = await r.say("alice", "go", thread="a")
        loops = [await r.loop(said), await r.loop(await r.say("bob", "go", thread="b"))]
        first, second = [(loop, await put(loop, honest(MIB))) for loop in loops]
        asking = asyncio.create_task(generate(*first))
        await eventually(lambda: now[0])
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        assert "messages" in (await generate(*second))["text"]
        await asyncio.wait({asking})
        assert most[0] == 1


async def test_no_ask_reads_the_results_of_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(run: object) -> list[Any]:
        raise AssertionError("a journal may have 256 MiB")

    async with rig(tmp_path, ("alice",), script=parked) as r:
        monkeypatch.setattr(r.store.steps, "all", never)
        loop = await at_work(r)
        row = await r.store.runs.get(loop.run)
        for n in (1, 2):
            await loop.ask("step.begin", wire.StepBegin("t", n, "read", {"path": "p"}, "pure"))
            await loop.ask("step.end", wire.StepEnd("t", n, {"ok": True}))
        await r.store.steps.begin(row.id, row.epoch, 3, "shell", {}, "d", Effect.LOCAL)
        with pytest.raises(Conflict, match="carried out by the host"):
            await loop.ask("step.end", wire.StepEnd("t", 3, {"ok": True}))
        with pytest.raises(Conflict):
            await loop.ask("step.begin", wire.StepBegin("t", 1, "read", {"path": "other"}, "pure"))
        assert (await r.store.runs.get(row.id)).state is RunState.FAILED
        [detail] = await r.details("alice")
        assert detail["recorded"] == {"tool": "read", "arguments": '{"path": "p"}'}
