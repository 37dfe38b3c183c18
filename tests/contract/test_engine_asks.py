"""What loops ask beside steps: the model and its live text, older messages, summaries, blobs, checkpoints, failures."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Conflict, Failed, Invalid, NotFound, RingfenceError, TooLarge, Unavailable
from ringfence.host.kernel.ports import ModelReply
from ringfence.host.kernel.threads import TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import FAR, Rig, eventually, rig
from tests.support.fakes import Loop, parked

CHAT = [wire.ChatMessage("user", "hello")]


class Told:
    """A model that does what it is told."""

    window = 1000

    def __init__(self, answer: Callable[[Callable[[str], None]], Any]) -> None:
        self._answer = answer
        self.asked: list[tuple[Any, Any]] = []
        self.let_go = False

    async def generate(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_delta: Callable[[str], None]
    ) -> ModelReply:
        self.asked.append((messages, tools))
        try:
            result = self._answer(on_delta)
            if asyncio.isfuture(result):
                await result
        except asyncio.CancelledError:
            self.let_go = True
            raise
        assert isinstance(result, ModelReply)
        return result


def says(on_delta: Callable[[str], None]) -> ModelReply:
    for piece in ("he", "llo"):
        on_delta(piece)
    return ModelReply("hello", [{"id": "c", "name": "shell", "arguments": {}}], "tool_calls", (3, 4))


def hangs(on_delta: Callable[[str], None]) -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def breaks(on_delta: Callable[[str], None]) -> ModelReply:
    raise ZeroDivisionError("inside a provider")


def generate(loop: Loop, blob: str | None = None) -> wire.ModelGenerate:
    tools = [wire.ToolSpec("shell", "runs", {"type": "object"})]
    return wire.ModelGenerate(loop.start["token"], "scripted", 7, [] if blob else CHAT, blob, tools)


async def at_work(r: Rig, text: str = "go", thread: str = "t", name: str = "alice") -> Loop:
    return await r.loop(await r.say(name, text, thread=thread))


async def refused(loop: Loop, method: str, params: Any, error: type[RingfenceError]) -> str:
    with pytest.raises(error) as caught:
        await loop.ask(method, params)
    assert type(caught.value) is error
    return caught.value.message


# --- the model -------------------------------------------------------------------------------------------------------


async def test_live_text_goes_to_the_runs_actor_alone(tmp_path: Path) -> None:
    model = Told(says)
    async with rig(tmp_path, script=parked, model=model) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        watches = {n: await r.engine.threads.watch(r.actors[n], "default", "t") for n in ("alice", "bob")}
        loop = await at_work(r)
        answer = await loop.ask("model.generate", generate(loop))
        assert answer == {
            "text": "hello",
            "tool_calls": [{"id": "c", "name": "shell", "arguments": {}}],
            "stop": "tool_calls",
            "usage": {"input_tokens": 3, "output_tokens": 4},
        }
        assert await loop.ask("run.event", wire.RunEvent(loop.start["token"], "looking")) == {}
        base = {"run": loop.run, "turn": (await r.store.runs.get(loop.run)).turn}
        assert list(watches["alice"].take()) == [
            {"kind": "delta", "call": 7, "text": "he", **base},
            {"kind": "delta", "call": 7, "text": "llo", **base},
            {"kind": "progress", "text": "looking", **base},
        ]
        assert list(watches["bob"].take()) == []
        assert model.asked == [
            (
                [{"role": "user", "text": "hello", "tool_calls": [], "tool_call_id": None}],
                [{"name": "shell", "description": "runs", "parameters": {"type": "object"}}],
            )
        ]
        events = await r.store.events.after((await r.store.runs.get(loop.run)).thread, 0, 99)
        assert "hello" not in str(events)
        assert "looking" not in str(events)


async def test_an_event_has_a_bound(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        loop = await at_work(r)
        said = await refused(loop, "run.event", wire.RunEvent("t", "x" * 4097), TooLarge)
        assert said == "the event has 4097 bytes; the limit is 4096"


async def test_a_model_that_does_not_answer_in_time_is_unavailable(tmp_path: Path) -> None:
    model = Told(hangs)
    async with rig(tmp_path, script=parked, model=model, model_timeout_seconds=0.1) as r:
        loop = await at_work(r)
        said = await refused(loop, "model.generate", generate(loop), Unavailable)
        assert said == "the model did not answer within 0.1 s"
        assert model.let_go


async def test_a_provider_that_breaks_down_is_logged_and_one_failed_ask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path, script=parked, model=Told(breaks)) as r:
        loop = await at_work(r)
        with caplog.at_level(logging.ERROR, "ringfence.engine"):
            said = await refused(loop, "model.generate", generate(loop), Failed)
        assert said == "the model provider broke down; the server's log says how"
        assert "inside a provider" in caplog.text
        assert "inside a provider" not in said


async def test_a_model_is_let_go_when_its_run_is_over(tmp_path: Path) -> None:
    model = Told(hangs)

    async def asks(loop: Loop) -> None:
        await loop.ask("model.generate", generate(loop))

    async with rig(tmp_path, script=asks, model=model) as r:
        said = await r.say("alice", "go")
        await eventually(lambda: model.asked)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        assert (await r.turn(said)).state is TurnState.CANCELLED
        await eventually(lambda: model.let_go, "the provider is told")


async def test_a_conversation_in_a_blob(tmp_path: Path) -> None:
    model = Told(says)
    async with rig(tmp_path, script=parked, model=model) as r:
        loop = await at_work(r)
        long = [{"role": "user", "text": "x" * 600_000}, {"role": "tool", "text": "r", "tool_call_id": "c"}]
        digest = await put(loop, json.dumps(long).encode())
        await loop.ask("model.generate", generate(loop, digest))
        [(messages, _)] = model.asked
        assert messages == [
            {"role": "user", "text": "x" * 600_000, "tool_calls": [], "tool_call_id": None},
            {"role": "tool", "text": "r", "tool_calls": [], "tool_call_id": "c"},
        ]
        bad = await put(loop, b'[{"role": "root", "text": "x"}]')
        assert "has no role" in await refused(loop, "model.generate", generate(loop, bad), Invalid)
        await refused(loop, "model.generate", generate(loop, "0" * 64), NotFound)
        assert len(model.asked) == 1


# --- blobs and checkpoints -------------------------------------------------------------------------------------------


async def put(loop: Loop, data: bytes) -> str:
    digest, token = hashlib.sha256(data).hexdigest(), loop.start["token"]
    for n in range(0, len(data), wire.BLOB_CHUNK):
        chunk = base64.b64encode(data[n : n + wire.BLOB_CHUNK]).decode()
        await loop.ask("blob.put", wire.BlobPut(token, digest, n // wire.BLOB_CHUNK, len(data), chunk))
    return digest


async def test_blobs_are_kept_while_a_checkpoint_names_them(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        loop = await at_work(r)
        data = bytes(range(256)) * 3000
        kept, dropped = await put(loop, data), await put(loop, b"other")
        await loop.ask("checkpoint.save", wire.CheckpointSave("t", "before_model", 0, "s", [kept]))
        got = [await loop.ask("blob.get", wire.BlobGet("t", kept, n)) for n in range(2)]
        assert b"".join(base64.b64decode(one["data_b64"]) for one in got) == data
        assert [one["size"] for one in got] == [len(data)] * 2
        await refused(loop, "blob.get", wire.BlobGet("t", dropped, 0), NotFound)
        absent = wire.CheckpointSave("t", "before_model", 0, "s2", ["0" * 64])
        await refused(loop, "checkpoint.save", absent, Conflict)
        many = wire.CheckpointSave("t", "before_model", 0, "s2", [kept] * 65)
        await refused(loop, "checkpoint.save", many, TooLarge)
        saved = await r.store.steps.checkpoint(loop.run)
        assert saved is not None
        assert saved.state == "s"


@pytest.mark.parametrize("data", ["!", "YQ", "YQ==\n", "Y Q==", "\xe9\xe9\xe9\xe9"])
async def test_a_chunk_that_is_no_base64(tmp_path: Path, data: str) -> None:
    async with rig(tmp_path, ("alice",), script=parked) as r:
        loop = await at_work(r)
        assert "base64" in await refused(loop, "blob.put", wire.BlobPut("t", "0" * 64, 0, 1, data), Invalid)


async def test_another_run_has_nothing_of_it(tmp_path: Path) -> None:
    """Not even of the same actor."""
    async with rig(tmp_path, script=parked) as r:
        first, second = await at_work(r, thread="a"), await at_work(r, thread="b")
        digest = await put(first, b"mine")
        await refused(second, "blob.get", wire.BlobGet("t", digest, 0), NotFound)


# --- history ---------------------------------------------------------------------------------------------------------


async def answers(loop: Loop) -> None:
    text = loop.start["messages"][-1]["text"]
    if text == "stay":
        await parked(loop)
    await loop.ask("run.finish", wire.RunFinish(loop.start["token"], f"re: {text}", FAR))


async def test_pages_of_what_was_said_before(tmp_path: Path) -> None:
    async with rig(tmp_path, script=answers) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        for n in range(6):
            await r.asked("bob" if n % 2 else "alice", f"m{n}")
        loop = await at_work(r, "stay")
        await r.say("bob", "later")
        own = loop.start["messages"][-1]["cursor"]
        pages, before, more = [], own, True
        while more:
            page = await loop.ask("thread.read", wire.ThreadRead("t", before, 5))
            shape = {**page, "messages": [wire.ThreadMessage(**m) for m in page["messages"]]}
            wire.ThreadPage(**shape)
            pages.append([m["text"] for m in page["messages"]])
            before, more = page["messages"][0]["cursor"], page["more"]
        assert [len(page) for page in pages] == [5, 5, 2]
        flat = [text for page in reversed(pages) for text in page]
        assert flat == [text for n in range(6) for text in (f"m{n}", f"re: m{n}")]
        assert await loop.ask("thread.read", wire.ThreadRead("t", 0, 5)) == {"messages": [], "more": False}
        after = await loop.ask("thread.read", wire.ThreadRead("t", FAR, 200))
        assert [m["text"] for m in after["messages"]] == flat  # neither its own nor what waits
        for limit in (0, -1, 201):
            await refused(loop, "thread.read", wire.ThreadRead("t", own, limit), Invalid)


async def test_a_page_is_bounded_and_goes_on(tmp_path: Path) -> None:
    async with rig(tmp_path, script=answers) as r:
        for _ in range(3):
            await r.asked("alice", "x" * 130_000)
        loop = await at_work(r, "stay")
        given = [loop.start["messages"][:-1]]
        before, more = loop.start["earlier"], True
        while more:
            page = await loop.ask("thread.read", wire.ThreadRead("t", before, 200))
            given.append(page["messages"])
            before, more = page["messages"][0]["cursor"], page["more"]
        assert [len(messages) for messages in given] == [2, 2, 2]
        assert all(sum(len(m["text"]) for m in messages) <= 256 * 1024 for messages in given)
        cursors = [m["cursor"] for messages in reversed(given) for m in messages]
        assert cursors == sorted(set(cursors))


async def test_a_summary_is_for_later_runs_of_its_actor_alone(tmp_path: Path) -> None:
    starts: list[Any] = []

    async def notes(loop: Loop) -> None:
        starts.append(loop.start)
        if len(starts) == 3:
            await loop.ask(
                "thread.summarise", wire.ThreadSummarise("t", loop.start["messages"][1]["cursor"], "in short")
            )
        await answers(loop)

    async with rig(tmp_path, script=notes) as r:
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        for name, text in (("alice", "a"), ("bob", "b"), ("alice", "c"), ("alice", "d"), ("bob", "e")):
            await r.asked(name, text)
        assert [start["summary"] for start in starts[:3]] == [None, None, None]
        assert starts[3]["summary"] == {"cursor": starts[2]["messages"][1]["cursor"], "text": "in short"}
        assert [m["text"] for m in starts[3]["messages"]] == ["b", "re: b", "c", "re: c", "d"]
        assert starts[4]["summary"] is None
        assert [m["text"] for m in starts[4]["messages"]][:2] == ["a", "re: a"]
        assert [start["earlier"] for start in starts] == [0] * 5


async def test_summaries_that_are_none(tmp_path: Path) -> None:
    async with rig(tmp_path, script=answers) as r:
        await r.asked("alice", "one")
        loop = await at_work(r, "stay")
        first, own = loop.start["messages"][0]["cursor"], loop.start["messages"][-1]["cursor"]
        await refused(loop, "thread.summarise", wire.ThreadSummarise("t", first, " \n"), Invalid)
        await refused(loop, "thread.summarise", wire.ThreadSummarise("t", first, "x" * 65_537), TooLarge)
        await refused(loop, "thread.summarise", wire.ThreadSummarise("t", own, "with mine"), Conflict)


# --- steps and failures ----------------------------------------------------------------------------------------------


async def test_arguments_that_are_too_large_are_told_to_the_model_and_journaled(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        loop = await at_work(r)
        large = wire.StepBegin("t", 1, "write", {"path": "p", "text": "x" * 300_000}, "idempotent")
        begun = await loop.ask("step.begin", large)
        assert (begun["decision"], begun["result"]["reason"]) == ("done", "invalid")
        assert "the limit is 262144" in begun["result"]["message"]
        assert await loop.ask("step.begin", large) == begun
        [step] = await r.store.steps.all(loop.run)
        assert (step.state.value, step.arguments) == ("ended", {"left_out": "300022 bytes of arguments"})
        second = wire.StepBegin("t", 2, "read", {"path": "p"}, "pure")
        assert (await loop.ask("step.begin", second))["decision"] == "run"


@pytest.mark.parametrize("tool", ["", " ", "a b", "x" * 65, "\0", "shell\n", "\ud800", "../x"])
async def test_names_that_no_tool_has(tmp_path: Path, tool: str) -> None:
    async with rig(tmp_path, ("alice",), script=parked) as r:
        loop = await at_work(r)
        await refused(loop, "step.begin", wire.StepBegin("t", 1, tool, {}, "pure"), Invalid)
        assert await r.store.steps.all(loop.run) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("budget_exhausted", "budget_exhausted"),
        ("step_gap", "step_gap"),
        ("my_own", "my_own"),
        ("deadline", "loop_failed"),  # the host's word
        ("user_removed", "loop_failed"),
        ("Not a code", "loop_failed"),
        ("", "loop_failed"),
    ],
)
async def test_what_a_loop_gives_up_with(tmp_path: Path, code: str, reason: str) -> None:
    async def gives_up(loop: Loop) -> None:
        await loop.ask("run.fail", wire.RunFail(loop.start["token"], code, "so it is"))

    async with rig(tmp_path, ("alice",), script=gives_up) as r:
        turn = await r.asked("alice", "go")
        assert (turn.state, turn.reason) == (TurnState.FAILED, reason)
        assert await r.details("alice") == [{"code": reason, "message": "so it is"}]


async def test_nothing_is_answered_for_a_run_that_is_to_be_cancelled(tmp_path: Path) -> None:
    async def stubborn(loop: Loop) -> None:
        try:
            await parked(loop)
        except asyncio.CancelledError:
            with pytest.raises(Conflict):
                await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "done after all", FAR))
            raise

    async with rig(tmp_path, script=stubborn) as r:
        said = await r.say("alice", "go")
        await r.loop(said)
        await r.engine.runs.cancel(r.actors["alice"], said.run.id)
        turn = await r.turn(said)
        assert (turn.state, turn.reply) == (TurnState.CANCELLED, None)


async def test_a_run_adopted_after_a_cancel_is_cancelled(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        said = await r.say("alice", "go")
        loop = await r.loop(said)

        async def cancelled() -> None:
            await r.store.runs.cancel(said.run.id)

        await r.restart(cancelled)
        assert (await r.turn(said)).state is TurnState.CANCELLED
        assert loop.task is not None
        await asyncio.wait({loop.task}, timeout=30)
        assert loop.task.done()


async def test_a_message_that_no_loop_can_be_given_says_so_to_its_author(tmp_path: Path) -> None:
    async with rig(tmp_path, script=parked) as r:
        turn = await r.asked("alice", "\x01" * 256_000)
        assert (turn.state, turn.reason) == (TurnState.FAILED, "message_too_large")
        [detail] = await r.details("alice")
        assert detail["code"] == "message_too_large"
        assert "as JSON" in detail["message"]
