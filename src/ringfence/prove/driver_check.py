"""`ringfence doctor --driver D`: the self-check on a throw-away installation of the package that runs, unchanged."""

from __future__ import annotations

import json

from ringfence.prove import building, checks_commands, checks_files
from ringfence.prove.self_check import Place, SelfCheck, run
from ringfence.prove.stage import ATTACKER

CHECKS = (*checks_commands.CHECKS, *checks_files.CHECKS)


def check(driver: str) -> SelfCheck:
    """CommandFailed: this host runs no server; doctor without a driver says why."""
    left: list[str] = []
    with building.stage(left, patches={}) as stage:
        return run(driver, Place(stage.client, ATTACKER), CHECKS)


def as_text(report: SelfCheck) -> str:
    lines = []
    for found in report.checks:
        lines.append(f"{'ok  ' if found.ok else 'FAIL'}  {found.id:<22} {found.seconds:6.2f} s  {found.found}")
        if not found.ok:
            lines.append(f"      {'':<22} -> expected: {found.expected}")
    failed = sum(1 for found in report.checks if not found.ok)
    return "\n".join([*lines, f"{report.driver}: {len(report.checks) - failed} of {len(report.checks)} hold"]) + "\n"


def as_json(report: SelfCheck) -> str:
    return json.dumps(report.as_json()) + "\n"
