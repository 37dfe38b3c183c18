"""Time-outs in the real guest when it stood still: only PID 1 is stopped here, which is what its clock sees of a pause.

A command that is to be ended waits for a sign, not for a time: whoever ends it too early is found out by the order.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringfence.guest.poller import OVERSLEPT_SECONDS
from tests.support.guest_rig import Box, Host, built_tree, running_box, spec

LONG = 2.0  # more than any time-out here, and than what PID 1 takes for a long sleep
assert LONG > OVERSLEPT_SECONDS


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with built_tree() as made:
        yield made


@pytest.fixture
def box(tree: Path) -> Iterator[Box]:
    with running_box(tree) as made:
        yield made


@contextmanager
def still(box: Box, seconds: float = LONG) -> Iterator[None]:
    """PID 1 stands still for so long; what is done inside is done just before it goes on."""
    pid = box.guest_pid()
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def waits(host: Host, box: Box, key: str, timeout: float, grace: float = 0.3) -> None:
    """A command that ends well when it is told to, and is not before its time-out is over."""
    script = f"trap '' TERM; echo up; until [ -e go-{key} ]; do sleep 0.02; done"
    host.begin("cmd.spawn", **spec(key, "/bin/sh", "-c", script, timeout=timeout, grace=grace))
    host.until(lambda: key in host.outputs)


def goes(host: Host, box: Box, key: str) -> str:
    (box.home / f"go-{key}").touch()
    return host.ended(key).reason


def resumed(host: Host, seconds: float = LONG, pause: str = "p1") -> int:
    """Says it, and waits for no answer."""
    return host.begin("box.resumed", pause=pause, seconds=seconds)


def test_a_command_is_given_the_time_that_the_box_stood_still(box: Box) -> None:
    """E74: written before PID 1 goes on. The pause alone is longer than the time-out."""
    with box.dial() as host:
        waits(host, box, "k", timeout=1.5)
        with still(box):
            number = resumed(host)
        assert host.reply(number).ok == {}
        host.request("cmd.signal", key="k", signal=signal.SIGCONT)  # two turns later it is there still
        assert goes(host, box, "k") == "exit"


def test_without_a_word_it_is_over(box: Box) -> None:
    """The control of the above."""
    with box.dial() as host:
        waits(host, box, "k", timeout=1.5)
        with still(box):
            pass
        assert host.ended("k").reason == "timeout"


def test_a_word_by_the_next_wire_is_in_time(box: Box) -> None:
    """The wire broke meanwhile, or another server resumes."""
    with box.dial() as host:
        waits(host, box, "k", timeout=1.5)
    with still(box):
        pass
    with box.dial() as host:
        assert host.reply(resumed(host)).ok == {}
        assert goes(host, box, "k") == "exit"


def test_the_timeout_still_comes_when_the_time_is_over(box: Box) -> None:
    with box.dial() as host:
        began = time.monotonic()
        waits(host, box, "k", timeout=1.5)
        with still(box):
            resumed(host)
        ended = host.ended("k")
        assert ended.reason == "timeout" and time.monotonic() - began >= 1.5 + LONG
        assert 1500 <= ended.duration_ms <= (time.monotonic() - began - LONG) * 1000 + 100  # what it was awake


def test_what_is_said_twice_counts_once_and_what_is_longer_by_the_rest(box: Box) -> None:
    with box.dial() as host:
        began = time.monotonic()
        waits(host, box, "t", timeout=600)
        time.sleep(1.0)
        for seconds in (0.5, 0.5, 0.25, 0.75):
            assert host.reply(resumed(host, seconds)).ok == {}
        assert host.reply(resumed(host, 0.1, pause="p2")).ok == {}
    with box.dial() as host:
        assert host.reply(resumed(host, 0.1, pause="p2")).ok == {}
        host.request("cmd.stop", key="t", grace_ms=0)
        awake = host.ended("t").duration_ms
    assert 1000 - 850 - 10 <= awake <= (time.monotonic() - began - 0.85) * 1000


def test_the_grace_of_a_stop_is_awake_time_too(box: Box) -> None:
    """Killed by nobody while its grace runs: it ends by itself."""
    with box.dial() as host:
        waits(host, box, "k", timeout=600)
        host.request("cmd.stop", key="k", grace_ms=1500)
        with still(box):
            number = resumed(host)
        assert host.reply(number).ok == {}
        (box.home / "go-k").touch()
        ended = host.ended("k")
        assert (ended.reason, ended.code, ended.signal) == ("killed", 0, None)


def test_without_a_word_a_grace_is_over(box: Box) -> None:
    """The control of the above."""
    with box.dial() as host:
        waits(host, box, "k", timeout=600)
        host.request("cmd.stop", key="k", grace_ms=1500)
        with still(box):
            pass
        assert host.ended("k").signal == signal.SIGKILL


def test_a_stop_after_a_pause_is_not_held_up_by_a_late_word(box: Box) -> None:
    with box.dial() as host:
        waits(host, box, "k", timeout=600)
        with still(box):
            pass
        host.request("cmd.stop", key="k", grace_ms=100)
        assert host.reply(resumed(host, 3600.0)).ok == {}
        assert host.ended("k", seconds=30).signal == signal.SIGKILL


def test_no_grace_at_all_kills_whatever_grace_it_had(box: Box) -> None:
    with box.dial() as host:
        waits(host, box, "k", timeout=600)
        host.request("cmd.stop", key="k", grace_ms=60_000)
        host.request("cmd.stop", key="k", grace_ms=90_000)  # a longer one changes nothing
        host.request("cmd.stop", key="k", grace_ms=200)
        assert host.ended("k", seconds=30).signal == signal.SIGKILL


@pytest.mark.parametrize("seconds", [-1, -0.5, 1e10, "x", None, []])
def test_a_length_that_makes_no_sense_moves_nothing(box: Box, seconds: object) -> None:
    with box.dial() as host:
        reply = host.reply(host.begin("box.resumed", pause="p", seconds=seconds))
        assert (reply.ok, reply.code) == (None, "invalid")
        waits(host, box, "k", timeout=0.3)
        assert host.ended("k", seconds=30).reason == "timeout"
