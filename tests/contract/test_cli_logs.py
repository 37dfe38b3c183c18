"""`box logs` against the real web servers: lines of JSON, words for people, what follows, and over a restart."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ringfence.host.kernel.life.logs import LogLine, Source
from tests.support.web_rig import RINGFENCE, Web, web

START = datetime(2026, 1, 1, tzinfo=UTC)


def _line(seconds: float, text: str, source: Source = Source.LIFE) -> LogLine:
    at = START + timedelta(seconds=seconds)
    return LogLine(at.isoformat(), at, source, text)


@pytest.fixture
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.engine.logs.kept = [
            _line(1, "started"),
            _line(2, "guest: \x1b[31m", Source.GUEST),
            _line(3, "stopped: idle"),
        ]
        yield made


def test_words_and_json(served: Web) -> None:
    done = served.cli("box", "logs", "alice")
    assert done.stdout.decode().splitlines() == [
        "2026-01-01T00:00:01  life    started",
        "2026-01-01T00:00:02  guest   guest: \\x1b[31m",
        "2026-01-01T00:00:03  life    stopped: idle",
    ]
    lines = [json.loads(line) for line in served.cli("box", "logs", "alice", "--json").stdout.splitlines()]
    assert lines[2] == {"at": "2026-01-01T00:00:03Z", "source": "life", "text": "stopped: idle"}
    assert len(lines) == 3


def test_the_newest_and_a_word_of_the_others(served: Web) -> None:
    done = served.cli("box", "logs", "alice", "--lines", "1")
    assert b"stopped: idle" in done.stdout and b"started" not in done.stdout
    assert b"--lines" in done.stderr
    assert served.cli("box", "logs", "alice", "--lines", "10001").returncode == 2
    assert served.cli("box", "logs", "nobody").returncode == 4


def test_what_comes_is_followed_and_nothing_twice(served: Web) -> None:
    """Also what was written late, and what an earlier look left out stays out."""
    words = [RINGFENCE, "box", "logs", "alice", "--follow", "--json", "--lines", "1"]
    with subprocess.Popen(words, env=served.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["text"] == "stopped: idle"
        now = datetime.now(UTC)
        served.engine.logs.kept += [LogLine("late", now - timedelta(seconds=5), Source.AUDIT, "late")]
        assert json.loads(process.stdout.readline())["text"] == "late"
        served.engine.logs.kept += [LogLine("next", now + timedelta(seconds=30), Source.LIFE, "next")]
        assert json.loads(process.stdout.readline())["text"] == "next"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
    assert process.returncode == 130
    assert served.engine.logs.asked[0] is None and served.engine.logs.asked[-1] is not None


async def test_the_sdk_follows_too(served: Web) -> None:
    async with asyncio.timeout(60), served.client() as client:
        seen = client.follow_box_logs("alice")
        assert [each["text"] for each in await anext(seen)] == ["started", "guest: \x1b[31m", "stopped: idle"]
        await seen.aclose()
