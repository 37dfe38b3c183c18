"""`ringfence bench boxes`: what a box and a command in it cost, against the bare floor of this host, in one run."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from ringfence.bench.figures import Row, Series, at_most, ratio
from ringfence.bench.throwaway import CommandFailed, Installation, installation, measured

EXEC_ROUNDS = 31
BOXES = 20
MIB = 1 << 20


def run(say: Callable[[str], None]) -> tuple[list[Row], list[str]]:
    """(rows, notes). Makes two throw-away installations one after the other. CommandFailed."""
    rows: list[Row] = []
    notes: list[str] = []
    say("commands and starts, in one process")
    with installation(name="bench") as made:  # a first start writes the configuration that the measuring process takes
        made.stop()
        rows += _inside(made)
    with installation(name="bench") as made:
        say("the command line, end to end")
        rows.append(_command_line(made))
        say(f"{BOXES} boxes: memory, and a killed server")
        for number in range(BOXES):
            made.ok("user", "add", f"u{number}")
        rows += _memory(made, notes)
        rows.append(_restart(made))
    return rows, notes


def _inside(made: Installation) -> list[Row]:
    found = measured("ringfence.bench.inside", made)

    def against(name: str, title: str, times: float, plus_ms: float | None = None) -> Row:
        ours, floor = (Series(tuple(found[name][side])) for side in ("ours", "floor"))
        return ratio(title, ours, floor, times=times, plus_ms=plus_ms)

    return [
        against("warm", "warm command (floor: posix_spawn + wait)", 2, 0.8),
        against("first", "first command of a provisioned user (floor: bwrap + python3 -I -S -c pass)", 3),
        against("guest", "guest start (floor: python3 -I -S -c pass)", 2),
    ]


def _command_line(made: Installation) -> Row:
    made.ok("user", "add", "cli")
    took = []
    for _ in range(EXEC_ROUNDS + 1):
        begun = time.perf_counter()
        made.ok("exec", "cli", "--", "true")
        took.append((time.perf_counter() - begun) * 1e3)
    series = Series(tuple(took[1:]))
    return at_most("ringfence exec U -- true, end to end, p50", series.p50, "ms", 200, **series.as_json())


def _available() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def _memory(made: Installation, notes: list[str]) -> list[Row]:
    made.ok("box", "start", "u0")
    made.ok("exec", "u0", "--", "true")  # the first box also pays for what all share
    _settle()
    before = _available()
    for number in range(1, BOXES):
        made.ok("box", "start", f"u{number}")
        made.ok("exec", f"u{number}", "--", "true")
    _settle()
    fall = (before - _available()) / (BOXES - 1) / MIB
    rows = [at_most("MemAvailable for each idle box", fall, "MiB", 11)]
    if os.geteuid() == 0:
        sizes = [_pss(made.box(f"u{number}")["uid"]) for number in range(BOXES)]
        rows.insert(0, at_most("PSS of an idle box, bwrap and guest", sum(sizes) / len(sizes) / MIB, "MiB", 8))
    else:
        notes.append("PSS is not measured: the guest cannot be inspected by its owner; run as root")
    return rows


def _settle() -> None:
    time.sleep(2)  # what a start frees (bwrap's, page tables) is given back within a second


def _pss(uid: int) -> int:
    """Of every process of a host id, in bytes."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nUid:\t{uid}\t" in status.read_text():
                found = re.search(r"^Pss:\s+(\d+) kB$", (status.parent / "smaps_rollup").read_text(), re.M)
                total += int(found[1]) * 1024 if found else 0
    return total


def _restart(made: Installation) -> Row:
    made.kill()
    made.start(wait=False)
    made.await_line(" starting")
    begun = time.perf_counter()
    line = made.await_line(" serving at ")
    took = time.perf_counter() - begun
    found = re.search(r"(\d+) box(?:es)? adopted", line)
    adopted = int(found[1]) if found else 0
    if adopted < BOXES:
        raise CommandFailed(f"{adopted} of {BOXES} boxes were adopted: {line}")
    return at_most(f"{adopted} boxes back after the restarted kernel's first line", took, "s", 1)
