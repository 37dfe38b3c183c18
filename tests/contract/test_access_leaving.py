"""Somebody who is taken out of a thread, or whose glass has closed: nothing that is said from then on reaches them, whatever
was open or at work.
"""

from __future__ import annotations

import asyncio

import pytest

from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import RunState
from tests.support.access_rig import ALICE, At, Scene, found, scene
from tests.support.engine_rig import OPERATOR

LATER = {"later": "canary-said-later", "reply": "canary-replied-later"}


async def leaves(s: Scene) -> None:
    await s.engine.threads.set_member(OPERATOR, "default", s.names["thread"], "carol", False)


async def read(at: At) -> set[str]:
    """What of LATER a loop is given of its thread now."""
    return found(await at.does("thread.read", before=1 << 40, limit=200), LATER)


async def test_a_stream_that_was_open_ends() -> None:
    async with scene() as s:
        opened = asyncio.Event()
        path = f"/v1/tenants/default/threads/{s.names['thread']}/events/stream"
        reading = asyncio.create_task(s.follow("member", "GET", path, opened))
        await asyncio.wait_for(opened.wait(), 30)
        await leaves(s)
        await s.finish(s.runs["live"], LATER["reply"])
        await s.at_work("alice", LATER["later"])
        body = await asyncio.wait_for(reading, 30)
        assert b"event: error" in body
        assert b"not_found" in body
        assert found(body, LATER) == set()
        again = await s.http("member", "GET", path)
        assert (again.status, found(again.body, ALICE)) == (404, {"thread"})  # the name that was asked for


async def test_a_loop_that_works_on_is_given_nothing_more() -> None:
    """The reply to an earlier message would be its to read, had its actor stayed."""
    async with scene() as s:
        carol = await s.at_work("carol", "my own")
        before = await carol.does("thread.read", before=1 << 40, limit=200)
        assert found(before) >= {"text", "reply"}
        await leaves(s)
        await s.finish(s.runs["live"], LATER["reply"])
        assert await read(carol) == set()
        await s.finish(carol, "my reply")  # which the others wait for
        assert (await s.store.runs.get(RunId(carol.run))).state is RunState.COMPLETED


async def test_a_loop_of_a_member_is_given_it() -> None:
    """The control."""
    async with scene() as s:
        carol = await s.at_work("carol", "my own")
        await s.finish(s.runs["live"], LATER["reply"])
        await s.at_work("alice", LATER["later"])
        assert await read(carol) == {"reply"}


async def test_a_glass_that_was_open_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.host.engine.threads.BREAK_GLASS_SECONDS", 2.5)
    async with scene() as s:
        opened = asyncio.Event()
        path = f"/v1/tenants/default/threads/{s.names['thread']}"
        carol = await s.at_work("carol", "my own")
        again = await s.http("glass", "POST", f"{path}/break-glass", b'{"reason":"once more"}')
        assert again.status == 200
        reading = asyncio.create_task(s.follow("glass", "GET", f"{path}/events/stream", opened))
        await asyncio.wait_for(opened.wait(), 30)
        await s.finish(s.runs["live"], "canary-while-open")
        await asyncio.sleep(2.6)
        await s.at_work("alice", LATER["later"])
        await s.finish(carol, LATER["reply"])
        body = await asyncio.wait_for(reading, 30)
        assert b"canary-while-open" in body
        assert found(body, LATER) == set()
        assert (await s.http("glass", "GET", f"{path}/messages")).status == 403
