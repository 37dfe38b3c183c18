"""A kernel process of the kill loops: real store, real engine, real web application, real webhook; boxes without walls.

Its client speaks HTTP to it and says each acknowledgement that it has heard; so does an executor. A scenario is what a client does,
and doing it again after a restart is its retry, under the same keys. The boxes end with the process: whoever comes after it finds
them gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringfence.host.capabilities.webhook import Place, WebhookTool
from ringfence.host.engine import capability_asks, sending
from ringfence.host.kernel.capabilities import Capability, register
from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.failpoints import Again, Failpoints, Point, Quiet
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import RUN_FINAL, Effect, Run, RunState
from ringfence.host.kernel.script import parse_script
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.store import SqlStore, open_store
from ringfence.host.web.app import make_app
from tests.support import kill_breaks, kill_scenarios
from tests.support.engine_rig import CONFIG, RealClock
from tests.support.failing import Armed
from tests.support.fakes import World
from tests.support.kernel_process import NumbersOf, ProcessRig
from tests.support.nursery import Order
from tests.support.paying import ALLOW, ASK, KEY, SCRIPT
from tests.support.receiver import SECRET
from tests.support.store_work import KEYS

PATIENCE = 60.0  # of a child, for all that it does
SPEED = 10.0  # of its clock: the back-off after a lost executor is 1 s, a lease 30 s
Say = Callable[..., None]


class FastClock(RealClock):
    """ports.Clock. The same in every child, and on a database server that counts like `server_clock`."""

    def __init__(self, began: float) -> None:
        self._began = began

    def monotonic(self) -> float:
        return self._began + (time.time() - self._began) * SPEED

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)


def server_clock(began: float) -> str:
    """SQL that makes PostgreSQL count as FastClock does."""
    real = "extract(epoch FROM pg_catalog.clock_timestamp())"
    return (
        "CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS "
        f"$$ SELECT to_timestamp({began} + ({real} - {began}) * {SPEED}) $$"
    )


class Hook(WebhookTool):
    """Of the class that is wanted."""

    effect = Effect.ONCE

    @property
    def capability(self) -> Capability:
        return replace(super().capability, effect=self.effect)


class KillRig(ProcessRig):
    def __init__(self, began: float, *parts: Any) -> None:
        self._began = began
        super().__init__(*parts)

    def _made(self) -> Any:
        self.clock = FastClock(self._began)
        return super()._made()


class Later:
    """The engine of an application that was made before there was one: FastAPI takes longer for its routes than a child
    for its work."""

    rig: KillRig | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rig.engine, name) if self.rig is not None else self

    def __call__(self, **_shown: Any) -> None:
        """`people.presents` of the request that makes the routes."""


class LaterFailpoints:
    """kernel.failpoints.Failpoints that are known later."""

    now: Failpoints = Quiet()

    def reach(self, point: Point, detail: str = "") -> None:
        self.now.reach(point, detail)

    async def areach(self, point: Point, detail: str = "", again: Again | None = None) -> None:
        await self.now.areach(point, detail, again)


class Made:
    """What a nursery makes before its first fork, and every child fills in."""

    def __init__(self) -> None:
        self.engine, self.failpoints = Later(), LaterFailpoints()
        engine: Any = self.engine
        self.app = make_app(engine, operator=False, failpoints=self.failpoints)
        asyncio.run(self._warm())

    async def _warm(self) -> None:
        """A request that belongs to no route, so each of them is made."""
        async with _client(self.app, "") as client:
            assert (await client.get("/v1/nothing")).status_code == 404


def _client(app: ASGIApp, token: str) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1", headers=headers)


class Heard:
    """Pure ASGI around the application: what its client has in its hands, said at the moment when it has it."""

    def __init__(self, app: ASGIApp, say: Say) -> None:
        self._app, self._say = app, say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, body = 0, b""

        async def heard(message: Message) -> None:
            nonlocal status, body
            await send(message)
            status = message.get("status", status)
            body += message.get("body", b"")
            if message["type"] == "http.response.body" and not message.get("more_body") and status < 300:
                self._say(ack={"path": scope["path"], "body": _short(json.loads(body))})

        await self._app(scope, receive, heard)


def _short(body: dict[str, Any]) -> dict[str, Any]:
    """What a client would hold on to: a line of a pipe is whole up to 4 KiB."""
    return {name: body[name] for name in ("run", "message", "cursor", "gate", "answer", "state") if name in body}


class Stage:
    """What a scenario acts on."""

    def __init__(self, order: Order, say: Say, store: SqlStore, rig: KillRig, client: httpx2.AsyncClient) -> None:
        self.order, self.tell, self.store, self.rig, self._client = order, say, store, rig, client

    @property
    def thread(self) -> str:
        return f"t-{self.order.tag}"

    async def say(self, text: str, key: str, mode: str = "queue") -> RunId:
        """The run; accepted and durable."""
        new = {"text": text, "mode": mode, "key": f"{self.order.tag}-{key}"}
        path = f"/v1/tenants/default/threads/{self.thread}/messages"
        answer = await self._client.post(path, json=new)
        assert answer.status_code == 202, answer.text
        return RunId(answer.json()["run"])

    async def answer(self, gate: Gate, answer: str) -> None:
        said = {"answer": answer, "key": f"{self.order.tag}-{gate.id}"}
        done = await self._client.post(f"/v1/gates/{gate.id}/answer", json=said)
        assert done.status_code == 200, done.text

    async def cancel(self, run: RunId) -> None:
        done = await self._client.post(f"/v1/runs/{run}/cancel")
        assert done.status_code < 500, done.text

    async def until(self, run: RunId, reached: Callable[[Run], bool]) -> Run:
        while not reached(row := await self.store.runs.get(run)):
            await asyncio.sleep(0.01)
        return row

    async def ended(self, run: RunId) -> Run:
        return await self.until(run, lambda row: row.state in RUN_FINAL)

    async def asked(self, run: RunId) -> Gate | None:
        """The gate at which the run waits, or has waited; None: it ended without one."""
        await self.until(run, lambda row: row.state is RunState.PARKED or row.state in RUN_FINAL)
        gates = await self.store.gates.of_run(run)
        return gates[-1] if gates else None


async def work(order: Order, say: Say, made: Made) -> None:
    """The whole life of a child."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    for module in (sending, capability_asks):
        module.PAUSE = 0.02  # type: ignore[attr-defined]  # between two look-ups, and before another try
    point = Point(order.point) if order.point else None
    armed = Armed(point, order.n, "kill", about_to=lambda point, detail: say(fired=point, detail=detail))
    made.failpoints.now = armed
    kill_breaks.BREAKS[order.breaks]()
    async with asyncio.timeout(PATIENCE):
        await _live(order, say, made)
    say(reached=dict(armed.reached))


async def _live(order: Order, say: Say, made: Made) -> None:
    scenario = kill_scenarios.SCENARIOS[order.scenario]
    store = await open_store(
        order.url,
        FastClock(order.began),
        NumbersOf(order.number + 512),
        signer=Signer(NumbersOf(order.number).new("krn"), KEYS),
        installation=CONFIG.installation,
        failpoints=made.failpoints,
    )
    await store.audit.open()
    world = World(Path(order.folder) / f"world{order.number}", kill_scenarios.loop_of(order.scenario, say))
    tool = _hook(order, scenario.effect)
    parts = {
        "capabilities": register([tool]),
        "policy": ASK if scenario.asks else ALLOW,
        "gate_key": KEY,
        "failpoints": made.failpoints,
    }
    model = Scripted(parse_script(json.dumps(SCRIPT)))
    rig = KillRig(order.began, order.number, store, world, replace(CONFIG, adopt_seconds=0.1), model, parts)
    made.engine.rig = rig
    async with _client(Heard(made.app, say), order.token) as client:
        stage = Stage(order, say, store, rig, client)
        if scenario.before is not None:
            await scenario.before(stage)
        await rig.engine.start()
        await scenario.play(stage)
        await rig.engine.stop()
    await tool.close()
    await world.close()
    await store.close()


def _hook(order: Order, effect: Effect) -> Hook:
    base = f"http://127.0.0.1:{order.hook}"
    declared = Webhook("pay", f"{base}/hook?token=canary-query", "/nowhere", f"{base}/look")
    tool = Hook([Place(declared, SECRET)], RealClock())
    tool.effect = effect
    return tool
