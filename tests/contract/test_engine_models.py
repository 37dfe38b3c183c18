"""The native loop on a provider that costs: whose call it is, what a run shows of it, and what is left of a budget."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.kernel.boxes import BoxKind
from ringfence.host.kernel.errors import Exhausted
from ringfence.host.kernel.models.ports import Caller
from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.runs import RunState
from ringfence.host.models.budgets import Budgets
from ringfence.host.models.native import NativeModel
from ringfence.host.models.upstream_client import UpstreamClient
from ringfence.wire import messages as wire
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.fakes import Loop, parked
from tests.support.models_rig import KEY, Asked, table
from tests.support.provider_double import Answer, Provider, a_provider, messages


@asynccontextmanager
async def paid(
    folder: Path, answer: Answer, limits: BudgetLimits | None = None
) -> AsyncIterator[tuple[Rig, Provider, list[Caller]]]:
    """The rig on a provider, and who asked for its key."""
    asked: list[Caller] = []

    async def keys(caller: Caller, name: str) -> Secret:
        asked.append(caller)
        return Secret(KEY.encode())

    async with rig(folder, script=parked) as r, a_provider(answer) as provider:
        upstream = replace(table(provider.url)[-1], alias="scripted")
        client, budgets = (
            UpstreamClient(Asked(keys), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)),
            Budgets(r.store.model_usage, limits or BudgetLimits(), r.ids, r.clock, "krn"),
        )
        r.model = NativeModel(upstream, client, budgets)  # type: ignore[assignment]
        r.with_parts["spending"] = budgets
        await r.restart()
        try:
            yield r, provider, asked
        finally:
            await budgets.close()
            await client.close()


def generate(loop: Loop) -> wire.ModelGenerate:
    chat = [wire.ChatMessage("user", "alice: hello", [], None)]
    return wire.ModelGenerate(loop.start["token"], "scripted", 1, chat, None, [])


async def test_a_call_is_its_runs_and_its_users(tmp_path: Path) -> None:
    async with paid(tmp_path, Answer(messages("hel", "lo")), BudgetLimits(user_tokens=1_000_000)) as (
        r,
        provider,
        asked,
    ):
        loop = await r.loop(await r.say("alice", "go"))
        assert loop.start["window"] == 200_000
        answer = await loop.ask("model.generate", generate(loop))
        assert (answer["text"], answer["usage"]) == ("hello", {"input_tokens": 100, "output_tokens": 7})
        user = r.actors["alice"].user
        assert user is not None
        home = [box.id for box in await r.store.boxes.all() if box.user == user.id and box.kind is BoxKind.HOME]
        assert asked == [Caller(user.tenant, user.id, loop.run, home[0])]
        await r.with_parts["spending"].quiet()
        shown = (await r.engine.runs.show(r.actors["alice"], loop.run)).models
        assert shown is not None and (shown["calls"], shown["tokens"]) == (1, 107)
        used = await r.engine.people.models_used(user)
        assert used is not None and (used["tokens"], used["limit"]["tokens"]) == (107, 1_000_000)
        assert len(provider.arrived) == 1


async def test_what_a_run_used_is_for_its_actor_and_operators(tmp_path: Path) -> None:
    async with paid(tmp_path, Answer(messages("x"))) as (r, _, _):
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], False)
        loop = await r.loop(await r.say("alice", "go"))
        await loop.ask("model.generate", generate(loop))
        seen = {name: (await r.engine.runs.show(r.actors[name], loop.run)).models for name in ("alice", "bob")}
        assert seen["alice"] is not None and seen["bob"] is None
        assert (await r.engine.runs.show(OPERATOR, loop.run)).models is not None


async def test_a_budget_that_is_used_up_is_the_asks_error(tmp_path: Path) -> None:
    async with paid(tmp_path, Answer(messages("x", output=900)), BudgetLimits(run_tokens=1200)) as (r, provider, _):
        loop = await r.loop(await r.say("alice", "go"))
        await loop.ask("model.generate", generate(loop))
        await r.with_parts["spending"].quiet()
        with pytest.raises(Exhausted, match="1000 of 1200 tokens"):
            await loop.ask("model.generate", generate(loop))
        assert len(provider.arrived) == 1
        other = await r.loop(await r.say("alice", "go on", thread="u"))
        await other.ask("model.generate", generate(other))
        assert (await r.store.runs.get(loop.run)).state is RunState.RUNNING
