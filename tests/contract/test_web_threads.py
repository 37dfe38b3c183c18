"""Threads over HTTP: events as pages and as a stream with a cursor, members, break-glass, a reader that leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import httpx2
import pytest

from ringfence.client import Invalid, NotFound, Refused
from ringfence.host.web import feed
from tests.support.engine_rig import eventually
from tests.support.web_rig import Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


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
            await asyncio.wait_for(reading, 30)
        await follow.aclose()
        with pytest.raises(NotFound):
            await bob.events("shared")


async def test_break_glass_is_an_event_for_the_members(served: Web) -> None:
    async with served.client(act_as="alice") as alice, served.client() as operator:
        await alice.add_thread("glass")
        opened = await operator.break_glass("glass", "incident 7")
        assert set(opened) == {"until"} and opened["until"].startswith("20")
        (event,) = await alice.events("glass")
        assert (event["kind"], event["body"]["reason"]) == ("break_glass", "incident 7")
        with pytest.raises(Refused):
            await alice.break_glass("glass", "curious")
        for reason in ("x", "nul\0", "half \ud800"):
            with pytest.raises(Invalid):
                await operator.break_glass("glass", reason)


async def test_one_event_costs_one_query(served: Web) -> None:
    """Between two events the stream waits; it does not ask whether there is more after a page that was not full."""
    async with served.client(act_as="alice") as client:
        await client.say("cost", "hello")
        talk = served.engine.threads.talks["default", "cost"]
        follow = client.follow("cost", after=len(talk.events) - 1)
        await anext(follow)
        before = served.engine.threads.queries
        for at in range(20):
            asyncio.run_coroutine_threadsafe(talk.event("run.queued", {"n": at}), served.loop)
            assert (await anext(follow))["body"] == {"n": at}
        assert served.engine.threads.queries - before == 20
        await follow.aclose()


async def test_a_long_past_comes_in_pages(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.say("past", "hello")
        talk = served.engine.threads.talks["default", "past"]
        for at in range(feed.PAGE * 3):
            asyncio.run_coroutine_threadsafe(talk.event("run.queued", {"n": at}), served.loop).result(5)
        follow = client.follow("past")
        got = [(await anext(follow))["cursor"] for _ in range(len(talk.events))]
        assert got == list(range(1, len(talk.events) + 1))
        await follow.aclose()


async def test_a_reader_that_leaves_leaves_nothing_behind(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.say("left", "hello")

        def waiting() -> int:
            tasks = asyncio.all_tasks(served.loop)
            return sum("_Feed._news" in repr(task.get_coro()) for task in tasks)

        before = waiting()
        follows = [client.follow("left", after=6) for _ in range(5)]
        readers = [asyncio.create_task(anext(follow)) for follow in follows]
        await eventually(lambda: waiting() == before + 5, "five readers that wait for news")
        assert len(served.engine.threads.watches) == 5
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)
        for follow in follows:
            await follow.aclose()
        await eventually(lambda: waiting() == before, "none of them")
        await eventually(lambda: served.engine.threads.watches == [], "nobody who looks on")


async def test_a_reader_that_does_not_read_holds_little(served: Web) -> None:
    """Behind a full socket the server asks for no more events: what it keeps for one reader is a page."""
    async with served.client(act_as="alice") as client:
        await client.add_thread("slow")
        talk = served.engine.threads.talks["default", "slow"]
        for at in range(feed.PAGE * 20):
            served.does(talk.event("run.queued", {"n": at, "padding": "x" * 10_000}))
        before = served.engine.threads.queries
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(served.socket)
            path = b"/v1/tenants/default/threads/slow/events/stream"
            peer.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nRingfence-As: alice\r\n\r\n")
            await asyncio.sleep(1)
            asked = served.engine.threads.queries - before
            assert 1 <= asked <= 4, "the first page, and what fits into the buffers of the socket"
            assert len(served.engine.threads.watches) == 1
            assert len(await client.events("slow", limit=5)) == 5, "nobody else waits for it"
        for _ in range(100):
            if not served.engine.threads.watches:
                break
            await asyncio.sleep(0.02)
        assert served.engine.threads.watches == []
        follow = client.follow("slow")
        assert [(await anext(follow))["body"]["n"] for _ in range(feed.PAGE * 20)] == list(range(feed.PAGE * 20))
        await follow.aclose()
