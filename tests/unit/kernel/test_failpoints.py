"""Failpoints: what a product has does nothing; what tests arm acts once, at the reach that was named."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from ringfence.host import app
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel import failpoints
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.failpoints import Injected, Point, Quiet
from ringfence.host.store.transaction import World
from tests.support.failing import Armed

SOURCES = Path(failpoints.__file__).parents[2]
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("point", Point)
def test_each_has_its_other_half(point: Point) -> None:
    part, what, when = point.split(".")
    other = {"before": "after", "after": "before"}[when]
    assert Point(f"{part}.{what}.{other}").name == f"{part}_{what}_{other}".upper()


@pytest.mark.parametrize("point", Point)
def test_each_is_reached_somewhere(point: Point) -> None:
    found = [
        path.name
        for path in SOURCES.rglob("*.py")
        if re.search(rf"reach\(\s*Point\.{point.name}\b", path.read_text()) is not None
    ]
    assert len(found) == 1, found


@pytest.mark.parametrize("made", [Parts, World])
def test_without_a_word_they_are_quiet(made: type) -> None:
    [field] = [each for each in fields(made) if each.name == "failpoints"]
    assert field.default_factory is Quiet


def test_the_product_arms_none() -> None:
    """No other failpoints can be had from the composition root, and none of the sources reads an environment for them."""
    assert "failpoint" not in inspect.getsource(app).lower()
    for path in SOURCES.rglob("*.py"):
        text = path.read_text()
        assert not ("os.environ" in text and "failpoint" in text.lower()), path
    made = [path.name for path in SOURCES.rglob("*.py") if re.search(r"class \w+\(.*Failpoints.*\)", path.read_text())]
    assert made == []


async def test_quiet_returns() -> None:
    for point in Point:
        Quiet().reach(point)

        async def never() -> None:
            raise AssertionError("a send that was done twice")

        await Quiet().areach(point, "detail", never)


async def test_an_error_comes_at_the_nth_reach_of_the_point_and_once() -> None:
    armed = Armed(Point.WIRE_SEND_BEFORE, 2, "error")
    await armed.areach(Point.WIRE_SEND_BEFORE)
    await armed.areach(Point.WIRE_SEND_AFTER)
    with pytest.raises(Injected):
        await armed.areach(Point.WIRE_SEND_BEFORE)
    await armed.areach(Point.WIRE_SEND_BEFORE)
    assert armed.reached[Point.WIRE_SEND_BEFORE] == 3


def test_any_point_counts_when_none_is_named() -> None:
    armed = Armed(None, 2, "error", error=lambda: OSError("the disk"))
    armed.reach(Point.STORE_COMMIT_BEFORE)
    with pytest.raises(OSError, match="the disk"):
        armed.reach(Point.STORE_COMMIT_AFTER)


async def test_a_duplicate_is_made_where_it_can_be() -> None:
    sent: list[int] = []

    async def send() -> None:
        sent.append(1)

    armed = Armed(None, 1, "dup")
    await armed.areach(Point.EFFECT_SEND_AFTER)
    assert armed.fired is None
    await armed.areach(Point.EFFECT_SEND_BEFORE, "key", send)
    await armed.areach(Point.EFFECT_SEND_BEFORE, "key", send)
    assert sent == [1]


async def test_a_delay_passes_and_goes_on() -> None:
    armed = Armed(Point.HTTP_ANSWER_BEFORE, 1, "delay", seconds=0.01)
    await armed.areach(Point.HTTP_ANSWER_BEFORE)
    armed = Armed(Point.STORE_COMMIT_AFTER, 1, "delay", seconds=0.01)
    armed.reach(Point.STORE_COMMIT_AFTER)
    assert armed.fired is Point.STORE_COMMIT_AFTER


def test_a_kill_is_a_kill() -> None:
    code = (
        "from tests.support.failing import Armed; from ringfence.host.kernel.failpoints import Point\n"
        "armed = Armed(None, 1, 'kill', about_to=lambda point, detail: print(point, detail, flush=True))\n"
        "try:\n    armed.reach(Point.STORE_COMMIT_BEFORE, 'here')\nfinally:\n    print('on')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "store.commit.before here\n")


def test_what_is_injected_is_no_answer_of_ours() -> None:
    assert not issubclass(Injected, RingfenceError)
