"""Whether a kill that nobody asked for was the kernel's out-of-memory killer. Pure but for its own list.

A box's cgroup counts its oom kills from its start on; it does not say whom. A command is taken for a victim when it was
killed and the count grew in its life: between the last look before it began and the look after it ended.
"""

from __future__ import annotations

from ringfence.host.kernel.ports import Outcome

SIGKILL = 9
KILLED_CODE = 128 + SIGKILL  # what a shell exits with when its last child was killed
_LOOKS = 64  # kept looks; older ones can only be the baseline of commands that outlived 64 suspicious ends


class Kills:
    """Looks at one box's counter, (monotonic seconds, count), oldest first."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, int]] = [(0.0, 0)]

    def reset(self, now: float, count: int = 0) -> None:
        """The box has been started (count 0), or was found running with `count`."""
        self._looks = [(now, count)]

    def grew(self, began: float, now: float, count: int) -> bool:
        """Whether `count`, seen `now`, is more than was known when the command began at `began`. Keeps the look."""
        before = [seen for at, seen in self._looks if at <= began] or [self._looks[0][1]]
        self._looks = [*self._looks[-_LOOKS + 1 :], (now, count)]
        return count > before[-1]


def suspicious(outcome: Outcome, asked: bool) -> bool:
    """Worth a look at the counter. `asked`: somebody on this side sent KILL or stopped it."""
    if asked or outcome.reason not in ("exit", "killed"):
        return False
    return outcome.signal == SIGKILL or outcome.code == KILLED_CODE
