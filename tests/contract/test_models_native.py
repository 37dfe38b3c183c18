"""The native loop's providers over HTTP: what is asked, what comes back, what is tried again, what it costs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Exhausted, Failed, Refused, RingfenceError, Unavailable
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.ports import ModelFor, ModelReply
from tests.support.models_rig import KEY, Rig, a_rig
from tests.support.provider_double import Answer, as_json, chat, event, messages, responses

SAID: list[dict[str, Any]] = [
    {"role": "system", "text": "You are one colleague."},
    {"role": "user", "text": "alice: list it"},
    {
        "role": "assistant",
        "text": "",
        "tool_calls": [{"id": "c1", "name": "http.webhook", "arguments": {"name": "a"}}],
        "tool_call_id": None,
    },
    {"role": "tool", "text": "{}", "tool_calls": [], "tool_call_id": "c1"},
    {"role": "system", "text": "[a note]"},
]
TOOLS = [{"name": "http.webhook", "description": "Sends.", "parameters": {"type": "object"}}]
STREAMS = {"gpt": chat("hé", "llo"), "gpt-responses": responses("hé", "llo"), "claude": messages("hé", "llo")}
ALIASES = sorted(STREAMS)


async def generate(rig: Rig, alias: str, deltas: list[str] | None = None) -> ModelReply:
    said: list[str] = [] if deltas is None else deltas
    return await rig.native(alias).of(rig.caller).generate(SAID, TOOLS, said.append)


@pytest.mark.parametrize("alias", ALIASES)
async def test_text_streams_and_is_counted(tmp_path: Path, alias: str) -> None:
    async with a_rig(tmp_path, Answer(STREAMS[alias], delay=0.001)) as rig:
        assert isinstance(rig.native(alias), ModelFor)
        deltas: list[str] = []
        reply = await generate(rig, alias, deltas)
        assert (reply.text, reply.stop, reply.tool_calls, reply.usage) == ("héllo", "end", [], (100, 7))
        assert deltas == ["hé", "llo"]
        used = await rig.used()
        assert (used["calls"], used["input_tokens"], used["cached_tokens"], used["output_tokens"]) == (1, 100, 40, 7)
        (arrived,) = rig.provider.arrived
        assert KEY in (arrived.headers.get("x-api-key", ""), arrived.headers.get("authorization", "")[7:])
        body = arrived.body
        assert body["model"] == "real-1" and body["stream"] is True
        assert 16_384 in (body.get("max_tokens"), body.get("max_completion_tokens"), body.get("max_output_tokens"))
        assert b"http.webhook" not in arrived.raw and b"http_webhook" in arrived.raw


def calls_of(alias: str) -> list[bytes]:
    """The model calls a tool, in pieces."""
    if alias == "gpt":
        parts: list[dict[str, Any]] = [
            {"index": 0, "id": "c9", "type": "function", "function": {"name": "http_webhook", "arguments": ""}},
            {"index": 0, "function": {"arguments": '{"name":'}},
            {"index": 0, "function": {"arguments": ' "x"}'}},
        ]
        said = [{"choices": [{"index": 0, "delta": {"tool_calls": [part]}}]} for part in parts]
        return [
            event(each) for each in [*said, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
        ]
    if alias == "claude":
        start = {"type": "content_block_start", "index": 1}
        block = {"type": "tool_use", "id": "c9", "name": "http_webhook", "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": text} for text in ("", '{"name":', ' "x"}')]
        return [
            event({**start, "content_block": block}),
            *(event({"type": "content_block_delta", "index": 1, "delta": delta}) for delta in deltas),
            event({"type": "content_block_stop", "index": 1}),
            event({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
            event({"type": "message_stop"}),
        ]
    item = {"type": "function_call", "call_id": "c9", "name": "http_webhook", "arguments": '{"name": "x"}'}
    done = {"status": "completed", "usage": {"input_tokens": 1, "output_tokens": 9}}
    return [
        event({"type": "response.output_item.done", "item": item}),
        event({"type": "response.completed", "response": done}),
    ]


@pytest.mark.parametrize("alias", ALIASES)
async def test_calls_of_tools_have_the_loops_names(tmp_path: Path, alias: str) -> None:
    async with a_rig(tmp_path, Answer(calls_of(alias))) as rig:
        reply = await generate(rig, alias)
        assert reply.stop == "tool_calls"
        assert reply.tool_calls == [{"id": "c9", "name": "http.webhook", "arguments": {"name": "x"}}]


@pytest.mark.parametrize(
    ("status", "error", "remedy"),
    [
        (400, Failed, ""),
        (401, Refused, "secret set"),
        (403, Refused, "secret set"),
        (404, Failed, ""),
        (413, Failed, ""),
        (500, Unavailable, ""),
        (502, Unavailable, ""),
        (302, Failed, "base_url"),
    ],
)
async def test_errors_by_whose_fault_it_is(
    tmp_path: Path, status: int, error: type[RingfenceError], remedy: str
) -> None:
    said = {"error": {"type": "x", "message": f"no:\n {KEY} is wrong"}}
    async with a_rig(tmp_path, as_json(said, status)) as rig:
        with pytest.raises(error) as raised:
            await generate(rig, "claude")
        text = raised.value.message
        assert type(raised.value) is error and str(status) in text and remedy in raised.value.remedy
        assert KEY not in text and "\n" not in text
        assert status == 302 or "is wrong" in text
        assert len(rig.provider.arrived) == 1 and (await rig.used())["tokens"] == 0


async def test_what_was_not_carried_out_is_tried_again(tmp_path: Path) -> None:
    later = as_json({"type": "error", "error": {"message": "busy"}}, 529, **{"retry-after": "0"})
    soon = as_json({"error": {"message": "slow down"}}, 429, **{"retry-after": "0.01"})
    async with a_rig(tmp_path, later, soon, Answer(STREAMS["claude"])) as rig:
        started = asyncio.get_running_loop().time()
        reply = await generate(rig, "claude")
        assert reply.text == "héllo" and len(rig.provider.arrived) == 3
        assert 1.0 <= asyncio.get_running_loop().time() - started < 5.0
        assert (await rig.used())["calls"] == 1, "one reservation for all its tries"
        assert len(rig.asked) == 3, "and the key anew for each: it may be revoked while one waits"


async def test_what_may_have_been_carried_out_is_not(tmp_path: Path) -> None:
    busy = as_json({"error": {"message": "tomorrow"}}, 429, **{"retry-after": "86400"})
    async with a_rig(tmp_path, Answer(STREAMS["claude"][:4], drop=True), busy) as rig:
        deltas: list[str] = []
        with pytest.raises(Unavailable, match="broke off"):
            await generate(rig, "claude", deltas)
        assert deltas == ["hé", "llo"] and len(rig.provider.arrived) == 1
        with pytest.raises(Unavailable, match="tomorrow"):
            await generate(rig, "claude")
        assert len(rig.provider.arrived) == 2
        used = await rig.used()
        assert (used["calls"], used["input_tokens"]) == (2, 100), "what came is counted"


@pytest.mark.parametrize(
    ("alias", "pieces", "error"),
    [
        ("claude", [event({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})], Unavailable),
        ("gpt", [event({"error": {"type": "server_error", "message": "busy"}})], Unavailable),
        ("gpt", [event({"choices": [{"delta": {}, "finish_reason": "content_filter"}]})], Refused),
        (
            "claude",
            [
                event({"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {}}),
                event({"type": "message_stop"}),
            ],
            Refused,
        ),
        ("gpt-responses", [event({"type": "response.failed", "response": {"error": {"code": "x"}}})], Failed),
        ("gpt", [b"data: [DONE]\n\n"], Unavailable),
        ("gpt", [event({"choices": [{"delta": {"content": "x" * 1_500_000}}]})] * 3, Failed),
    ],
)
async def test_errors_within_a_stream(
    tmp_path: Path, alias: str, pieces: list[bytes], error: type[RingfenceError]
) -> None:
    async with a_rig(tmp_path, Answer(pieces)) as rig:
        with pytest.raises(error):
            await generate(rig, alias)


async def test_nobody_is_reached(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([])) as rig:
        rig.upstreams["claude"] = replace(rig.upstreams["claude"], base_url="http://127.0.0.1:1")
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 is not reached"):
            await generate(rig, "claude")
        assert (await rig.used())["tokens"] == 0


async def test_a_budget_bounds_the_answer_and_ends_the_calls(tmp_path: Path) -> None:
    limits = BudgetLimits(run_tokens=4000)
    async with a_rig(tmp_path, Answer(messages("x", output=2500)), limits=limits) as rig:
        await generate(rig, "claude")
        assert 256 <= rig.provider.arrived[0].body["max_tokens"] < 4000
        await rig.budgets.quiet()
        with pytest.raises(Exhausted, match="2600 of 4000"):
            await generate(rig, "claude")
        assert len(rig.provider.arrived) == 1


async def test_a_call_that_is_given_up_is_counted(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([], hang=True)) as rig:
        task = asyncio.ensure_future(generate(rig, "claude"))
        async with asyncio.timeout(5):
            while not rig.provider.arrived:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        used = await rig.used()
        assert used["reserved"]["tokens"] == 0 and 0 < used["input_tokens"] < len(rig.provider.arrived[0].raw)


async def test_a_call_that_is_given_up_while_it_is_reserved_holds_nothing(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(messages("x"))) as rig:
        tasks = [asyncio.ensure_future(generate(rig, "claude")) for _ in range(8)]
        for task in tasks:
            await asyncio.sleep(0.002)
            task.cancel()
        await asyncio.wait(tasks)
        used = await rig.used()
        assert used["reserved"] == {"tokens": 0, "money": 0.0}
        assert await rig.budgets.sweep() == 0


async def test_one_that_is_given_up_while_its_key_is_fetched_holds_nothing(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(messages("x"))) as rig:
        rig.slow = 3600.0
        task = asyncio.ensure_future(generate(rig, "claude"))
        async with asyncio.timeout(5):
            while (await rig.used())["reserved"]["tokens"] == 0:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        used = await rig.used()
        assert (used["reserved"]["tokens"], used["tokens"], rig.provider.arrived) == (0, 0, [])
        rig.slow, rig.sealed = 0.0, True
        with pytest.raises(Unavailable, match="sealed"):
            await generate(rig, "claude")
        assert (await rig.used())["reserved"]["tokens"] == 0
