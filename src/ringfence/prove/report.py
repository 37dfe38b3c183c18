"""Results as JSON (docs/cli.md) and as text for a terminal. Pure."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ringfence.prove.row import Result, Status

WIDTH = 110
SIGN: dict[Status, str] = {"held": "held", "open": "OPEN", "not_applicable": "n/a"}


@dataclass(frozen=True, slots=True)
class Report:
    driver: str
    mode: str
    seconds: float
    results: Sequence[Result]
    left: Sequence[str]  # what prove did not take away again

    @property
    def ok(self) -> bool:
        return not self.left and all(result.status != "open" for result in self.results)

    def counts(self) -> dict[str, int]:
        found = Counter(result.status for result in self.results)
        return {status: found[status] for status in SIGN}


def as_json(report: Report) -> str:
    """`{"ok", "driver", "mode", "seconds", "held", "open", "not_applicable", "left", "rows": [...]}`."""
    facts = {
        "ok": report.ok,
        "driver": report.driver,
        "mode": report.mode,
        "seconds": round(report.seconds, 1),
        **report.counts(),
        "left": list(report.left),
        "rows": [result.as_json() for result in report.results],
    }
    return json.dumps(facts, indent=1) + "\n"


def line(result: Result) -> str:
    """One row on one line."""
    text = result.why if result.status == "not_applicable" else result.observed
    start = f"{result.row.id:5} {SIGN[result.status]:5} {result.row.attempt}"
    return textwrap.shorten(f"{start}: {text}", WIDTH * 2, placeholder="...")


def as_text(report: Report) -> str:
    lines = [line(result) for result in report.results]
    for result in report.results:
        if result.status == "open":
            told = f"{result.row.id} is open. Expected: {result.row.expected}. Wall: {result.row.wall}. {result.why}"
            lines += ["", *textwrap.wrap(told, WIDTH)]
    lines += [f"left behind: {one}" for one in report.left]
    counts = report.counts()
    told = ", ".join(f"{counts[status]} {status.replace('_', ' ')}" for status in SIGN)
    return "\n".join([*lines, "", f"{told}; {report.driver}, mode {report.mode}, {report.seconds:.0f} s"]) + "\n"
