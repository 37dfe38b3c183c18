"""Files of boxes' logs: bounded, kept apart, whole after a kill, of one box each; and the reader over them, with who may."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ringfence.host.drivers import box_logs
from ringfence.host.drivers.box_logs import MAX_FILE, FileLogs
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.life.logs import Source

ONE, TWO = BoxId("a" * 16), BoxId("b" * 16)


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir(mode=0o700)
    return tmp_path


async def test_each_box_has_its_own_in_order_over_a_restart(home: Path) -> None:
    clock = Clock()
    first = FileLogs(home, clock)
    for number in range(3):
        first.tell(ONE, Source.LIFE, f"line {number}")
    first.tell(TWO, Source.GUEST, "another's")
    await first.close()
    clock.at += timedelta(seconds=1)
    second = FileLogs(home, clock)
    second.tell(ONE, Source.GUEST, "and on")
    found = await second.read(ONE, None)
    assert [line.text for line in found] == ["line 0", "line 1", "line 2", "and on"]
    assert len({line.id for line in found}) == 4  # one moment of the clock, and yet no two alike
    assert [line.text for line in await second.read(ONE, clock.at)] == ["and on"]
    assert [line.text for line in await second.read(TWO, None)] == ["another's"]


async def test_a_clock_that_goes_back_leaves_the_order(home: Path) -> None:
    clock = Clock()
    logs = FileLogs(home, clock)
    logs.tell(ONE, Source.LIFE, "before")
    clock.at -= timedelta(hours=1)
    logs.tell(ONE, Source.LIFE, "after")
    assert [line.text for line in await logs.read(ONE, None)] == ["before", "after"]


async def test_a_box_that_talks_without_end_is_bounded_and_takes_nothing_of_the_hosts(home: Path) -> None:
    logs = FileLogs(home, Clock())
    logs.tell(ONE, Source.LIFE, "started")
    for number in range(5000):
        logs.tell(ONE, Source.GUEST, f"{number} " + "x" * 500)
    found = await logs.read(ONE, None)
    assert found[0].text == "started"
    assert found[-1].text.startswith("4999 ")
    sizes = [path.stat().st_size for path in (home / "logs").iterdir()]
    assert max(sizes) <= MAX_FILE and sum(sizes) <= 4 * MAX_FILE
    assert {path.stat().st_mode & 0o777 for path in (home / "logs").iterdir()} == {0o600}


async def test_what_finds_no_room_is_counted_and_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_logs, "MAX_QUEUE", 3)
    logs = FileLogs(home, Clock())
    for number in range(5):
        logs.tell(ONE, Source.LIFE, f"line {number}")
    await logs.close()
    logs.tell(ONE, Source.LIFE, "next")
    assert [line.text for line in await logs.read(ONE, None)][2:] == ["line 2", "next (2 lines before it are not kept)"]


async def test_a_folder_that_cannot_be_written_fails_nobody_and_is_said_when_it_can(home: Path) -> None:
    (home / "logs").rmdir()
    logs = FileLogs(home, Clock())
    logs.tell(ONE, Source.LIFE, "lost")
    await logs.close()
    assert await logs.read(ONE, None) == []
    (home / "logs").mkdir()
    logs.tell(ONE, Source.LIFE, "kept")
    assert [line.text for line in await logs.read(ONE, None)] == ["kept (1 lines before it are not kept)"]


async def test_a_line_that_was_cut_short_is_left_out_and_spoils_none(home: Path) -> None:
    """A server that is killed while it writes."""
    logs = FileLogs(home, Clock())
    logs.tell(ONE, Source.LIFE, "whole")
    await logs.close()
    path = home / "logs" / f"{ONE}.host.jsonl"
    path.write_bytes(path.read_bytes() + b'{"at": "2026-01-01T00:00:')
    again = FileLogs(home, Clock())
    again.tell(ONE, Source.LIFE, "next")
    assert [line.text for line in await again.read(ONE, None)] == ["whole", "next"]


async def test_no_link_is_followed_and_no_other_name_is_made(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    os.symlink(target, home / "logs" / f"{ONE}.host.jsonl")
    logs = FileLogs(home, Clock())
    logs.tell(ONE, Source.LIFE, "x")
    logs.tell(BoxId("../target"), Source.LIFE, "x")
    await logs.close()
    assert target.read_text() == "mine"
    assert [path.name for path in (home / "logs").iterdir()] == [f"{ONE}.host.jsonl"]


async def test_words_that_are_to_be_in_no_line_are_in_none(home: Path) -> None:
    logs = FileLogs(home, Clock(), ("hunter2hunter2",))
    logs.tell(ONE, Source.GUEST, "postgresql://me:hunter2hunter2@host")
    assert "hunter2" not in (await logs.read(ONE, None))[0].text
    await logs.close()
    assert not any(b"hunter2" in path.read_bytes() for path in (home / "logs").iterdir())


async def test_what_is_forgotten_is_gone_with_what_was_not_written_yet(home: Path) -> None:
    logs = FileLogs(home, Clock())
    logs.tell(ONE, Source.GUEST, "x")
    logs.tell(TWO, Source.LIFE, "kept")
    await logs.close()
    logs.tell(ONE, Source.LIFE, "x")
    await logs.forget(ONE)
    await logs.close()
    assert [path.name for path in (home / "logs").iterdir()] == [f"{TWO}.host.jsonl"]
    await logs.forget(ONE)
    logs.tell(ONE, Source.GUEST, "its last words, on their way when it was removed")
    await logs.close()
    assert [path.name for path in (home / "logs").iterdir()] == [f"{TWO}.host.jsonl"]
