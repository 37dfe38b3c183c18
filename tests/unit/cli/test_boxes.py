"""What `ringfence box limits` says of limits that do not hold, or not yet."""

from __future__ import annotations

import pytest

from ringfence.cli import boxes


def test_limits_that_do_not_hold_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    limits = {"memory": 1 << 30, "pids": 64, "nofile": 512, "shm": 2 << 30}
    boxes._print_limits({"limits": limits, "effective": {"shm": 503316480}, "from_next_start": ["nofile", "shm"]})
    said = {line.split()[0]: line.partition("  ")[2].strip() for line in capsys.readouterr().out.splitlines()}
    assert said["memory"] == str(1 << 30) and said["pids"] == "64"
    assert said["nofile"] == "512  (from the next start of the box on)"
    shm = "2147483648  (another limit is lower: 503316480 holds)  (from the next start of the box on)"
    assert said["shm"] == shm
