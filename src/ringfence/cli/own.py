"""The commands that need no server: init, serve, doctor, config check and show.

Thin: each imports its part of host.install inside the function, so that no client command pays for it, prints the answer
and ends with its exit code. `cli/main.py` mounts them.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


def _end(code: int, out: str, err: str) -> NoReturn:
    sys.stdout.write(out)
    sys.stdout.flush()
    sys.stderr.write(err)
    raise SystemExit(code)


def _environment() -> Mapping[str, str]:
    return os.environ


def _rows() -> Collection[str]:
    """Ids of every row of `prove`: some 100 ms of imports, for whoever accepts one by name."""
    from ringfence.prove.registry import rows

    return [row.id for row in rows()]


def init(home: str | None = None, json: bool = False) -> None:
    """Makes the state directory, its keys and the store; prints the first operator token, once."""
    from ringfence.host.install import commands

    answer = commands.init(_environment(), home, as_json=json)
    _end(answer.code, answer.out, answer.err)


def serve(
    config: str | None = None,
    db: str | None = None,
    accept: str | None = None,
    listen: str | None = None,
    profile: str | None = None,
    reason: str | None = None,
) -> None:
    """Runs the server in the foreground: this process becomes the spawner. Makes the state if there is none."""
    from ringfence.host.install import commands

    start = commands.serve(_environment(), config, db, accept, listen, profile, reason, rows=_rows)
    if isinstance(start, commands.Answer):
        _end(start.code, start.out, start.err)
    sys.stdout.flush()
    os.execve(start.argv[0], start.argv, start.environment)


def doctor(json: bool = False, driver: str | None = None) -> None:
    """What this host can enforce, and the command that mends each missing part; with `driver`, its self-check."""
    if driver is not None:
        from ringfence.cli.driver_command import check

        raise SystemExit(check(driver, json))
    from ringfence.host.install import commands

    answer = commands.run_doctor(_environment(), as_json=json)
    _end(answer.code, answer.out, answer.err)


def config_check(file: str | None = None, json: bool = False) -> None:
    """Tries a settings file: exit 0, or 2 with the key, the value and what is allowed."""
    from ringfence.host.install import commands

    answer = commands.config_check(_environment(), file, as_json=json, rows=_rows)
    _end(answer.code, answer.out, answer.err)


def config_show(file: str | None = None, json: bool = False) -> None:
    """Prints every setting with its meaning and its value in force."""
    from ringfence.host.install import commands

    answer = commands.config_show(_environment(), file, as_json=json)
    _end(answer.code, answer.out, answer.err)
