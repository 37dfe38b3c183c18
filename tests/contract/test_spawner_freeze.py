"""A box frozen and thawed through a real spawner: what forks meanwhile, what is asked of it then, what is left after a race."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.spawner import protocol
from ringfence.spawner.protocol import Limits
from tests.contract.test_spawner import directories, processes_of
from tests.support import spawner_rig
from tests.support.installation import of_uid
from tests.support.spawner_rig import Refusal, Rig

pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16
SMALL = Limits(memory=128 << 20, pids=128, cpu_milli=1000, shm=16 << 20, run=4 << 20)
STORM = "python3 -c 'import os\nfor _ in range(4):\n  if os.fork() == 0:\n    os.setsid()\n    while True:\n      p = os.fork()\n      if p == 0: os._exit(0)\n      os.waitpid(p, 0)' >/dev/null 2>&1 </dev/null &"


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    yield made
    made.clean()


def ticks(uid: int) -> int:
    """CPU time of every process of the id, in clock ticks: what stands still uses none."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid or f"\nUid:\t{uid}\t" in (path / "status").read_text():
                words = (path / "stat").read_text().rpartition(")")[2].split()
                total += int(words[11]) + int(words[12])
        except OSError:
            continue
    return total


def test_a_storm_of_sessions_stands_still(rig: Rig) -> None:
    """M01."""
    uid = rig.provision(A)["uid"]
    rig.start_box(A, SMALL)
    rig.shell(A, STORM)
    before = ticks(uid)
    time.sleep(0.5)
    assert ticks(uid) > before  # control: it is at work
    rig.ask(protocol.Freeze(A))
    assert rig.ask(protocol.Observe(A))["frozen"] is True
    time.sleep(0.05)  # CPU time is booked by ticks of up to 10 ms: the last one may come after the freeze
    before, pids = ticks(uid), len(processes_of(uid))
    time.sleep(0.5)
    assert (ticks(uid), len(processes_of(uid))) == (before, pids)
    rig.ask(protocol.Freeze(A))  # again is the same
    rig.ask(protocol.Thaw(A))
    rig.ask(protocol.Thaw(A))
    assert rig.ask(protocol.Observe(A))["frozen"] is False
    time.sleep(0.5)
    assert ticks(uid) > before


def test_a_frozen_box_is_stopped_and_removed(rig: Rig) -> None:
    """M04."""
    uid = rig.provision(A)["uid"]
    rig.start_box(A, SMALL)
    rig.shell(A, STORM)
    rig.ask(protocol.Freeze(A))
    rig.ask(protocol.Stop(A))
    assert processes_of(uid) == [] and directories(A) == []
    rig.start_box(A, SMALL)
    assert rig.ask(protocol.Observe(A))["frozen"] is False and rig.shell(A, "id -u")["out"] == "1000\n"
    rig.ask(protocol.Freeze(A))
    rig.ask(protocol.Remove(A))
    assert processes_of(uid) == [] and directories(A) == []


def test_a_frozen_box_outlives_the_spawner_and_goes_on(rig: Rig) -> None:
    rig.provision(A)
    first = rig.start_box(A, SMALL)
    rig.ask(protocol.Freeze(A))
    rig.kill()
    rig.start()
    assert rig.ask(protocol.Observe(A))["frozen"] is True
    again = rig.start_box(A, SMALL)
    assert again["already"] and again["identity"] == first["identity"]
    rig.ask(protocol.Thaw(A))
    assert rig.shell(A, "echo on")["out"] == "on\n"


def test_what_does_not_run_is_refused(rig: Rig) -> None:
    rig.provision(A)
    for request in (protocol.Freeze(A), protocol.Thaw(A)):
        with pytest.raises(Refusal, match="does not run"):
            rig.ask(request)
    with pytest.raises(Refusal, match="no such box"):
        rig.ask(protocol.Freeze(B))


def test_two_hundred_races_of_freeze_thaw_and_stop(rig: Rig) -> None:
    """M03: whatever comes when, each request is answered, and at the end nothing of either box is left."""
    uids = [rig.provision(box)["uid"] for box in (A, B)]
    kinds = (protocol.Freeze, protocol.Thaw, protocol.Freeze, protocol.Stop, protocol.Thaw)
    answers = []
    for round_ in range(200):
        box = (A, B)[round_ % 2]
        if round_ % 20 < 2:
            rig.send(protocol.Start(box, SMALL))
            answers.append(rig.receive()[0])
            killer = threading.Timer(0.002 * (round_ % 7), kill_inside, (uids[round_ % 2], round_ % 40 == 0))
            killer.start()
        for offset in range(3):
            rig.send(kinds[(round_ * 7 + offset * (1 + round_ % 3)) % len(kinds)](box))
        answers += [rig.receive()[0] for _ in range(3)]
    killer.join()
    errors = [answer["error"]["message"] for answer in answers if "error" in answer]
    assert set(errors) <= {"the box does not run"}, set(errors)
    assert len(answers) - len(errors) > 50  # control: it is not that nothing ran
    for box in (A, B):
        rig.ask(protocol.Stop(box))
        assert directories(box) == []
    assert [processes_of(uid) for uid in uids] == [[], []]


def kill_inside(uid: int, really: bool) -> None:
    """PID 1 dies at a bad moment, in some rounds."""
    if really:
        for pid in sorted(of_uid(uid))[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
