"""The unmodified clients of both providers inside a real box, through its worker and the gateway, to a provider on loopback."""

from __future__ import annotations

import io
import sysconfig
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.engine.commands import ExecRequest
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.outward.credentials import Credential, Owner
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.assembly import Models, assembled
from ringfence.host.models.provider_keys import ProviderKeys
from ringfence.host.vault.release import Counter
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import Outside, outside
from tests.support.models_rig import KEY, table
from tests.support.provider_double import Answer, Provider, a_provider, chat, messages

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
PACKAGES = (
    "annotated_types anthropic anyio docstring_parser h11 httpcore2 httpx2 idna jiter openai opentelemetry pydantic "
    "pydantic_core sniffio truststore typing_inspection typing_extensions.py"
)
SCRIPT = """
import anthropic, openai, os
said = ""
for chunk in openai.OpenAI().chat.completions.create(
    model="gpt", messages=[{"role": "user", "content": "hi"}], stream=True
):
    said += chunk.choices[0].delta.content or ""
with anthropic.Anthropic().messages.stream(
    model="claude", max_tokens=90, messages=[{"role": "user", "content": "hi"}]
) as stream:
    said += " " + "".join(stream.text_stream)
print(said, os.environ["OPENAI_API_KEY"])
"""


@asynccontextmanager
async def paid(*answers: Answer) -> AsyncIterator[tuple[Outside, Provider, Models]]:
    async with outside() as o, a_provider(*answers) as provider:
        user = o.actors["alice"].user
        assert user is not None
        now = o.clock.now()
        key = Credential(o.ids.new("crd"), user.tenant, Owner.TENANT, None, "provider-key", 1, "opaque", now, now)
        await o.vault.put(o.store.credentials, key, Secret(KEY.encode()))
        keys = ProviderKeys(
            o.store.credentials, Counter(o.vault, o.store.credentials, o.store.audit), o.vault, o.store.model_usage, {}
        )
        limits = BudgetLimits(user_tokens=1_000_000)
        async with assembled(
            table(provider.url), limits, keys, o.store.model_usage, clock=o.clock, ids=o.ids, worker="krn"
        ) as models:
            o.gateway = models.gateway
            await o.restart()
            yield o, provider, models


def _packed() -> bytes:
    site, out = Path(sysconfig.get_path("platlib")), io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(site.iterdir()):  # and what is known of each: its version is read from there
            if path.name.split("-")[0].removesuffix("_api") in PACKAGES.split():
                archive.add(path, path.name, filter=lambda each: None if "__pycache__" in each.name else each)
    return out.getvalue()


async def _bring_clients(o: Outside) -> None:
    request = ExecRequest(
        argv=[b"/bin/sh", b"-c", b"mkdir -p sdk && tar x -C sdk --no-same-owner"], env={}, output="keep"
    )
    asked = replace(request, stdin="pipe", timeout=60.0)
    command = await o.engine.commands.run(o.actors["alice"], "default", "alice", asked)
    await command.write(_packed())
    await command.close_stdin()
    ended = await command.outcome()
    assert ended.code == 0 and ended.stderr is not None, ended.stderr


async def test_unmodified_clients_stream_from_inside_a_box() -> None:
    async with paid(Answer(chat("hel", "lo")), Answer(messages("wor", "ld"))) as (o, provider, models):
        await _bring_clients(o)
        said = await o.said("alice", f"PYTHONPATH=sdk python3 - <<'E'\n{SCRIPT}\nE\n")
        words, _, virtual = said.strip().rpartition(" ")
        assert words == "hello world" and "EXAMPLE" in virtual and KEY not in said
        assert [each.headers.get("authorization") or each.headers.get("x-api-key") for each in provider.arrived] == [
            f"Bearer {KEY}",
            KEY,
        ]
        assert all(virtual not in f"{each.headers}{each.raw!r}" for each in provider.arrived)
        user = o.actors["alice"].user
        assert user is not None
        await models.budgets.quiet()
        used = await models.budgets.of_user(user.id)
        assert (used["calls"], used["tokens"]) == (2, 214)


async def test_a_key_of_a_command_that_ended_opens_nothing() -> None:
    ask = 'curl -sS --max-time 20 -H "Authorization: Bearer $KEY" -d \'{"model": "gpt", "messages": []}\''
    async with paid(Answer(chat("x"))) as (o, provider, _):
        old = (await o.said("alice", 'echo "$OPENAI_API_KEY"')).strip()
        said = await o.said("alice", f'KEY={old}; {ask} "$OPENAI_BASE_URL/chat/completions"')
        assert '"error"' in said and provider.arrived == []
        # the control: the same request with the command's own key
        await o.said("alice", f'KEY="$OPENAI_API_KEY"; {ask} "$OPENAI_BASE_URL/chat/completions"')
        assert len(provider.arrived) == 1


async def test_a_users_own_key_of_a_provider_is_not_sent_to_the_gateway() -> None:
    told = "printenv OPENAI_BASE_URL OPENAI_API_BASE OPENAI_API_KEY ANTHROPIC_BASE_URL || true"
    async with paid() as (o, _, _models):
        given = (await o.said("alice", told)).split()
        assert len(given) == 4 and "/model/openai/v1" in given[0]  # the control: the gateway's
        await o.secret("alice", environment=("OPENAI_API_KEY",))
        key, anthropic = (await o.said("alice", told)).split()
        assert "EXAMPLE" in key and key != given[2] and "/model/anthropic" in anthropic
