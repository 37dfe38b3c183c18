"""A box stopped in its tracks and let go on: cgroup.freeze of the unified tree, the v1 freezer where there is none.

Signals would not do: SIGSTOP of PID 1 or of bubblewrap stops neither the rest of the box nor what forks meanwhile
(threats M01). Must never leave a box half frozen: what does not stand still in time goes on again.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from ringfence.spawner import control_files as control
from ringfence.spawner.errors import Failed
from ringfence.spawner.limits import Knob
from ringfence.spawner.tasks import Steps, pause

SECONDS = 10.0  # a process deep in a file system call may take until that is over
# A box that waits stands still 0.1 ms after the write, and poll(2) counts in whole milliseconds: the first looks come one turn of the
# server after the other, each some 0.05 ms.
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Switch:
    """The control file of one version, its two values, and how each state reads."""

    knob: str
    values: tuple[str, str]  # go on, stand still
    state: str
    reads: tuple[str, str]

    def turn(self, directory: str, frozen: bool) -> None:
        control.write(directory, Knob(self.knob, self.values[frozen]))

    def stands(self, directory: str, frozen: bool) -> bool:
        return self.reads[frozen] in control.read(f"{directory}/{self.state}").splitlines()


SWITCHES = {
    2: Switch("cgroup.freeze", ("0", "1"), "cgroup.events", ("frozen 0", "frozen 1")),
    1: Switch("freezer.state", ("THAWED", "FROZEN"), "freezer.state", ("THAWED", "FROZEN")),
}


def turn(version: int, directory: str, *, frozen: bool) -> Steps[None]:
    """Freezes or thaws everything below the directory; ends when all stand still, or go on. Idempotent. Failed after
    10 s; what did not stand still is thawed again. OSError: the directory has gone."""
    switch = SWITCHES[version]
    switch.turn(directory, frozen)
    until = time.monotonic() + SECONDS
    looks, delay = 0, 0.001
    while not switch.stands(directory, frozen):
        if time.monotonic() > until:
            with contextlib.suppress(OSError):
                switch.turn(directory, False)
            what = "has a process that the kernel cannot stop" if frozen else "stays frozen"
            raise Failed(f"the box {what}", "ringfence box stop U")
        looks += 1
        if looks <= AT_ONCE:
            yield from pause(0)
            continue
        yield from pause(delay)
        delay = min(delay * 2, 0.02)


def is_frozen(version: int, directory: str) -> bool:
    return SWITCHES[version].stands(directory, True)
