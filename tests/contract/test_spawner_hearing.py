"""What boxes' PID 1 say, as the spawner hears it: each box its own, bounded, and who writes without end keeps nobody waiting."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import protocol
from ringfence.spawner.children import PIECE, REST, Children
from ringfence.spawner.hearing import HEAD, TAIL, Heard, Hearing, reader_of
from ringfence.spawner.protocol import Limits
from tests.support import spawner_rig
from tests.support.spawner_rig import Refusal, Rig

A, B = "a" * 16, "b" * 16
SMALL = Limits(memory=128 << 20, pids=64, cpu_milli=1000, shm=16 << 20, run=4 << 20)


def _pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def test_head_and_tail_are_kept_and_the_rest_is_counted() -> None:
    heard = Heard()
    heard.add(b"a" * (HEAD - 1))
    heard.add(b"bc")
    heard.add(b"d" * (TAIL + 9) + b"e")
    assert heard.head == b"a" * (HEAD - 1) + b"b"
    assert heard.tail == b"d" * (TAIL - 1) + b"e"
    assert heard.dropped == 11


@pytest.mark.parametrize("size", [0, 1, HEAD, HEAD + 1, HEAD + TAIL, HEAD + TAIL + 1, 100_000])
@pytest.mark.parametrize("piece", [1, 7, PIECE])
def test_nothing_is_lost_uncounted(size: int, piece: int) -> None:
    if size // piece > 10_000:
        return
    heard, data = Heard(), os.urandom(size)
    for at in range(0, size, piece):
        heard.add(data[at : at + piece])
    assert len(heard.head) + len(heard.tail) + heard.dropped == size
    assert bytes(heard.head + heard.tail) == data[:HEAD] + data[max(HEAD, size - TAIL) :]


def test_a_pipe_that_is_full_at_once_again_is_read_once() -> None:
    """A loop over it would be one without end: nothing else of the spawner would have its turn."""
    children, (reader, writer) = Children(), _pipe()
    heard: list[int] = []

    def hear(box: str, data: bytes) -> None:
        heard.append(len(data))
        os.write(writer, b"x" * PIECE)  # as a writer that waits for room

    children.hear = hear
    children.listen("a", 1, reader)
    os.write(writer, b"x" * PIECE)
    children.drain(reader)
    assert heard == [PIECE]
    waited, until = children.waited_for()
    assert waited == [] and until is not None and until <= time.monotonic() + REST
    time.sleep(REST)
    assert children.waited_for() == ([reader], None)
    os.close(writer)
    os.close(reader)


def test_last_words_and_the_end_of_a_pipe() -> None:
    children, (reader, writer) = Children(), _pipe()
    told: list[tuple[str, bytes]] = []
    children.hear = lambda box, data: told.append((box, data))
    children.listen("a", 7, reader)
    assert children.hears("a") and not children.hears("b")
    os.write(writer, b"no \x1b more\n")
    os.close(writer)
    assert children.last_words(7) == "no   more"
    children.drain(reader)
    assert children.outputs() == [] and not children.hears("a")
    assert children.last_words(7) == "no   more"
    assert told == [("a", b"no \x1b more\n")]


@pytest.mark.parametrize("what", ["file", "socket", "terminal"])
def test_only_a_pipe_is_opened(what: str, tmp_path: Path) -> None:
    """What a hostile PID 1 has in the place of its stderr is its own choice."""
    ends: list[int] = []
    if what == "file":
        ends.append(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    elif what == "socket":
        ends += [end.detach() for end in socket.socketpair()]
    else:
        ends += os.openpty()
    with subprocess.Popen(["sleep", "60"], stderr=ends[-1]) as process:
        try:
            with pytest.raises(OSError, match="no pipe"):
                reader_of(process.pid)
        finally:
            process.kill()
    for end in ends:
        os.close(end)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    yield made
    made.clean()


def _said(rig: Rig, box: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.ask(protocol.Said(box))["said"]
    return found


def _say(pid: int, words: bytes) -> None:
    fd = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, words)
    os.close(fd)


@pytest.mark.root
def test_each_box_is_heard_as_itself_and_once(rig: Rig) -> None:
    pids = {}
    for box in (A, B):
        rig.provision(box)
        pids[box] = rig.start_box(box, SMALL)["identity"]["pid"]
    assert _said(rig) == []
    _say(pids[A], b"of a \x1b[2J\n")
    _say(pids[B], b"of b\n")
    found = {each["box"]: each["head"] for each in _said(rig)}
    assert found == {A: "of a  [2J\n", B: "of b\n"}
    assert _said(rig) == []


@pytest.mark.root
def test_a_box_of_an_earlier_spawner_is_heard_from_when_it_is_asked_for(rig: Rig) -> None:
    rig.provision(A)
    pid = rig.start_box(A, SMALL)["identity"]["pid"]
    rig.kill()
    rig.start()
    assert _said(rig) == []
    with pytest.raises(OSError, match="Broken pipe"):  # control: nobody reads its pipe
        _say(pid, b"to nobody\n")
    _said(rig, A)
    _said(rig, A)  # once: two readers would each have half of it
    _say(pid, b"again\n")
    assert [each["head"] for each in _said(rig)] == ["again\n"]
    rig.ask(protocol.Stop(A))
    assert _said(rig, A) == []


@pytest.mark.root
def test_many_that_talk_are_told_in_packets(rig: Rig) -> None:
    boxes = [letter * 16 for letter in "abcdefgh"]
    for box in boxes:
        rig.provision(box)
        _say(rig.start_box(box, SMALL)["identity"]["pid"], b"\xff" * 5000)
    heard: list[str] = []
    more = True
    while more:
        reply = rig.ask(protocol.Said())
        heard += [each["box"] for each in reply["said"]]
        more = reply["more"]
        assert all(each["dropped"] == 5000 - HEAD - TAIL for each in reply["said"])
    assert sorted(heard) == boxes
    with pytest.raises(Refusal, match="no such box"):
        rig.ask(protocol.Said("z" * 16))


@pytest.mark.parametrize("line", ["", "short\n", "x" * 30 + "\n"])
def test_many_boxes_with_a_word_each_are_told_in_packets(line: str) -> None:
    hearing = Hearing(None, Outputs(), None, None)  # type: ignore[arg-type]
    for number in range(1400):
        hearing._hear(f"{number:016d}", line.encode())
    told, more = [], True
    while more:
        answer = hearing.said(protocol.Said())
        assert len(json.dumps({"id": 2**53, "ok": asdict(answer.body)})) < protocol.MAX_PACKET  # type: ignore[call-overload]
        told += answer.body.said  # type: ignore[attr-defined]
        more = answer.body.more  # type: ignore[attr-defined]
    assert [each.box for each in told] == [f"{number:016d}" for number in range(1400)]


class Outputs:
    hear: object = None

    def outputs(self) -> list[int]:
        return []
