"""`ringfence bench`: runs the measurements and says them. Exit 1 when a promise does not hold."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable
from typing import Any

Run = Callable[[Callable[[str], None]], tuple[list[Any], list[str]]]
"""(what is told of the progress) -> (rows, notes) of bench.figures, which is imported when it is called."""


def boxes(json: bool) -> int:
    from ringfence.bench.boxes import run

    return _measured(run, json)


def turns(json: bool) -> int:
    from ringfence.bench.turns import run

    return _measured(run, json)


def audit(json: bool) -> int:
    from ringfence.bench.audit import run

    return _measured(run, json)


def walls(json: bool) -> int:
    from ringfence.bench.walls import run

    return _measured(run, json)


def durable(json: bool) -> int:
    from ringfence.bench.durable import run

    return _measured(run, json)


def egress(json: bool, long: bool, mitmdump: str) -> int:
    from ringfence.bench.egress import LONG, WHOLE, run

    return _measured(lambda say: run(say, LONG if long else WHOLE, mitmdump), json)


def life(json: bool, docker: str) -> int:
    from ringfence.bench.life import run

    return _measured(lambda say: run(say, docker), json)


def _measured(run: Run, json: bool) -> int:
    from ringfence.bench.figures import as_text
    from ringfence.bench.machine import machine
    from ringfence.bench.throwaway import CommandFailed

    try:
        rows, notes = run(lambda line: print(f"... {line}", file=sys.stderr, flush=True))  # noqa: T201
    except CommandFailed as error:
        sys.stderr.write(f"ringfence: the benchmark did not run to its end: {error}\n  see: ringfence doctor\n")
        return 1
    if json:
        answer = {"machine": machine(), "rows": [row.as_json() for row in rows], "notes": notes}
        sys.stdout.write(json_format.dumps(answer, indent=2) + "\n")
    else:
        sys.stdout.write(as_text(machine(), rows, notes))
    return 0 if all(row.holds is not False for row in rows) else 1
