"""The SDK follows what leaves a box over a restart of its server."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from ringfence.client import Client, Unavailable, egress

PATIENCE = 30.0  # seconds
T1, T2, T3 = (f"2026-01-01T10:00:0{n}Z" for n in range(3))


@asynccontextmanager
async def server(path: str, until: str, since: list[str]) -> AsyncIterator[None]:
    """Answers one request a connection; what each wanted to have `since` is kept."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        since.append(parse_qs(urlsplit(target).query).get("since", [""])[0])
        body = json.dumps({"traffic": [], "rows": [], "dropped": 0, "until": until, "more": False}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield


async def test_a_server_that_comes_back_is_asked_behind_what_was_seen() -> None:
    since: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        path = str(Path(folder) / "s")
        async with (
            asyncio.timeout(PATIENCE),
            Client(socket=path) as client,
            aclosing(client.follow_egress("a")) as seen,
        ):
            async with server(path, T1, since):
                assert (await anext(seen))["until"] == T1
            Path(path).unlink(missing_ok=True)
            later = asyncio.ensure_future(anext(seen))
            with pytest.raises(TimeoutError):  # nobody is there, and it goes on asking
                await asyncio.wait_for(asyncio.shield(later), 2.5)
            async with server(path, T2, since):
                assert (await later)["until"] == T2
    assert since == ["", "2026-01-01T09:59:50+00:00"]


async def test_one_that_stays_away_is_said_and_one_that_never_was_at_once() -> None:
    since: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        path = str(Path(folder) / "s")
        async with asyncio.timeout(PATIENCE), Client(socket=path) as client:
            with pytest.raises(Unavailable):
                await anext(client.follow_egress("a"))
            client.resume_seconds = 0.3
            seen = client.follow_egress("a")
            async with server(path, T1, since):
                await anext(seen)
            Path(path).unlink(missing_ok=True)
            with pytest.raises(Unavailable):
                await anext(seen)
    assert since == [""]


def _row(name: str, at: str) -> dict[str, object]:
    return {"id": name, "at": at}


async def test_a_row_that_is_committed_late_comes_and_nothing_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`late` has a time before the look that it was not in."""
    old, late, next_one = _row("old", "2026-01-01T09:59:59Z"), _row("late", "2026-01-01T09:59:58Z"), _row("next", T2)
    passed, later = {"at": "2026-01-01T09:59:59Z", "host": "a"}, {"at": T1, "host": "b"}
    answers = [
        {"traffic": [passed], "rows": [old], "dropped": 0, "until": T1, "more": False},
        {"traffic": [later, passed], "rows": [old, late], "dropped": 0, "until": T2, "more": False},
        {"traffic": [later, passed], "rows": [next_one, old, late], "dropped": 0, "until": T3, "more": False},
    ]
    client = Client(socket="/nowhere")

    async def asked(*_: object, **__: object) -> dict[str, object]:
        return answers.pop(0)

    monkeypatch.setattr(client, "egress_log", asked)
    monkeypatch.setattr(egress, "LOOK_SECONDS", 0.0)
    async with client, aclosing(client.follow_egress("a")) as seen:
        found = [await anext(seen) for _ in range(3)]
    assert [[row["id"] for row in each["rows"]] for each in found] == [["old"], ["late"], ["next"]]
    assert [[row["host"] for row in each["traffic"]] for each in found] == [["a"], ["b"], []]


async def test_what_the_first_look_cut_off_is_said_and_comes_later_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [_row(f"{n}", "2026-01-01T09:59:59Z") for n in range(3)]
    client = Client(socket="/nowhere")

    async def asked(*_: object, **__: object) -> dict[str, object]:
        return {"traffic": [], "rows": rows, "dropped": 0, "until": T1, "more": False}

    monkeypatch.setattr(client, "egress_log", asked)
    monkeypatch.setattr(egress, "LOOK_SECONDS", 0.0)
    async with client, aclosing(client.follow_egress("a", limit=2)) as seen:
        first, second = await anext(seen), await anext(seen)
    assert [row["id"] for row in first["rows"]] == ["0", "1"] and first["more"]
    assert second["rows"] == []
