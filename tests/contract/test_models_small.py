"""A real model, small, behind a real server of its own: through the gateway and through the native loop. `make soak`
only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from ringfence.host.kernel.models.upstreams import Bound
from ringfence.host.models.gateway import Gateway
from tests.support.models_rig import VIRTUAL, Rig, a_rig
from tests.support.provider_double import Answer
from tests.support.small_model import small_model

pytestmark = pytest.mark.soak
# More than each is to say: a server that does not know the field which bounds an answer would go on.
ASKED: Any = [{"role": "user", "content": "Write a long story about a fox."}]
MOST = 32


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with small_model() as there:
        yield there


@asynccontextmanager
async def real(folder: Path, url: str) -> AsyncIterator[Rig]:
    async with a_rig(folder, Answer([])) as rig:
        upstream = replace(rig.upstreams["gpt"], base_url=url, model="smollm2", key="", max_output=64, window=2048)
        rig.upstreams["gpt"] = upstream
        rig.gateway = Gateway([upstream], rig.client, rig.budgets)
        server = await asyncio.start_server(lambda r, w: rig.gateway.serve(r, w, rig.caller), "127.0.0.1", 0)
        rig.port = server.sockets[0].getsockname()[1]
        try:
            yield rig
        finally:
            server.close()


async def test_a_real_model_speaks(tmp_path: Path, url: str) -> None:
    async with real(tmp_path, url) as rig, openai.AsyncOpenAI(base_url=rig.openai, api_key=VIRTUAL) as client:
        said = ""
        stream = await client.chat.completions.create(
            model="gpt", messages=ASKED, stream=True, max_tokens=MOST, temperature=0
        )
        async for chunk in stream:
            said += chunk.choices[0].delta.content or ""
        assert said.strip()
        whole = await client.chat.completions.create(model="gpt", messages=ASKED, max_tokens=MOST, temperature=0)
        assert whole.choices[0].message.content and whole.usage is not None
        used = await rig.used()
        assert 0 < whole.usage.completion_tokens <= MOST and used["calls"] == 2
        assert whole.usage.completion_tokens <= used["output_tokens"] <= 2 * MOST
        deltas: list[str] = []
        messages = [{"role": "system", "text": "Tell all."}, {"role": "user", "text": f"alice: {ASKED[0]['content']}"}]
        rig.upstreams["gpt"] = replace(rig.upstreams["gpt"], limit_field=Bound.OLDER)  # all that this server knows
        reply = await rig.native("gpt").of(rig.caller).generate(messages, [], deltas.append)
        assert reply.text == "".join(deltas) and reply.text.strip() and reply.stop in ("end", "length")
        assert reply.usage is not None and 0 < reply.usage[1] <= 64
