"""`ringfence doctor --driver D`: the driver's self-check, as text or as one JSON object."""

from __future__ import annotations

import sys

from ringfence.cli import checks, say_it


def check(driver: str, json: bool) -> int:
    """0; 1: a check failed; 2: no such driver; 5: this host runs no server."""
    from ringfence.bench.throwaway import CommandFailed
    from ringfence.prove import driver_check

    checks.driver(driver)
    try:
        report = driver_check.check(driver)
    except CommandFailed as error:
        return say_it.error("unavailable", f"no throw-away server: {error}", "ringfence doctor", {}, json, 5)
    sys.stdout.write(driver_check.as_json(report) if json else driver_check.as_text(report))
    return 0 if report.ok else 1
