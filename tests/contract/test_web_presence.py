"""Whoever may not speak any more while a connection of theirs is open: it ends, and says why; what it had running stops.

Each way out through each kind of connection, over the real engine and servers.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect

from ringfence.client.events import EventParser
from ringfence.host.engine import presence
from ringfence.host.kernel.ids import TokenId
from ringfence.host.kernel.people import Token
from ringfence.host.web.server import listening
from tests.support.engine_rig import OPERATOR, Rig, eventually, rig
from tests.support.fakes import parked

SECONDS = 4.0  # of life that the token has which expires
SLEEP = ["/bin/sleep", "60"]
Door = Callable[["Scene", dict[str, str], asyncio.Event], Coroutine[Any, Any, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Scene:
    """Alice and bob in one thread; ops is an operator by token."""

    rig: Rig
    http: httpx2.AsyncClient
    tcp: str

    async def token(self, user: str, ttl: float | None, *scopes: str) -> tuple[Token, dict[str, str]]:
        made, secret = await self.rig.engine.people.token_add(OPERATOR, "default", user, list(scopes), "", ttl)
        return made, {"Authorization": f"Bearer {secret}"}

    @property
    def open(self) -> int:
        return len(self.rig.engine.people._presences)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="rf") as name:
        folder = Path(name)
        async with rig(folder, ("alice", "bob", "ops"), parked) as r:
            await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob"], True)
            async with listening(r.engine, folder / "api.sock", ("127.0.0.1", 0)) as bound:
                assert bound.tcp is not None
                tcp = "{}:{}".format(*bound.tcp)
                async with httpx2.AsyncClient(base_url=f"http://{tcp}", trust_env=False, timeout=20) as http:
                    yield Scene(r, http, tcp)


# --- connections: each returns the error that it ended with ------------------------------------------------------------


async def _stream(s: Scene, method: str, path: str, opened: asyncio.Event, **given: Any) -> dict[str, Any]:
    parser, seen = EventParser(), []
    async with s.http.stream(method, f"/v1/tenants/default/threads/t/{path}", **given) as response:
        assert response.status_code in (200, 202)
        opened.set()
        async for chunk in response.aiter_bytes():
            seen += parser.feed(chunk)
    kind, data = seen[-1]
    assert kind == "error", seen
    return dict(data["error"])


async def follow(s: Scene, headers: dict[str, str], opened: asyncio.Event) -> dict[str, Any]:
    return await _stream(s, "GET", "events/stream", opened, headers=headers)


async def post(s: Scene, headers: dict[str, str], opened: asyncio.Event) -> dict[str, Any]:
    headers = {**headers, "Accept": "text/event-stream"}
    return await _stream(s, "POST", "messages", opened, headers=headers, json={"text": "hello"})


async def socket(s: Scene, headers: dict[str, str], opened: asyncio.Event) -> dict[str, Any]:
    address = f"ws://{s.tcp}/v1/tenants/default/users/alice/exec/stream"
    async with connect(address, additional_headers=headers) as opening:
        await opening.send(json.dumps({"argv": SLEEP}))
        frames: list[Any] = []
        async for frame in opening:
            opened.set()
            frames.append(json.loads(frame))
    assert set(frames[-1]) == {"error"}, frames
    return dict(frames[-1]["error"])


async def command(s: Scene, headers: dict[str, str], opened: asyncio.Event) -> dict[str, Any]:
    opened.set()
    answer = await s.http.post("/v1/tenants/default/users/alice/exec", headers=headers, json={"argv": SLEEP})
    assert answer.status_code == 401, answer.text
    return dict(answer.json()["error"])


# --- ways out ------------------------------------------------------------------------------------------------------------


async def revoked(s: Scene, token: Token) -> None:
    await s.rig.engine.people.token_remove(OPERATOR, "default", "alice", token.id)


async def removed(s: Scene, token: Token) -> None:
    await s.rig.engine.people.user_remove(OPERATOR, "default", "alice")


async def expired(s: Scene, token: Token) -> None:
    await asyncio.sleep(SECONDS)


async def revoked_elsewhere(s: Scene, token: Token) -> None:
    """By another server over the same database."""
    await s.rig.store.tokens.remove(TokenId(token.id))


async def ends(s: Scene, door: Door, token: Token, headers: dict[str, str], out: Any, within: float = 30.0) -> Any:
    opened = asyncio.Event()
    asking = asyncio.create_task(door(s, headers, opened))
    await asyncio.wait_for(opened.wait(), 30)
    await eventually(lambda: s.open, "a connection")
    await asyncio.sleep(0.3)
    assert not asking.done(), "the control: it lasts while its token does"
    await out(s, token)
    error = await asyncio.wait_for(asking, within)
    assert error["code"] == "unauthenticated"
    await eventually(lambda: not s.open, "nothing left")
    return error


@pytest.mark.parametrize("out", [revoked, removed, expired, revoked_elsewhere])
@pytest.mark.parametrize("door", [follow, post, socket, command])
async def test_it_ends(door: Door, out: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "FIRST_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.2 if out is revoked_elsewhere else 60.0)
    async with scene() as s:
        token, headers = await s.token("alice", SECONDS if out is expired else None)
        error = await ends(s, door, token, headers, out)
        words = {revoked: "not valid", removed: "removed", expired: "expired", revoked_elsewhere: "not valid"}
        assert words[out] in error["message"] and error["remedy"]
        commands = s.rig.box("alice").commands.values()
        await eventually(lambda: all(each.process.returncode is not None for each in commands), "the command's end")


@pytest.mark.parametrize("out", [revoked, removed, expired])
async def test_an_operator_as_somebody_is_let_go_with_either(out: Any) -> None:
    """The operator's token is revoked or expires; or the person is removed as whom they read."""
    async with scene() as s:
        token, headers = await s.token("ops", SECONDS if out is expired else None, "operator")
        gone = out if out is not revoked else _ops_revoked
        await ends(s, follow, token, {**headers, "Ringfence-As": "alice"}, gone)


async def _ops_revoked(s: Scene, token: Token) -> None:
    await s.rig.engine.people.token_remove(OPERATOR, "default", "ops", token.id)


async def test_an_operator_who_is_removed_reads_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ops_removed(s: Scene, token: Token) -> None:
        await s.rig.engine.people.user_remove(OPERATOR, "default", "ops")

    monkeypatch.setattr(presence, "FIRST_LOOK_SECONDS", 60.0)  # at once, not at the next look
    async with scene() as s:
        token, headers = await s.token("ops", None, "operator")
        await ends(s, follow, token, {**headers, "Ringfence-As": "alice"}, ops_removed)


async def test_nothing_that_is_said_later_is_shown() -> None:
    """Not even what is posted the moment after: the token is looked at before each write, not at the next beat."""
    async with scene() as s:
        token, headers = await s.token("alice", None)
        opened, seen = asyncio.Event(), bytearray()

        async def reading() -> None:
            path = "/v1/tenants/default/threads/t/events/stream"
            async with s.http.stream("GET", path, headers=headers) as response:
                opened.set()
                async for chunk in response.aiter_bytes():
                    seen.extend(chunk)

        asking = asyncio.create_task(reading())
        await asyncio.wait_for(opened.wait(), 30)
        await s.rig.say("bob", "before")
        await eventually(lambda: b"before" in seen, "the control: it is shown")
        await revoked(s, token)
        await s.rig.say("bob", "after")
        await asyncio.wait_for(asking, 30)
        assert b"event: error" in seen and b"after" not in seen


async def test_others_are_left_alone() -> None:
    async with scene() as s:
        token, headers = await s.token("alice", None)
        _, other = await s.token("alice", None)
        _, bobs = await s.token("bob", None)
        staying = [asyncio.create_task(follow(s, each, asyncio.Event())) for each in (other, bobs)]
        await eventually(lambda: s.open == 2)
        opened = asyncio.Event()
        asking = asyncio.create_task(follow(s, headers, opened))
        await opened.wait()
        await revoked(s, token)
        await asyncio.wait_for(asking, 30)
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in staying)
        for task in staying:
            task.cancel()
        await asyncio.gather(*staying, return_exceptions=True)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_file_under_way_is_cut_off(method: str) -> None:
    async with scene() as s:
        token, headers = await s.token("alice", None)
        url = "/v1/tenants/default/users/alice/files?path=f"
        size = 64 << 20
        file = s.rig.box("alice").folder / "f"
        if method == "GET":
            file.write_bytes(bytes(size))
            got = 0
            with pytest.raises(httpx2.RemoteProtocolError):
                async with s.http.stream("GET", url, headers=headers) as response:
                    async for chunk in response.aiter_bytes():
                        if got == 0:
                            await revoked(s, token)
                        got += len(chunk)
            assert got < size
            return

        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            await eventually(lambda: s.open)
            await revoked(s, token)
            yield b"y"

        answer = await s.http.put(url, headers=headers, content=body())
        assert (answer.status_code, file.exists()) == (401, False)
