"""What a call costs that nobody saw to its end: left, broken off, or never said to be over. Through the gateway and the
native loop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.errors import Unavailable
from tests.contract.test_models_gateway import ASKED, CHAT, CLAUDE, MESSAGES, RESPONSES, answered, request
from tests.support.models_rig import Rig, a_rig
from tests.support.provider_double import Answer, chat, event, messages, responses

MOST = 30_000
WORDS = "word " * 4000
WHOLE = json.dumps(
    {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": WORDS}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 4000},
    }
).encode()
CUT = WHOLE.index(b'"usage"')  # whoever has so much has the text
JSON = {"content-type": "application/json"}
CALL: dict[str, Any] = {**ASKED, "max_tokens": MOST}


async def leave(rig: Rig, path: str, body: dict[str, Any], *, after: bytes = b"", shut: bool = False) -> dict[str, Any]:
    """Asks, leaves once `after` is there (or the request is, at the provider), and says what was used. `shut`: it
    closes its own side alone."""
    async with rig.connection() as (reader, writer):
        writer.write(request(path, body))
        async with asyncio.timeout(30):
            if after:
                await reader.readuntil(after)
            while not rig.provider.arrived:
                await asyncio.sleep(0.01)
        if shut:
            writer.write_eof()
            assert after or await reader.read() == b""
    async with asyncio.timeout(30):
        while rig.gateway.facts()["connections"]:
            await asyncio.sleep(0.01)
    return await rig.used()


async def test_one_object_costs_all_that_was_granted_once_its_client_has_left(tmp_path: Path) -> None:
    """A provider finishes it, and bills it, whether anybody waits for it or not; its use stands behind its text."""
    for name, pieces, after in (
        ("text", [WHOLE[:CUT]], b"word word"),
        ("nothing", [b" "], b"\r\n\r\n"),
        ("head", [], b""),
    ):
        (tmp_path / name).mkdir()
        async with a_rig(tmp_path / name, Answer(pieces, headers=JSON, hang=True)) as rig:
            used = await leave(rig, CHAT, CALL, after=after)
            assert (name, used["output_tokens"]) == (name, MOST)
    async with a_rig(tmp_path, Answer([WHOLE[:CUT], WHOLE[CUT:]], headers=JSON, delay=0.05)) as rig:  # the control
        async with rig.connection() as (reader, writer):
            writer.write(request(CHAT, CALL))
            await answered(reader)
        assert (await rig.used())["output_tokens"] == 4000


async def test_one_that_was_left_when_all_of_it_had_come_costs_what_it_says(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([WHOLE], headers=JSON, hang=True)) as rig:
        assert (await leave(rig, CHAT, CALL, after=b'"usage"'))["output_tokens"] == 4000


async def test_one_that_nobody_can_read_or_that_breaks_off_is_no_cheaper(tmp_path: Path) -> None:
    for name, answer in (
        ("broken", Answer([WHOLE[:CUT]], headers=JSON, drop=True)),
        ("odd", Answer([b"no JSON"], headers=JSON)),
    ):
        (tmp_path / name).mkdir()
        async with a_rig(tmp_path / name, answer) as rig:
            assert (await leave(rig, CHAT, CALL, after=b"\r\n\r\n"))["output_tokens"] == MOST


async def test_whoever_closes_its_own_side_has_left(tmp_path: Path) -> None:
    """HTTP lets a client do so and read on. It is answered with nothing, and saves nothing by it."""
    async with a_rig(tmp_path, Answer([b" "], headers=JSON, hang=True)) as rig:
        assert (await leave(rig, CHAT, CALL, after=b"\r\n\r\n", shut=True))["output_tokens"] == MOST


THINKING: list[tuple[str, dict[str, Any], list[bytes], int]] = [
    (CHAT, {**CALL, "reasoning_effort": "high"}, chat("a")[:3], MOST),
    (CHAT, {**CALL, "reasoning_effort": "none"}, chat("a")[:3], 1),
    (CHAT, CALL, chat("a")[:3], 1),
    (RESPONSES, {"model": "gpt", "input": "x", "max_output_tokens": MOST, "reasoning": {}}, responses("a")[:2], MOST),
    (
        RESPONSES,
        {"model": "gpt", "input": "x", "max_output_tokens": MOST},
        [event({"type": "response.output_item.added", "item": {"type": "reasoning"}}), *responses("a")[:2]],
        MOST,
    ),
    (RESPONSES, {"model": "gpt", "input": "x", "max_output_tokens": MOST}, responses("a")[:2], 1),
    (
        MESSAGES,
        {**CLAUDE, "max_tokens": MOST, "thinking": {"type": "enabled", "budget_tokens": 2000}},
        messages("a")[:3],
        2001,
    ),
    (MESSAGES, {**CLAUDE, "max_tokens": MOST, "thinking": {"type": "adaptive"}}, messages("a")[:3], MOST),
    (MESSAGES, {**CLAUDE, "max_tokens": MOST, "thinking": {"type": "disabled"}}, messages("a")[:3], 1),
    # its last word has come, but for the end
    (MESSAGES, {**CLAUDE, "max_tokens": MOST, "thinking": {"type": "adaptive"}}, messages("a", output=9)[:-1], 9),
    (CHAT, {**CALL, "reasoning_effort": "high"}, chat("a")[:-1], 7),
]


@pytest.mark.parametrize(("path", "body", "pieces", "expected"), THINKING)
async def test_a_stream_that_is_left_costs_what_may_have_been_thought_in_it(
    tmp_path: Path, path: str, body: dict[str, Any], pieces: list[bytes], expected: int
) -> None:
    """Its text says nothing of it."""
    async with a_rig(tmp_path, Answer([b"".join(pieces)], hang=True)) as rig:
        used = await leave(rig, path, {**body, "stream": True}, after=b'"a"')
        assert used["output_tokens"] == expected


async def test_the_table_says_which_models_think_unasked(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a")[:3], hang=True)) as rig:
        rig.upstreams["gpt"] = replace(rig.upstreams["gpt"], hidden_reasoning=True)
        rig.gateway._upstreams["gpt"] = rig.upstreams["gpt"]
        assert (await leave(rig, CHAT, {**CALL, "stream": True}, after=b'"a"'))["output_tokens"] == MOST
        rig.provider.answers = [Answer(chat("a")[:3], drop=True)]
        with pytest.raises(Unavailable):
            await rig.native("gpt").of(rig.caller).generate([{"role": "user", "text": "x"}], [], lambda _: None)
        assert (await rig.used())["output_tokens"] == MOST + rig.upstreams["gpt"].max_output


@pytest.mark.parametrize("status", [None, 500, 429])
async def test_a_providers_failure_costs_the_same_in_front_of_a_loop_and_of_a_client(
    tmp_path: Path, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes the request and ends without an answer may have carried it out; an answer that refuses has not."""
    monkeypatch.setattr("ringfence.host.models.native._WAIT_SECONDS", 0.01)
    found = []
    for front in ("gateway", "loop"):
        (tmp_path / front).mkdir()
        async with a_rig(tmp_path / front, Answer([b"{}"], status or 200, JSON)) as rig:
            if status is None:
                monkeypatch.setattr(rig.provider, "_answer", _nothing)
            if front == "gateway":
                async with rig.connection() as (reader, writer):
                    writer.write(request(CHAT, {**ASKED, "stream": True}))
                    assert (await asyncio.wait_for(answered(reader), 30))[0] == (status or 502)
            else:
                with pytest.raises(Unavailable):
                    await rig.native("gpt").of(rig.caller).generate([{"role": "user", "text": "x"}], [], lambda _: None)
            used = await rig.used()
            found.append((used["input_tokens"] > 0, used["output_tokens"]))
    assert found == [(status is None, 0)] * 2


async def _nothing(*_: object) -> bool:
    return False


async def test_who_leaves_before_a_byte_was_sent_has_used_nothing(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([], hang=True)) as rig:
        rig.slow = 60.0
        async with rig.connection() as (_, writer):
            writer.write(request(CHAT, CALL))
            async with asyncio.timeout(30):
                while not rig.asked:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while rig.gateway.facts()["connections"]:
                await asyncio.sleep(0.01)
        assert rig.provider.arrived == [] and (await rig.used())["tokens"] == 0
