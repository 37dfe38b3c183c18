"""When a template is started again, and what is answered meanwhile. The processes are stand-ins; the real one has its own
tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from ringfence.spawner import config, template
from ringfence.spawner.children import Children
from ringfence.spawner.errors import Unavailable
from ringfence.spawner.template import Template
from tests.unit.spawner.test_config import GOOD

SETTINGS = config.parse(json.dumps(GOOD))


class Starts:
    """Counts; each process stands still until it is killed."""

    def __init__(self, children: Children) -> None:
        self.pids: list[int] = []
        self.children = children
        self.error: OSError | None = None

    def __call__(self, _settings: config.Config, channel: socket.socket) -> int:
        if self.error is not None:
            raise self.error
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        self.pids.append(pid)
        return pid

    def kill(self) -> None:
        os.kill(self.pids[-1], signal.SIGKILL)
        while self.children.running(self.pids[-1]):
            self.children.collect()
            time.sleep(0.001)


@pytest.fixture
def parts() -> tuple[Starts, Template]:
    children = Children()
    starts = Starts(children)
    return starts, Template(SETTINGS, children, starts)


def test_it_is_started_again_later_each_time(parts: tuple[Starts, Template], monkeypatch: pytest.MonkeyPatch) -> None:
    starts, tended = parts
    clock = [1000.0]
    monkeypatch.setattr("ringfence.spawner.template.time.monotonic", lambda: clock[0])
    tended.tend()
    tended.tend()
    assert len(starts.pids) == 1 and tended.pid == starts.pids[0]
    waited = []
    for _ in range(8):
        starts.kill()
        tended.tend()
        began, count = clock[0], len(starts.pids)
        assert tended.pid == 0
        with pytest.raises(Unavailable, match="started again in"):
            tended.fork(1000009, 0, 0)
        while len(starts.pids) == count:
            clock[0] += 0.5
            tended.tend()
        waited.append(clock[0] - began)
    assert waited == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    clock[0] += template.LONG_LIFE + 1
    starts.kill()
    tended.tend()
    assert tended.pid == starts.pids[-1] and len(starts.pids) == 10  # after a long life: at once
    tended.end()
    assert tended.pid == 0
    tended.tend()
    tended.end()
    assert len(starts.pids) == 10  # ended is ended


def test_one_that_cannot_be_started_is_tried_again(
    parts: tuple[Starts, Template], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, tended = parts
    clock = [1000.0]
    monkeypatch.setattr("ringfence.spawner.template.time.monotonic", lambda: clock[0])
    starts.error = OSError(11, "no process left")
    tended.tend()
    assert tended.pid == 0 and "no process left" in capsys.readouterr().err
    starts.error = None
    tended.tend()
    assert tended.pid == 0
    clock[0] += template.FIRST_DELAY
    tended.tend()
    assert tended.pid
    tended.end()


def test_a_template_that_stands_still_is_unavailable_and_never_waited_for(parts: tuple[Starts, Template]) -> None:
    _, tended = parts
    tended.tend()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(Unavailable, match="takes no request"):
        for _ in range(10_000):
            tended.fork(1000009, theirs.fileno(), theirs.fileno())
    tended.end()


def test_its_command_names_the_ids_of_boxes_alone() -> None:
    command = template.command(SETTINGS)
    assert command[1:4] == ["-I", "-S", "-B"] and command[-4:] == ["3", "4", "1000008", "2000000"]
