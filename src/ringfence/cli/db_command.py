"""`ringfence db`: the database of this installation, with or without a server. Own commands: what they do is in host.install."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Protocol

import typer

from ringfence.cli.options import Database, Json

db = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The database: upgrade, check, back up, restore.")


@db.command("upgrade")
def upgrade(
    contract: Annotated[bool, typer.Option("--contract", help="Also take away what older releases need.")] = False,
    url: Database = None,
    json: Json = False,
) -> int:
    """Bring the schema up to date."""
    from ringfence.host.install import db_commands

    return say(db_commands.upgrade(os.environ, url, contract=contract, as_json=json))


@db.command("check")
def check(url: Database = None, json: Json = False) -> int:
    """Look whether the database is whole; exit 1 when it is not. Changes nothing but to
    finish a restore that was cut short."""
    from ringfence.host.install import db_commands

    return say(db_commands.check(os.environ, url, as_json=json))


@db.command("backup")
def backup(
    path: Annotated[str, typer.Argument(metavar="FILE", help="A name that is free.")],
    url: Database = None,
    json: Json = False,
) -> int:
    """Write every row of this moment to a file, while the server works."""
    from ringfence.host.install import db_commands

    return say(db_commands.backup(os.environ, url, path, as_json=json))


@db.command("restore")
def restore(
    path: Annotated[str, typer.Argument(metavar="FILE", help="What db backup made.")],
    anyway: Annotated[bool, typer.Option("--anyway", help="Also when its rows do not agree.")] = False,
    url: Database = None,
    json: Json = False,
) -> int:
    """Put a backup in the place of the database, which is kept beside it. Only while no server runs."""
    from ringfence.host.install import db_commands

    return say(db_commands.restore(os.environ, url, path, anyway=anyway, as_json=json))


@db.command("rebuild")
def rebuild(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show differences only.")] = False,
    url: Database = None,
    json: Json = False,
) -> int:
    """Derive again what is derived from the events; exit 1 when something differed."""
    from ringfence.host.install import db_commands

    return say(db_commands.rebuild(os.environ, url, dry_run=dry_run, as_json=json))


class _Answer(Protocol):
    """host.install.commands.Answer."""

    @property
    def code(self) -> int: ...
    @property
    def out(self) -> str: ...
    @property
    def err(self) -> str: ...


def say(answer: _Answer) -> int:
    sys.stdout.write(answer.out)
    sys.stdout.flush()
    sys.stderr.write(answer.err)
    return answer.code
