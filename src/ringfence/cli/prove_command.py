"""`ringfence prove`: runs the suite, says each row, writes the record that the production profile asks for."""

from __future__ import annotations

import os
import sys

from ringfence.cli import checks, say_it


def prove(driver: str | None, only: str | None, config: str | None, json: bool) -> int:
    """0; 1: a row is open, or something was left behind; 2: no such row or driver, or settings that are none; 3: settings
    that others could have written; 5: this host runs no server. `config`: as of `serve`, whose walls are tried then."""
    from ringfence.bench.throwaway import CommandFailed, ServerEnded
    from ringfence.host.install import commands, prove_subject
    from ringfence.prove.registry import NoSuchRow, chosen, rows
    from ringfence.prove.report import as_json, as_text, line
    from ringfence.prove.suite import prove as run

    checks.driver(driver)
    subject = prove_subject.subject(os.environ, config, as_json=json)
    if isinstance(subject, commands.Answer):
        sys.stdout.write(subject.out)
        sys.stderr.write(subject.err)
        return subject.code
    try:
        report = run(chosen(rows(), only), done=lambda result: _tell(line(result)), settings=subject.walls)
    except NoSuchRow as error:
        return say_it.error("usage", str(error), "see: ringfence prove --help", {}, json, 2)
    except CommandFailed as error:
        said, remedy = (error.message, error.remedy) if isinstance(error, ServerEnded) else ("", "")
        what = "\n".join([said or str(error), *getattr(error, "__notes__", [])])
        remedy = remedy or "ringfence doctor"
        return say_it.error("unavailable", f"no throw-away server: {say_it.on_one_line(what)}", remedy, {}, json, 5)
    sys.stdout.write(as_json(report) if json else as_text(report))
    said = subject.record((found.row.id, found.status) for found in report.results) if only is None else ""
    if said:
        _tell(said)
    return 0 if report.ok else 1


def _tell(text: str) -> None:
    sys.stderr.write(f"... {text}\n")
    sys.stderr.flush()
