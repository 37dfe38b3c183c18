"""The unmodified clients of both providers stream through the gateway, by base URL and virtual key alone.

What the provider receives is recorded: the real key and nothing of the client's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from ringfence.host.kernel.models.usage import BudgetLimits
from tests.support.models_rig import KEY, VIRTUAL, Rig, a_rig
from tests.support.provider_double import Answer, as_json, chat, messages, responses

WORDS = ("Hel", "lo, ", "wörld")
ASKED: Any = [{"role": "user", "content": "hello"}]


def openai_client(rig: Rig) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=rig.openai, api_key=VIRTUAL, max_retries=0)


def anthropic_client(rig: Rig) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=rig.anthropic, api_key=VIRTUAL, max_retries=0)


def check_credentials(rig: Rig) -> None:
    """Of all that arrived: the real key where it belongs, the client's nowhere."""
    for arrived in rig.provider.arrived:
        values = [value for name, value in arrived.headers.items() if name in ("authorization", "x-api-key")]
        assert values in ([f"Bearer {KEY}"], [KEY])
        assert VIRTUAL not in str(arrived.headers) and VIRTUAL.encode() not in arrived.raw
        assert not [name for name in arrived.headers if name.startswith("x-stainless")]


async def test_openai_chat_streams(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat(*WORDS))) as rig, openai_client(rig) as client:
        said, last = [], None
        async for chunk in await client.chat.completions.create(model="gpt", messages=ASKED, stream=True):
            said.append(chunk.choices[0].delta.content or "")  # no chunk without a choice: it did not ask for one
            last = chunk
        assert "".join(said) == "".join(WORDS) and last is not None and last.choices[0].finish_reason == "stop"
        (arrived,) = rig.provider.arrived
        assert arrived.target == "/v1/chat/completions"
        assert (arrived.body["model"], arrived.body["stream_options"]) == ("real-1", {"include_usage": True})
        check_credentials(rig)
        used = await rig.used()
        assert (used["input_tokens"], used["cached_tokens"], used["output_tokens"]) == (100, 40, 7)
        assert used["money"] == pytest.approx((60 * 3 + 40 * 0.3 + 7 * 15) / 1e6, abs=1e-6)


async def test_openai_gets_the_use_it_asks_for(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat(*WORDS))) as rig, openai_client(rig) as client:
        stream = await client.chat.completions.create(
            model="gpt",
            messages=ASKED,
            stream=True,
            stream_options={"include_usage": True},
        )
        last = [chunk async for chunk in stream][-1]
        assert last.choices == [] and last.usage is not None and last.usage.total_tokens == 107


async def test_openai_responses_stream(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(responses(*WORDS))) as rig, openai_client(rig) as client:
        said = ""
        async for event in await client.responses.create(model="gpt", input="hello", stream=True):
            if event.type == "response.output_text.delta":
                said += event.delta
        assert said == "".join(WORDS)
        assert rig.provider.arrived[0].target == "/v1/responses" and rig.provider.arrived[0].body["store"] is False
        check_credentials(rig)
        assert (await rig.used())["output_tokens"] == 7


async def test_anthropic_streams(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(messages(*WORDS))) as rig, anthropic_client(rig) as client:
        async with client.messages.stream(model="claude", max_tokens=99, messages=ASKED) as stream:
            said = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
        assert said == list(WORDS) and final.usage.output_tokens == 7
        (arrived,) = rig.provider.arrived
        assert (arrived.target, arrived.body["max_tokens"]) == ("/v1/messages", 99)
        assert arrived.headers["anthropic-version"]
        check_credentials(rig)
        used = await rig.used()
        assert (used["input_tokens"], used["cached_tokens"], used["output_tokens"]) == (100, 40, 7)


async def test_answers_that_do_not_stream(tmp_path: Path) -> None:
    whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "real-1"}
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    spent = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    said: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "real-1",
        "stop_reason": "end_turn",
    }
    said |= {"stop_sequence": None, "content": [{"type": "text", "text": "ho"}]}
    said |= {"usage": {"input_tokens": 5, "output_tokens": 2}}
    answers = (as_json({**whole, "choices": [choice], "usage": spent}), as_json(said), as_json({"input_tokens": 41}))
    async with a_rig(tmp_path, *answers) as rig, openai_client(rig) as one, anthropic_client(rig) as other:
        reply = await one.chat.completions.create(model="gpt", messages=ASKED)
        assert reply.choices[0].message.content == "hi"
        message = await other.messages.create(model="claude", max_tokens=50, messages=ASKED)
        assert isinstance(message.content[0], anthropic.types.TextBlock) and message.content[0].text == "ho"
        counted = await other.messages.count_tokens(model="claude", messages=ASKED)
        assert counted.input_tokens == 41
        assert rig.provider.arrived[-1].target == "/v1/messages/count_tokens"
        used = await rig.used()
        assert (used["calls"], used["tokens"]) == (2, 14), "counting is no call"


async def test_the_models_are_listed(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([])) as rig, openai_client(rig) as one, anthropic_client(rig) as other:
        assert [each.id async for each in one.models.list()] == ["gpt", "gpt-responses", "gpt-tools"]
        assert [each.id async for each in other.models.list()] == ["claude"]
        assert rig.provider.arrived == []


async def test_errors_are_what_the_clients_know(tmp_path: Path) -> None:
    refused = as_json({"error": {"message": f"bad: {KEY} is odd", "type": "invalid_request_error", "code": "x"}}, 400)
    async with a_rig(tmp_path, refused) as rig, openai_client(rig) as one, anthropic_client(rig) as other:
        with pytest.raises(openai.NotFoundError, match="no model 'gpt-9'; there are: gpt, gpt-responses, gpt-tools"):
            await one.chat.completions.create(model="gpt-9", messages=ASKED)
        with pytest.raises(anthropic.NotFoundError, match="no model 'gpt'; there are: claude"):
            await other.messages.create(model="gpt", max_tokens=5, messages=ASKED)
        assert rig.provider.arrived == []
        with pytest.raises(openai.BadRequestError) as bad:
            await one.chat.completions.create(model="gpt", messages=ASKED)
        assert "is odd" in bad.value.message and KEY not in str(bad.value.body) + bad.value.message
        assert (await rig.used())["tokens"] == 0, "what was refused costs nothing"


async def test_a_budget_that_is_used_up_is_an_error_that_they_know(tmp_path: Path) -> None:
    limits = BudgetLimits(run_tokens=200)
    async with (
        a_rig(tmp_path, Answer(chat("x")), limits=limits) as rig,
        openai_client(rig) as one,
        anthropic_client(rig) as other,
    ):
        with pytest.raises(openai.RateLimitError, match="the budget for models is used up"):
            await one.chat.completions.create(model="gpt", messages=ASKED)
        with pytest.raises(anthropic.RateLimitError, match="the budget for models is used up"):
            await other.messages.create(model="claude", max_tokens=900, messages=ASKED)
        assert rig.provider.arrived == []
