"""Threads over HTTP: posting, events as pages and as a stream with a cursor, the end of a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from ringfence.client import Conflict, NotFound
from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


async def test_say_follows_the_turn_to_its_end(served: Web) -> None:
    seen: list[dict[str, Any]] = []
    async with served.client(act_as="alice") as client:
        said = await client.say("t1", "hello", seen=seen.append)
        assert set(said) == {"thread", "message", "turn", "run", "reply", "status", "reason", "gates"}
        assert (said["thread"], said["status"], said["reply"]) == ("t1", "completed", "you said: hello")
        failed = await client.say("t1", "fail")
        assert (failed["status"], failed["reason"], failed["reply"]) == ("failed", "diverged", None)
        again = await client.say("t1", "once", key="k")
        assert (await client.say("t1", "once", key="k"))["turn"] == again["turn"]
        with pytest.raises(Conflict):
            await client.say("t1", "other", key="k")
        texts = [message["text"] for message in await client.messages("t1")]
        assert texts == ["hello", "fail", "once"]
        run = await client.run(said["run"])
        assert [(step["n"], step["tool"]) for step in run["steps"]] == [(1, "shell")]


async def test_a_busy_lane_rejects(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.post_message("busy", "wait")
        said = await client.say("busy", "more", mode="reject")
        assert said["status"] == "rejected"
        with pytest.raises(Conflict) as raised:
            await client.post_message("busy", "more", mode="reject")
        assert raised.value.code == "lane_busy"


async def test_the_stream_goes_on_behind_a_cursor(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.say("cursor", "one")
        known = await client.events("cursor")
        assert [event["cursor"] for event in known] == list(range(1, len(known) + 1))
        got: list[int] = []
        follow = client.follow("cursor", after=2)
        saying = asyncio.create_task(client.say("cursor", "two"))
        async for event in follow:
            got.append(event["cursor"])
            if len(got) == 2 * len(known) - 2:
                break
        await follow.aclose()
        await saying
    assert got == list(range(3, 2 * len(known) + 1))


async def test_the_wire_form_of_the_stream(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.say("wire", "line\nbreak: é")
    transport = httpx2.AsyncHTTPTransport(uds=served.socket)
    headers = {"Ringfence-As": "alice", "Last-Event-ID": "4"}
    url = "http://localhost/v1/tenants/default/threads/wire/events/stream"
    async with httpx2.AsyncClient(transport=transport, trust_env=False, headers=headers) as raw:
        async with raw.stream("GET", f"{url}?after=1") as answer:  # the header says more lately than the URL
            assert answer.headers["content-type"].startswith("text/event-stream")
            text = ""
            async for chunk in answer.aiter_text():
                text += chunk
                if text.count("\n\n") == 2:
                    break
        first = text.split("\n\n")[0].split("\n")
        assert first[:2] == ["id: 5", "event: reply"] and first[2].startswith('data: {"cursor": 5')
        assert (await raw.get(url, headers={"Last-Event-ID": "x"})).status_code == 422
        assert (await raw.get(f"{url}?after=-1", headers={"Last-Event-ID": ""})).status_code == 422


async def test_a_member_that_is_removed_sees_the_stream_end(served: Web) -> None:
    async with served.client(act_as="alice") as alice, served.client(act_as="bob") as bob:
        await alice.add_thread("shared", members=["bob"])
        assert (await bob.thread("shared"))["members"] == ["alice", "bob"]
        follow = bob.follow("shared")
        reading = asyncio.create_task(anext(follow))
        await asyncio.sleep(0.1)
        await alice.remove_member("shared", "bob")
        with pytest.raises(NotFound):
            await asyncio.wait_for(reading, 5)
        await follow.aclose()
        with pytest.raises(NotFound):
            await bob.events("shared")


async def test_a_reader_that_leaves_leaves_nothing_behind(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.say("left", "hello")

        def waiting() -> int:
            tasks = asyncio.all_tasks(served.loop)
            return sum("wait" in repr(task.get_coro()) and "Threads" in repr(task.get_coro()) for task in tasks)

        before = waiting()
        follows = [client.follow("left", after=6) for _ in range(5)]
        readers = [asyncio.create_task(anext(follow)) for follow in follows]
        await asyncio.sleep(0.3)
        assert waiting() == before + 5
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        for follow in follows:
            await follow.aclose()
        await asyncio.sleep(0.3)
        assert waiting() == before
