"""What every test run has in common: which tests this account can run, and that none passes silently.

Tests marked `root` need root (own host ids, cgroups). An ordinary user's run leaves them out and says how many; in CI as
root nothing may be left out or skipped: a missing part is a failure there. Tests marked `soak` run by `make soak` only.
What failed is written to the file that RINGFENCE_TESTS_FAILED names, one node a line (docs/decisions/0043).
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# How fast a busy machine draws inputs says nothing of our code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
# A shell ignores SIGINT for what it starts in the background, and children inherit that; tests interrupt theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

FAILED = os.environ.get("RINGFENCE_TESTS_FAILED", "")
LEFT_OUT = pytest.StashKey[Counter[str]]()
ONLY_ROOT = "needs root"
IS_ROOT = os.geteuid() == 0
STRICT = IS_ROOT and os.environ.get("CI") == "true"


def _reason(item: pytest.Item, soak: bool) -> str | None:
    """Why this test stays out of this run."""
    if item.get_closest_marker("soak") and not soak:
        return "soak"
    if item.get_closest_marker("root") and not IS_ROOT:
        return ONLY_ROOT
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    soak = "soak" in str(config.option.markexpr)
    kept: list[pytest.Item] = []
    out: list[pytest.Item] = []
    counts: Counter[str] = Counter()
    for item in items:
        reason = _reason(item, soak)
        if reason is None:
            kept.append(item)
            continue
        out.append(item)
        counts[f"{reason}: {item.nodeid.split('::')[0]}"] += 1
    config.stash[LEFT_OUT] = counts
    if out:
        items[:] = kept
        config.hook.pytest_deselected(items=out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash.get(LEFT_OUT, Counter())
    need_root = {k.removeprefix(f"{ONLY_ROOT}: "): n for k, n in counts.items() if k.startswith(ONLY_ROOT)}
    if need_root:
        terminalreporter.write_line(f"{sum(need_root.values())} tests need root: not run")
        for path, number in sorted(need_root.items()):
            terminalreporter.write_line(f"  {path}: {number}")
    skipped = terminalreporter.stats.get("skipped", [])
    if STRICT and skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were skipped, and in CI as root none may be:")
        for report in skipped:
            terminalreporter.write_line(f"  {report.nodeid}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    kinds = ("failed", "error", "skipped") if STRICT else ("failed", "error")
    if STRICT and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if FAILED and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # a whole run, not one cut short
        nodes = dict.fromkeys(report.nodeid for kind in kinds for report in reporter.stats.get(kind, []))
        with open(FAILED, "w") as out:
            out.writelines(f"{node}\n" for node in nodes)
