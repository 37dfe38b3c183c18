"""An engine rig whose host can send to a receiver on loopback, with a scripted model that wants to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringfence.host.capabilities.webhook import Place, WebhookTool
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.capabilities import Capability, key_of, register
from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.policy import Policy, Rule, Verdict
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import Effect, RunState
from ringfence.host.kernel.script import parse_script
from ringfence.host.models.scripted import Scripted
from tests.support.engine_rig import RealClock, Rig, rig
from tests.support.receiver import SECRET, Receiver, receiver

KEY = b"k" * 32  # of gates
ALLOW = Policy((Rule("http.*", Verdict.ALLOW),))
ASK = Policy((Rule("http.*", Verdict.ASK),))
BODY = {"amount": 5}
CALL: dict[str, Any] = {"name": "http.webhook", "arguments": {"name": "pay", "body": BODY}}
ODD: dict[str, Any] = {"name": "http.webhook", "arguments": {"name": ["pay"], "body": BODY}}
SCRIPT = [
    {"when": "twice", "answers": [{"tool_calls": [CALL]}, {"tool_calls": [CALL]}, {"text": "paid twice"}]},
    {"when": "odd place", "answers": [{"tool_calls": [ODD]}, {"text": "not paid"}]},
    {"when": "pay", "answers": [{"tool_calls": [CALL]}, {"text": "paid"}]},
]


def paid_key(run: RunId, n: int = 1, call: Mapping[str, Any] = CALL) -> str:
    """What the receiver knows that call by, made as that step."""
    return key_of(run, n, digest(call["name"], call["arguments"], Effect.ONCE))


class Repeatable(WebhookTool):
    """Of a place that is told to be sent to as often as one likes."""

    @property
    def capability(self) -> Capability:
        return replace(super().capability, effect=Effect.IDEMPOTENT)


def hook(outside: Receiver, secret: bytes = SECRET, kind: type[WebhookTool] = WebhookTool) -> WebhookTool:
    declared = Webhook("pay", outside.url, "/nowhere", outside.lookup_url)
    return kind([Place(declared, secret)], RealClock())


@asynccontextmanager
async def paying(
    folder: Path, policy: Policy = ALLOW, kind: type[WebhookTool] = WebhookTool, **more: Any
) -> AsyncIterator[tuple[Rig, Receiver]]:
    """`more`: of `rig`."""
    async with receiver() as outside:
        tool = hook(outside, kind=kind)
        parts = {"capabilities": register([tool]), "policy": policy, "gate_key": KEY}
        model = Scripted(parse_script(json.dumps(SCRIPT)))
        try:
            async with rig(folder, model=model, parts=parts, **more) as r:
                yield r, outside
        finally:
            await tool.close()


async def parked(r: Rig, said: Accepted) -> Gate:
    """The run's newest gate, once it waits there."""
    await r.until(said.run.id, lambda run: run.state is RunState.PARKED)
    return (await r.store.gates.of_run(said.run.id))[-1]


async def asked(r: Rig, name: str = "alice", text: str = "pay", thread: str = "t") -> tuple[Accepted, Gate]:
    said = await r.say(name, text, thread)
    return said, await parked(r, said)
