"""Steers and the soft deadline through the real PID 1 to a loop's process: in order, without a gap, and bounded.

The loop's process is the real one; a script stands in the place of its native loop.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.guest.loops import MAX_STEERS
from tests.support.guest_rig import Box, Host, built_tree, running_box
from tests.support.loop_rig import Runs, hostile_main, message, start, take_over

SCRIPT = """
import json, os, time
class RunFailed(Exception): pass
def finish(host, news, seen):
    answer = host.ask("run.finish", text=json.dumps(news), seen=seen)
    return [steer["cursor"] for steer in answer["steers"]]
def cursors(news): return [p["message"]["cursor"] if m == "steer" else m for m, p in news]
def carry_out(start, host):
"""


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A box whose native loop is `request.param`, the body of carry_out."""
    with built_tree() as tree:
        take_over(tree, SCRIPT + "".join(f"    {line}\n" for line in request.param.strip().splitlines()), "native")
        with running_box(tree) as made:
            yield made
            assert made.process.poll() is None, made.said()


@pytest.fixture
def deaf() -> Iterator[Box]:
    """A box whose loops read nothing."""
    with built_tree() as tree:
        take_over(tree, hostile_main("time.sleep(60)"))
        with running_box(tree) as made:
            yield made
            assert made.process.poll() is None, made.said()


def steer(host: Host, cursor: int, text: str = "and more") -> str:
    """Empty, or the code of the refusal."""
    reply = host.reply(host.begin("run.steer", run="r1", message=message(cursor, text)))
    assert reply.ok in ({}, None)
    return reply.code


ASKS = """
host.ask("run.event", text="at work")
finish(host, cursors(host.news()), 5)
"""


@pytest.mark.parametrize("scripted", [ASKS], indirect=True)
def test_steers_during_an_ask_arrive_in_order_and_over_a_re_dial(scripted: Box) -> None:
    with scripted.dial() as host:
        host.request("run.start", **start("r1"))
        runs = Runs(host, [])
        assert runs.next()[1]["m"] == "run.event"
        assert [steer(host, 2), steer(host, 3)] == ["", ""]
    with scripted.dial() as host:
        runs.host = host
        assert steer(host, 4) == ""
        assert host.request("run.wind_down", run="r1", seconds=30) == {}
        assert steer(host, 5) == ""
        runs.until_finished("r1")
    assert [method for _, method, _ in runs.said] == ["run.event", "run.finish"]
    assert json.loads(runs.finished["r1"]["text"]) == [2, 3, 4, "wind_down", 5]


WAITS = """
assert host.news() == []
host.ask("run.event", text="awake")
news = []
while len(news) < 2:
    time.sleep(0.005)
    news += host.news()
finish(host, news, 2)
"""


@pytest.mark.parametrize("scripted", [WAITS], indirect=True)
def test_news_are_heard_without_an_ask_and_are_what_was_said(scripted: Box) -> None:
    with scripted.dial() as host:
        host.request("run.start", **start("r1"))
        runs = Runs(host, [])
        assert runs.answer() == "run.event"
        said = message(2, "with \u00e9 and \U0001f600\nand \x00")
        said["attachments"] = [{"path": "a.txt", "size": 3}]
        assert host.request("run.steer", run="r1", message=said) == {}
        assert host.request("run.wind_down", run="r1", seconds=7) == {}
        runs.until_finished("r1")
    assert json.loads(runs.finished["r1"]["text"]) == [["steer", {"message": said}], ["wind_down", {"seconds": 7}]]


LATE = """
while not os.path.exists("/home/user/go"):
    time.sleep(0.005)
heard, quiet = [], 0
while quiet < 50:
    news = cursors(host.news())
    heard, quiet = heard + news, 0 if news else quiet + 1
    time.sleep(0.01)
more = finish(host, heard, heard[-1])
finish(host, heard + more + cursors(host.news()), more[-1])
"""


@pytest.mark.parametrize("scripted", [LATE], indirect=True)
def test_a_loop_that_was_behind_hears_the_rest_when_it_finishes_and_misses_none(scripted: Box) -> None:
    with scripted.dial() as host:
        host.request("run.start", **start("r1"))
        runs = Runs(host, [])
        cursor, last = 1, ""
        while not last:
            assert cursor < 30, "a loop that reads nothing was sent 7 MB"
            cursor += 1
            last = steer(host, cursor, "x" * 250_000)
        assert (last, cursor > 4) == ("busy", True)
        (scripted.home / "go").touch()
        host.until(lambda: host.asks)  # it has read everything by now
        assert steer(host, cursor + 1) == "busy"  # there is room, and this one would hide the one before it
        runs.steers = [message(n) for n in range(2, cursor + 2)]
        runs.until_finished("r1")
    assert json.loads(runs.finished["r1"]["text"]) == list(range(2, cursor + 2))


def test_a_loop_that_never_reads_costs_pid_1_no_more_than_its_bound(deaf: Box) -> None:
    with deaf.dial() as host:
        for run in ("r1", "r2"):
            host.request("run.start", **start(run))
        before = _memory(deaf)
        codes = [steer(host, cursor, "x" * 250_000) for cursor in range(2, 102)]  # 25 MB
        assert codes.index("busy") * 250_000 <= MAX_STEERS + 1_000_000  # what the socket itself holds is beside it
        assert set(codes[codes.index("busy") :]) == {"busy"}
        assert _memory(deaf) - before < 4 * MAX_STEERS // 1024
        assert host.request("run.wind_down", run="r1", seconds=1) == {}
        assert host.loop_ends == []  # a person who says much does not end a run
        assert host.request("run.steer", run="r2", message=message(2)) == {}
        assert host.sh("x/1", "echo on").stdout == b"on\n"


def _memory(box: Box) -> int:
    """KiB of PID 1."""
    return int(Path(f"/proc/{box.guest_pid()}/status").read_text().split("VmRSS:")[1].split()[0])


@pytest.mark.parametrize(
    ("method", "params"), [("run.steer", {"message": message(2)}), ("run.wind_down", {"seconds": 3})]
)
def test_what_is_said_to_a_loop_that_is_gone_is_no_error(deaf: Box, method: str, params: dict[str, Any]) -> None:
    with deaf.dial() as host:
        assert host.request(method, run="nobody", **params) == {}
        host.request("run.start", **start("r1"))
        host.request("run.cancel", run="r1", grace_ms=0)
        host.until(lambda: host.loop_ends)
        assert host.request(method, run="r1", **params) == {}


BROKEN = {
    "loop_failed": "[][0]",
    "x" * 64: "failure = RunFailed(); failure.code, failure.message = 'x' * 100, 'y' * 100_000; raise failure",
}


@pytest.mark.parametrize(("scripted", "code"), [(body, code) for code, body in BROKEN.items()], indirect=["scripted"])
def test_a_loop_that_breaks_down_says_so(scripted: Box, code: str) -> None:
    with scripted.dial() as host:
        host.request("run.start", **start("r1"))
        runs = Runs(host, [])
        runs.until_finished("r1")
        assert runs.finished["r1"]["code"] == code
        assert len(runs.finished["r1"]["message"]) <= 4000
        host.until(lambda: host.loop_ends)
        assert host.loop_ends[0]["code"] == 0
