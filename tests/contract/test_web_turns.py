"""A turn over HTTP: posting, the answer as a stream, live text, steer, cancel, redrive, hostile messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from ringfence.client import ApiError, Conflict, NotFound, SyncClient, threads
from ringfence.client.events import EventParser
from tests.support.web_rig import Web, web

SAID = {"thread", "message", "turn", "run", "reply", "status", "reason", "why", "steered", "gates"}
ACCEPTED = {"thread", "message", "turn", "run", "cursor", "repeated", "steered"}


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def post(served: Web, thread: str, body: object, accept: str | None = None, raw: bytes | None = None) -> Any:
    """The whole answer: for a stream its end is waited for."""
    headers = {"Ringfence-As": "alice", "Content-Type": "application/json", **({"Accept": accept} if accept else {})}
    content = json.dumps(body).encode() if raw is None else raw
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=served.socket), trust_env=False, timeout=10) as client:
        url = f"http://localhost/v1/tenants/default/threads/{thread}/messages"
        return client.post(url, content=content, headers=headers)


def parsed(answer: Any) -> list[tuple[str, Any]]:
    return EventParser().feed(answer.content)


async def test_say_follows_the_turn_to_its_end(served: Web) -> None:
    seen: list[dict[str, Any]] = []
    async with served.client(act_as="alice") as client:
        said = await client.say("t1", "hello", seen=seen.append)
        assert set(said) == SAID
        assert (said["thread"], said["status"], said["reply"]) == ("t1", "completed", "you said: hello")
        assert [item["kind"] for item in seen if "cursor" in item] == [
            "accepted", "run.started", "step.begun", "step.ended", "reply", "run.ended",
        ]  # fmt: skip
        failed = await client.say("t1", "fail")
        assert (failed["status"], failed["reason"], failed["reply"]) == ("failed", "diverged", None)
        assert failed["why"] == "what was asked again is not what the journal has: step 1 was \x1b[2Jsomething else"
        again = await client.say("t1", "once", key="k")
        repeated = await client.say("t1", "once", key="k")
        assert (repeated["turn"], repeated["reply"]) == (again["turn"], again["reply"])
        with pytest.raises(Conflict):
            await client.say("t1", "other", key="k")
        texts = [message["text"] for message in await client.messages("t1")]
        assert texts == ["hello", "fail", "once"]
        run = await client.run(said["run"])
        assert [(step["n"], step["tool"]) for step in run["steps"]] == [(1, "shell")]


async def test_live_text_is_the_actors_own(served: Web) -> None:
    """Before the reply that it led to; without a cursor; not for another member, nor in the record."""
    seen: list[dict[str, Any]] = []
    async with served.client(act_as="alice") as alice, served.client(act_as="bob") as bob:
        await alice.add_thread("live", members=["bob"])
        follows = [alice.follow("live", live=True), bob.follow("live", live=True), alice.follow("live")]
        first = [asyncio.create_task(anext(follow)) for follow in follows]
        while len(served.engine.threads.watches) < 3:
            await asyncio.sleep(0.01)
        await alice.say("live", "hello", seen=seen.append)
        kinds = [[(await task)["kind"]] for task in first]
        for known, follow in zip(kinds, follows, strict=True):
            while known[-1] != "run.ended":
                known.append((await anext(follow))["kind"])
            await follow.aclose()
        recorded = [event["kind"] for event in await alice.events("live")]
    own, others, without = kinds
    assert own.count("delta") == 2 and own.count("progress") == 1
    assert own.index("delta") < own.index("reply")
    assert others == without == recorded
    assert "".join(item["text"] for item in seen if item["kind"] == "delta") == "you said: hello"
    assert all("cursor" not in item for item in seen if item["kind"] in ("delta", "progress"))


def test_the_wire_form_of_an_answer_that_streams(served: Web) -> None:
    answer = post(served, "form", {"text": "hello"}, "text/event-stream")
    assert answer.status_code == 202
    assert answer.headers["content-type"].startswith("text/event-stream")
    (kind, accepted), *rest = parsed(answer)
    assert kind == "accepted" and set(accepted) == ACCEPTED
    assert rest[-1][0] == "run.ended" and all(data["turn"] == accepted["turn"] for _, data in rest)
    blocks = answer.text.split("\n\n")
    ids = [line for block in blocks for line in block.split("\n") if line.startswith("id: ")]
    assert ids == [f"id: {data['cursor']}" for _, data in rest if "cursor" in data]
    live = [block for block in blocks if "event: delta" in block]
    assert len(live) == 2 and not any("\nid: " in f"\n{block}" for block in live)


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        (None, False),
        ("*/*", False),
        ("application/json", False),
        ("text/event-stream;q=0, application/json", False),
        ("text/event-stream; q=0.000", False),
        ("application/json, Text/Event-Stream;q=0.5", True),
    ],
)
def test_who_gets_a_stream(served: Web, accept: str | None, streams: bool) -> None:
    answer = post(served, "accept", {"text": "hello"}, accept)
    assert answer.status_code == 202
    assert answer.headers["content-type"].startswith("text/event-stream") == streams
    if not streams:
        assert set(answer.json()) == ACCEPTED


async def test_an_answer_that_streams_shows_nothing_of_another_turn(served: Web) -> None:
    seen: list[dict[str, Any]] = []
    async with served.client(act_as="alice") as alice, served.client(act_as="bob") as bob:
        await alice.add_thread("two", members=["bob"])
        waiting = asyncio.create_task(alice.say("two", "wait", seen=seen.append))
        while not seen:
            await asyncio.sleep(0.01)
        await bob.say("two", "hello")
        joined = await alice.say("two", "and this", mode="steer")
        own = await waiting
    assert own["turn"] == joined["turn"] and own["reply"] == "you said: wait, and this"
    assert joined["steered"] and not own["steered"] and joined["reply"] == own["reply"]
    assert {item["turn"] for item in seen} == {own["turn"]}
    assert [item["body"] for item in seen if item["kind"] == "message"] == [
        {"text": "and this", "author": "alice", "steer": True}
    ]


async def test_a_turn_that_was_tried_again_goes_on_in_the_stream(served: Web) -> None:
    """The first end is not the last: who asks with the same key sees the turn to where it is now."""
    async with served.client(act_as="alice") as client:
        failed = await client.say("again", "fail", key="again")
        other = await client.say("again", "x")
        with pytest.raises(Conflict):
            await client.redrive_run(other["run"])
        tried = await client.redrive_run(failed["run"])
        assert (tried["state"], tried["attempts"]) == ("running", 2)
        said = await client.say("again", "fail", key="again")
        assert (said["status"], said["turn"]) == ("completed", failed["turn"])
        with pytest.raises(NotFound):
            await client.redrive_run("run_absent")


async def test_cancel(served: Web) -> None:
    async with served.client(act_as="alice") as alice, served.client(act_as="bob") as bob:
        posted = await alice.post_message("cancel", "wait")
        with pytest.raises(NotFound):
            await bob.cancel_run(posted["run"])
        assert (await alice.cancel_run(posted["run"]))["state"] == "cancelled"
        assert (await alice.cancel_run(posted["run"]))["state"] == "cancelled"
        assert (await alice.turn(posted["turn"]))["reason"] == "cancelled"


async def test_a_busy_lane_rejects(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.post_message("busy", "wait")
        said = await client.say("busy", "more", mode="reject")
        assert (said["status"], said["reason"]) == ("rejected", "lane_busy")
        with pytest.raises(Conflict) as raised:
            await client.post_message("busy", "more", mode="reject")
        assert raised.value.code == "lane_busy"
        with pytest.raises(Conflict) as raised:
            await client.say("busy", "full")
        assert (raised.value.code, raised.value.exit_code) == ("lane_full", 1)


async def test_attachments(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        await client.put_file("alice", "notes.txt", b"123")
        await client.say("files", "look", attachments=["notes.txt"])
        (message,) = await client.messages("files")
        assert message["attachments"] == [{"path": "notes.txt", "size": 3}]
        with pytest.raises(NotFound):
            await client.say("files", "look", attachments=["absent"])


def text_of(value: str) -> bytes:
    return b'{"text": "' + value.encode("utf-8", "surrogatepass") + b'"}'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (text_of("x" * 300_000), 413),
        (text_of("é" * 131_073), 413),
        (text_of("é" * 131_072), 202),
        (b'{"text": "\xff"}', 422),
        (text_of("half \ud800"), 422),
        (rb'{"text": "half \udfff"}', 422),
        (rb'{"text": "nul \u0000"}', 422),
        (b'{"text": "raw nul \0"}', 422),
        (b'{"text": "x", "key": "\\ud800"}', 422),
        (b'{"text": "x", "attachments": ["\\u0000"]}', 422),
        (b'{"text": "x", "attachments": "x"}', 422),
        (b'{"text": "x", "mode": "shout"}', 422),
        (b'{"text": 1}', 422),
        (b"{}", 422),
        (b'"text"', 422),
        (b"", 422),
        (b'{"text": "x"', 422),
        (b'\xef\xbb\xbf{"text": "x"}', 202),
    ],
)
def test_messages_that_make_no_sense(served: Web, body: bytes, status: int) -> None:
    """Also when a stream was asked for: an error is an answer before it opens."""
    for accept in (None, "text/event-stream"):
        answer = post(served, "odd", None, accept, raw=body)
        assert answer.status_code == status, answer.content[:300]
        if status >= 400:
            error = answer.json()["error"]
            assert error["message"] and error["remedy"]


@pytest.mark.parametrize("after", range(1, 7))
async def test_a_stream_that_breaks_is_taken_up_again(served: Web, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the answer ends, each durable event is seen once and the turn is known."""
    items, seen, opened = threads._items, list[dict[str, Any]](), 0

    async def cut(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
        nonlocal opened
        opened, left = opened + 1, after if opened == 0 else 1000
        async for item in items(chunks):
            yield item
            left -= "cursor" in item
            if left == 0:
                return

    monkeypatch.setattr(threads, "_items", cut)
    async with served.client(act_as="alice") as client:
        said = await client.say(f"broken{after}", "restart", seen=seen.append)
    assert opened == 2, "the control: it was broken"
    assert (said["status"], said["reply"]) == ("completed", "you said: restart")
    cursors = [item["cursor"] for item in seen if "cursor" in item]
    assert cursors == sorted(set(cursors)) == list(range(1, 8))


async def test_a_poster_that_leaves_leaves_the_turn(served: Web) -> None:
    async with served.client(act_as="alice") as client:
        accepted = asyncio.Event()
        saying = asyncio.create_task(client.say("gone", "wait", seen=lambda item: accepted.set()))
        await accepted.wait()
        saying.cancel()
        await asyncio.wait({saying})
        for _ in range(100):
            if not served.engine.threads.watches:
                break
            await asyncio.sleep(0.02)
        assert served.engine.threads.watches == []
        done = await client.say("gone", "on", mode="steer")
        assert done["steered"] and done["reply"] == "you said: wait, on"


def test_without_async(served: Web) -> None:
    kinds: list[str] = []
    with SyncClient(socket=served.socket, act_as="alice") as client:
        said = client.say("sync", "hello", seen=lambda item: kinds.append(item["kind"]))
        assert said["reply"] == "you said: hello" and "delta" in kinds
        follow = client.follow("sync", live=True)
        assert next(follow)["cursor"] == 1
        follow.close()
        run = client.say("sync", "fail")["run"]
        assert client.redrive_run(run)["attempts"] == 2
        assert client.cancel_run(run)["state"] in ("completed", "cancelled")
        with pytest.raises(ApiError):
            client.break_glass("sync", "incident 7")
