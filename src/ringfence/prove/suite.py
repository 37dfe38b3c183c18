"""The whole of one `ringfence prove`: the stage, the rows, the report."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from ringfence.bench.throwaway import CommandFailed
from ringfence.prove import building, copied, run
from ringfence.prove.report import Report
from ringfence.prove.row import Result, Row

DRIVER = "bubblewrap"


def prove(
    rows: Sequence[Row],
    *,
    done: Callable[[Result], None] = lambda _result: None,
    patches: Mapping[str, copied.Patch] = copied.HOSTILE,
    settings: Mapping[str, object] | None = None,
) -> Report:
    """`settings`: of the throw-away installation, beside its own limits. `patches`: what its copy of the package differs in;
    tests take walls away by it. CommandFailed: this host runs no server."""
    begun = time.monotonic()
    left: list[str] = []
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with building.stage(left, patches=patches, settings=settings) as stage:
            results = run.run_all(stage, rows, done)
            mode = stage.mode
    except CommandFailed as error:
        if left:
            error.add_note(f"left behind: {', '.join(left)}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return Report(DRIVER, mode, time.monotonic() - begun, results, left)


def _end(number: int, _frame: FrameType | None) -> None:
    """SIGTERM takes everything away, as ^C does."""
    raise SystemExit(128 + number)
