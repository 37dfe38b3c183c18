"""`ringfence prove`: runs the suite, says each row, writes the record that the production profile asks for."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from ringfence.cli import say_it

DRIVERS = ("bubblewrap",)


def prove(driver: str | None, only: str | None, json: bool, disposable_host: bool) -> int:
    """0; 1: a row is open, or something was left behind; 2: no such row or driver; 5: this host runs no server."""
    from ringfence.bench.throwaway import CommandFailed
    from ringfence.host.install import prove_record
    from ringfence.prove.registry import NoSuchRow, chosen, rows
    from ringfence.prove.report import as_json, as_text, line
    from ringfence.prove.suite import prove as run

    if driver is not None and driver not in DRIVERS:
        return say_it.error("usage", f"no driver {driver!r}", f"--driver {', '.join(DRIVERS)}", {}, json, 2)
    try:
        wanted = chosen(rows(), only)
        settings = _settings()
        walls = {} if settings is None else prove_record.walls(settings)
        stamp = None if settings is None else prove_record.current(settings)
        report = run(wanted, disposable_host=disposable_host, done=lambda result: _tell(line(result)), settings=walls)
    except NoSuchRow as error:
        return say_it.error("usage", str(error), "see: ringfence prove --help", {}, json, 2)
    except CommandFailed as error:
        return say_it.error("unavailable", f"no throw-away server: {error}", "ringfence doctor", {}, json, 5)
    sys.stdout.write(as_json(report) if json else as_text(report))
    if only is None and stamp is not None:
        if stamp == prove_record.current(settings):
            _record(stamp, [(result.row.id, result.status) for result in report.results])
        else:
            sys.stderr.write("... not recorded: the package or bubblewrap was changed meanwhile\n")
    return 0 if report.ok else 1


def _tell(text: str) -> None:
    sys.stderr.write(f"... {text}\n")
    sys.stderr.flush()


def _settings() -> Any:
    """Of this account's state, whose walls are tried. None: there is none."""
    from ringfence.host.install import prepare
    from ringfence.host.install.layout import Layout, home_of

    layout = Layout(home_of(os.environ, os.geteuid()))
    try:
        if layout.installation.stat().st_uid != os.geteuid():
            return None
    except OSError:
        return None
    return prepare.read_settings(layout.settings, missing_ok=True)


def _record(stamp: Any, results: list[tuple[str, Any]]) -> None:
    """Kept in the state directory of this account where `init` has made one: what the profile production asks for."""
    from ringfence.host.install import prove_record
    from ringfence.host.install.layout import Layout, home_of

    layout = Layout(home_of(os.environ, os.geteuid()))
    rows = [prove_record.ProvedRow(row_id, status) for row_id, status in results]
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path = prove_record.write(layout, stamp, rows, at)
    sys.stderr.write(f"... recorded in {path}\n")
