"""The gateway on the wire: which bytes come through, what never goes out, and how soon it lets go."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.kernel.models.usage import BudgetLimits
from ringfence.host.kernel.runs import RunState
from tests.support.models_rig import KEY, VIRTUAL, Rig, a_rig
from tests.support.provider_double import Answer, as_json, chat, event, messages, responses

CHAT = "/model/openai/v1/chat/completions"
RESPONSES = "/model/openai/v1/responses"
MESSAGES = "/model/anthropic/v1/messages"
ASKED: dict[str, Any] = {"model": "gpt", "messages": [{"role": "user", "content": "hello"}]}
LONG = {"messages": [{"role": "user", "content": "of more bytes than the double says tokens " * 3}]}
CLAUDE: dict[str, Any] = {**ASKED, "model": "claude", "max_tokens": 1000}
LEAST: dict[str, dict[str, Any]] = {CHAT: ASKED, RESPONSES: {"model": "gpt", "input": "x"}, MESSAGES: CLAUDE}


def request(path: str, body: object, method: str = "POST", **headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "host: model-gateway", f"authorization: Bearer {VIRTUAL}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"content-length: {len(raw)}", "", ""]).encode() + raw


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers, body without its chunks. IncompleteReadError: it broke off."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    if "content-length" in headers:
        return int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return int(head[0].split()[1]), headers, body


async def asked(rig: Rig, path: str, body: object, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with rig.connection() as (reader, writer):
        writer.write(request(path, body, **headers))
        return await asyncio.wait_for(answered(reader), 10)


@pytest.mark.parametrize(
    ("path", "body", "pieces"),
    [
        (
            CHAT,
            {**ASKED, "stream": True, "stream_options": {"include_usage": True}},
            chat("a", "b\u00e9", "c" * 70_000),
        ),
        (RESPONSES, {"model": "gpt", "input": "x", "stream": True}, responses("a", "b")),
        (MESSAGES, {**CLAUDE, "stream": True}, [*messages("a"), b": a comment\r\n\r\n", b"data: {odd\n\n"]),
    ],
)
async def test_a_streams_bytes_are_the_providers(
    tmp_path: Path, path: str, body: dict[str, Any], pieces: list[bytes]
) -> None:
    whole = b"".join(pieces)
    for size in (1 << 20, 7):
        cut = [whole[at : at + size] for at in range(0, len(whole), size)] if size > 7 else pieces
        (tmp_path / str(size)).mkdir()
        async with a_rig(tmp_path / str(size), Answer(cut)) as rig:
            status, headers, said = await asked(rig, path, body)
            assert (status, headers["content-type"], said) == (200, "text/event-stream", whole)


async def test_only_the_use_that_nobody_asked_for_is_left_out(tmp_path: Path) -> None:
    pieces = [*chat("a", "b"), b": the end"]
    whole, without = b"".join(pieces), b"".join([*chat("a", "b", usage=False), b": the end"])
    for size in (1, 3, 64, 1 << 20):
        cut = [whole[at : at + size] for at in range(0, len(whole), size)]
        (tmp_path / str(size)).mkdir()
        async with a_rig(tmp_path / str(size), Answer(cut)) as rig:
            _, _, said = await asked(rig, CHAT, {**ASKED, "stream": True})
            assert said == without
            assert (await rig.used())["output_tokens"] == 7


async def test_each_piece_goes_on_at_once(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a", "b"), delay=0.1)) as rig, rig.connection() as (reader, writer):
        writer.write(request(CHAT, {**ASKED, "stream": True}))
        await reader.readuntil(b'"content": "a"')
        assert len(rig.provider.arrived) == 1 and b"DONE" not in reader._buffer  # type: ignore[attr-defined]
        await reader.readuntil(b"DONE")


async def test_routing_of_the_caller_is_ignored(tmp_path: Path) -> None:
    routed: dict[str, Any] = {
        "api_base": "http://evil.test",
        "base_url": "http://evil.test",
        "azure_endpoint": "http://evil.test",
    }
    routed |= {"api_key": "sk-mine", "extra_headers": {"x-evil": "1"}, "aws_region_name": "x", "store": True}
    async with a_rig(tmp_path, Answer(chat("a"))) as rig:
        status, _, _ = await asked(
            rig,
            CHAT,
            {**ASKED, **routed, "stream": True},
            x_api_key="sk-mine",
            openai_organization="org-1",
            cookie="c=1",
        )
        assert status == 200
        (arrived,) = rig.provider.arrived
        assert set(arrived.body) == {"model", "messages", "stream", "stream_options"}
        assert arrived.headers["authorization"] == f"Bearer {KEY}" and b"evil" not in arrived.raw
        assert not {"x-api-key", "openai-organization", "cookie", "x-evil"} & set(arrived.headers)


REACHING = [
    (CHAT, {"web_search_options": {"x": 1}}),
    (CHAT, {"web_search_options": {}}),  # as the provider's own pages turn it on: all that is in it has a default
    (CHAT, {"plugins": [{"id": "web"}]}),
    (CHAT, {"search_parameters": {}}),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://e.test/?k"}}]}]},
    ),
    (RESPONSES, {"input": "x", "tools": [{"type": "mcp", "server_url": "https://e.test"}]}),
    (RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}),
    (RESPONSES, {"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://e.test"}]}]}),
    (MESSAGES, {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
    (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://e.test"}]}),
    (
        MESSAGES,
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://e.test"}}]}
            ]
        },
    ),
]


@pytest.mark.parametrize(("path", "more"), REACHING)
async def test_the_provider_is_no_other_way_out(tmp_path: Path, path: str, more: dict[str, Any]) -> None:
    async with a_rig(tmp_path, as_json({"usage": {}})) as rig:
        status, headers, said = await asked(rig, path, {**LEAST[path], **more})
        assert (status, headers["x-egress-reason"], rig.provider.arrived) == (403, "denied", [])
        assert b"provider_tools" in said
        if path != MESSAGES:  # the control: where the operator allows it, the same request goes out
            status, _, _ = await asked(rig, path, {**LEAST[path], **more, "model": "gpt-tools"})
            assert (status, len(rig.provider.arrived)) == (200, 1)


async def test_what_a_client_does_itself_is_no_way_out(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"type": "url", "url": "https://e.test"}}
    body = {**CLAUDE, "tools": [{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"}]}
    said = [{"role": "user", "content": [image]}, {"role": "assistant", "content": [call]}]
    async with a_rig(tmp_path, as_json({"usage": {}})) as rig:
        status, _, _ = await asked(rig, MESSAGES, {**body, "messages": said})
        assert status == 200 and rig.provider.arrived[0].body["messages"] == said


KEPT: list[dict[str, Any]] = [
    {"previous_response_id": "resp_1"},
    {"conversation": "conv_1"},
    {"background": True},
    {"conversation": {}},
    {"input": [{"type": "item_reference", "id": "item_1"}]},
    {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
]


@pytest.mark.parametrize("more", KEPT)
async def test_nothing_that_others_keep_at_the_provider_is_reached(tmp_path: Path, more: dict[str, Any]) -> None:
    async with a_rig(tmp_path, Answer(responses("a"))) as rig:
        for alias in ("gpt", "gpt-tools"):
            status, _, said = await asked(rig, RESPONSES, {"input": "x", **more, "model": alias})
            assert (status, rig.provider.arrived) == (400, []) and b"nothing is kept at the provider" in said
        status, _, _ = await asked(rig, RESPONSES, {"model": "gpt", "input": "x"})  # the control
        assert status == 200


async def test_a_client_that_leaves_is_followed(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(messages("a" * 400)[:3], hang=True)) as rig:
        async with rig.connection() as (reader, writer):
            writer.write(request(MESSAGES, {**CLAUDE, "stream": True}))
            await reader.readuntil(b"aaaa")
        async with asyncio.timeout(30):
            while not rig.provider.left:
                await asyncio.sleep(0.01)
        used = await rig.used()
        assert used["input_tokens"] == 100 and 400 / 3 <= used["output_tokens"] < 150, "what was seen is counted"


async def test_one_that_leaves_before_the_first_byte_is_followed_too(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer([], hang=True)) as rig:
        async with rig.connection() as (_, writer):
            writer.write(request(MESSAGES, CLAUDE))
            async with asyncio.timeout(5):
                while not rig.provider.arrived:
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            while not rig.provider.left or rig.gateway.facts()["connections"]:
                await asyncio.sleep(0.01)


async def test_a_run_that_has_ended_has_no_calls(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig:
        assert rig.caller.run is not None
        await rig.team.store.runs.end(rig.caller.run, 1, RunState.COMPLETED, "", "done")
        status, _, said = await asked(rig, CHAT, ASKED)
        assert status == 403 and b"has ended" in said and rig.provider.arrived == []


@pytest.mark.parametrize("partly", [False, True])
async def test_a_stream_beyond_its_budget_is_cut_off(tmp_path: Path, partly: bool) -> None:
    """The upstream is told its limit, and does not keep to it."""
    words = messages(*["x" * 4000] * 50)
    whole = b"".join(words)
    pieces = [whole[at : at + 5000] for at in range(0, len(whole), 5000)] if partly else words
    async with a_rig(tmp_path, Answer(pieces, delay=0.001), limits=BudgetLimits(run_tokens=2000)) as rig:
        status, _, said = await asked(rig, MESSAGES, {**CLAUDE, **LONG, "max_tokens": 5000, "stream": True})
        (arrived,) = rig.provider.arrived
        given = arrived.body["max_tokens"]
        assert status == 200 and 1000 < given < 2000
        events = said.removesuffix(b"\n\n").split(b"\n\n")
        assert whole.startswith(b"\n\n".join(events[:-1]) + b"\n\n") and len(said) < given * 8 + 20_000
        assert events[-1].startswith(b"event: error\n")
        error = json.loads(events[-1].partition(b"data: ")[2])
        assert error["error"]["type"] == "rate_limit_error" and "budget" in error["error"]["message"]
        used = await rig.used()
        assert used["tokens"] <= 2000, "no more is counted than was granted"


async def test_a_limit_is_set_where_there_are_budgets_and_the_client_sets_none(tmp_path: Path) -> None:
    for limits, expected in ((BudgetLimits(), None), (BudgetLimits(user_tokens=4000), 3800)):
        folder = tmp_path / str(expected)
        folder.mkdir()
        async with a_rig(folder, as_json({"usage": {}}), limits=limits) as rig:
            await asked(rig, CHAT, ASKED)
            found = rig.provider.arrived[0].body.get("max_completion_tokens")
            assert (found is None) if expected is None else (expected < int(found or 0) < 4000)


async def test_less_than_the_model_is_to_think_is_no_answer(tmp_path: Path) -> None:
    body = {**CLAUDE, "max_tokens": 5000, "thinking": {"type": "enabled", "budget_tokens": 3000}}
    async with a_rig(tmp_path, as_json({"usage": {}}), limits=BudgetLimits(run_tokens=2500)) as rig:
        status, headers, _ = await asked(rig, MESSAGES, body)
        assert (status, headers["x-egress-reason"], rig.provider.arrived) == (429, "budget_exhausted", [])
        assert (await rig.used())["tokens"] == 0


async def test_twenty_mebibytes_and_no_more(tmp_path: Path) -> None:
    async with a_rig(tmp_path, as_json({"usage": {}})) as rig:
        text = "x" * (20 << 20)
        status, _, said = await asked(rig, CHAT, {**ASKED, "messages": [{"role": "user", "content": text}]})
        assert status == 413 and b"20971520" in said and rig.provider.arrived == []
        text = text[:-1000]
        status, _, _ = await asked(rig, CHAT, {**ASKED, "messages": [{"role": "user", "content": text}]})
        assert status == 200 and len(rig.provider.arrived[0].raw) > len(text)


@pytest.mark.parametrize("status", [302, 307, 401])
async def test_no_redirect_is_followed_and_our_key_is_nobodys_business(tmp_path: Path, status: int) -> None:
    answer = as_json({"error": {"message": f"key {KEY}"}}, status, location="http://127.0.0.1:1/")
    async with a_rig(tmp_path, answer) as rig:
        found, _, said = await asked(rig, CHAT, ASKED)
        assert (found, len(rig.provider.arrived)) == (502, 1) and KEY.encode() not in said


@pytest.mark.parametrize("at", [1, 5, 20])
async def test_a_key_that_the_provider_shows_is_masked(tmp_path: Path, at: int) -> None:
    said = f'data: {{"echo": "Bearer {KEY}", "sk": 1}}\n\n'.encode()
    cut = said.index(KEY.encode()) + at
    async with a_rig(tmp_path, Answer([said[:cut], said[cut:]], delay=0.05)) as rig:
        _, _, found = await asked(rig, MESSAGES, {**CLAUDE, "stream": True})
        assert found == said.replace(KEY.encode(), b"*" * len(KEY))


async def test_a_provider_that_breaks_off_is_said_in_its_own_words(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a")[:2], drop=True)) as rig:
        _, _, said = await asked(rig, CHAT, {**ASKED, "stream": True})
        last = json.loads(said.removesuffix(b"\n\n").split(b"\n\n")[-1].removeprefix(b"data: "))
        assert last["error"]["code"] == "upstream_failed"
    (tmp_path / "b").mkdir()
    async with a_rig(tmp_path / "b", Answer([b'data: {"half'], drop=True)) as rig:
        with pytest.raises(asyncio.IncompleteReadError):  # in the middle of an event nothing can be said
            await asked(rig, MESSAGES, {**CLAUDE, "stream": True})


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("close", [False, True])
async def test_one_that_breaks_off_before_a_word_of_it_is_sent_is_502(
    tmp_path: Path, kind: str, *, close: bool
) -> None:
    """Its head and a body that is none come in one read. The client may ask again."""
    broken = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n".encode()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.write(broken)
        await reader.read()
        writer.close()

    async with a_rig(tmp_path, as_json({})) as rig, await asyncio.start_server(answering, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        rig.gateway._upstreams["gpt"] = replace(rig.upstreams["gpt"], base_url=f"http://127.0.0.1:{port}/v1")
        headers = {"connection": "close"} if close else {}
        status, said, raw = await asked(rig, CHAT, {**ASKED, "stream": kind != "application/json"}, **headers)
        assert (status, said["x-egress-reason"]) == (502, "upstream_failed"), raw
        assert "x-should-retry" not in said and json.loads(raw)["error"]["code"] == "upstream_failed"


async def test_refusals_of_the_front(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig:
        for path, body, headers, status, code in (
            (CHAT, b"{", {}, 400, "malformed"),
            (CHAT, b"[1]", {}, 400, "malformed"),
            (CHAT, b'{"model": "gpt", "model": "claude"}', {}, 400, "malformed"),
            (CHAT, {**ASKED, "n": 1000}, {}, 400, "malformed"),
            (CHAT, {**ASKED, "max_tokens": -1}, {}, 400, "malformed"),
            (CHAT, b"[" * 200_000, {}, 413, "too_large"),
            ("/model/openai/v1/files", ASKED, {}, 404, "not_found"),
            ("/model/openai/v1/responses/resp_1", ASKED, {}, 404, "not_found"),
            (RESPONSES, b"", {"upgrade": "websocket", "connection": "upgrade"}, 403, "not_supported"),
        ):
            found, said, raw = await asked(rig, path, body, **headers)
            assert (found, said["x-egress-reason"]) == (status, code), (path, raw)
            assert json.loads(raw)["error"]["code"] == code
        rig.sealed = True
        status, _, raw = await asked(rig, CHAT, ASKED)
        assert status == 503 and b"cannot be reached now" in raw and b"sealed" not in raw, "nothing of the host"
        assert rig.provider.arrived == [] and (await rig.used())["tokens"] == 0


async def test_head_is_answered_and_a_method_that_there_is_not_names_those_that_there_are(tmp_path: Path) -> None:
    async with a_rig(tmp_path, as_json({"usage": {}})) as rig:
        for method, path, status, allow in (
            ("HEAD", "/model/openai/v1/models", 200, None),
            ("HEAD", "/model/anthropic/v1/models", 200, None),
            ("HEAD", CHAT, 405, "POST"),
            ("HEAD", "/model/openai/v1/none", 404, None),
            ("GET", MESSAGES, 405, "POST"),
            ("DELETE", "/model/openai/v1/models", 405, "GET, HEAD"),
        ):
            async with rig.connection() as (reader, writer):
                writer.write(f"{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
                head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().lower()
                assert head.startswith(f"http/1.1 {status} "), (method, path, head)
                assert (f"\r\nallow: {allow}\r\n".lower() in head) if allow else "\r\nallow:" not in head
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                writer.write_eof()
                rest = await asyncio.wait_for(reader.read(), 10)
                assert (length > 0, len(rest)) == (True, 0 if method == "HEAD" else length)
        assert rig.provider.arrived == []


async def test_one_connection_carries_many_requests(tmp_path: Path) -> None:
    async with a_rig(tmp_path, as_json({"usage": {}})) as rig, rig.connection() as (reader, writer):
        first, second = request(CHAT, ASKED), request(MESSAGES, CLAUDE)
        writer.write(first + second[:30])
        assert (await answered(reader))[0] == 200
        writer.write(second[30:])
        assert (await answered(reader))[0] == 200
        for _ in range(2):
            writer.write(b"GET /model/openai/v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            status, headers, _ = await answered(reader)
            assert status == 200 and "connection" not in headers
        assert rig.provider.connections == 1


async def test_whoever_is_answered_before_the_end_of_a_request_is_told_that_the_connection_ends(tmp_path: Path) -> None:
    """A worker that was not told would give the connection to its next request, and answer that with 502."""
    async with a_rig(tmp_path, as_json({})) as rig, rig.connection() as (reader, writer):
        writer.write(request("/model/openai/v1/none", ASKED))
        status, headers, _ = await answered(reader)
        assert (status, headers["connection"]) == (404, "close")
        assert await reader.read() == b""


async def test_what_is_asked_of_the_vault_says_who_asks(tmp_path: Path) -> None:
    async with a_rig(tmp_path, Answer(chat("a"))) as rig:
        await asked(rig, CHAT, ASKED)
        await asked(rig, CHAT, ASKED)
        assert rig.asked == [(rig.caller, "provider-key")] * 2, "for each call anew"


def test_an_event_of_ours_is_one_of_theirs() -> None:
    assert event({"a": 1}, "x") == b'event: x\ndata: {"a": 1}\n\n'
