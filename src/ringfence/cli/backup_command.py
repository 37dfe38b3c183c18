"""`ringfence backup`: the whole installation as one file; by the running server, else by a command of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from ringfence.cli.calls import call
from ringfence.cli.db_command import say
from ringfence.cli.options import Json
from ringfence.client.client import Client
from ringfence.client.errors import ApiError, Unavailable, from_answer


class _Sink(Protocol):
    """Of host.install.whole_file."""

    def write(self, data: bytes) -> None: ...


backup = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="The whole installation as one file: rows, boxes, settings."
)
File = Annotated[str, typer.Argument(metavar="FILE", help="What backup create made.")]


@backup.command("create")
def create(
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="A name that is free; -: standard output.")
    ] = None,
    with_key: Annotated[
        bool, typer.Option("--with-key", help="Also the key of the vault: whoever has the file then has every secret.")
    ] = False,
    snapshots: Annotated[bool, typer.Option("--snapshots", help="Also copies of boxes that people made.")] = False,
    force: Annotated[bool, typer.Option("--force", help="End what is at work in boxes that cannot be frozen.")] = False,
    json: Json = False,
) -> int:
    """Write everything of this moment to a file, while the server works. As root, or as who runs the server."""
    wish = {"with_key": with_key, "snapshots": snapshots, "force": force}
    from ringfence.host.install import backup_commands

    code, wrong = backup_commands.caught(lambda: _create(output, wish, json))
    if code is None:
        raise from_answer(wrong, wrong["status"])
    return code


def _create(output: str | None, wish: dict[str, Any], json: bool) -> int:
    from ringfence.host.install import backup_commands
    from ringfence.host.install.whole_file import Checked, Target, full

    if output == "-":
        checked = Checked(sys.stdout.buffer)
        try:
            _fill(checked, wish)
        except OSError as error:
            raise full(error, "standard output") from error
        sys.stdout.buffer.flush()
        facts = {"file": "-", "size_bytes": checked.written, **checked.end().facts()}
        said = backup_commands.made(facts, as_json=json)
        sys.stderr.write(said.out)
        return said.code
    name = output or backup_commands.name_of(backup_commands.installation_of(os.environ))
    target = Target(Path(name))
    try:
        _fill(target, wish)
        return say(backup_commands.made(target.keep(), as_json=json))
    finally:
        target.close()


def _fill(sink: _Sink, wish: dict[str, Any]) -> None:
    """By the server; where none runs, without."""
    begun = False

    async def copied(client: Client) -> None:
        nonlocal begun
        async with client.open_backup(**wish) as chunks:
            async for chunk in chunks:
                begun = True
                sink.write(chunk)

    try:
        call(copied)
    except Unavailable as error:
        if begun:
            return  # its end is not there: whoever reads it says so
        if os.environ.get("RINGFENCE_URL") or error.code != "unavailable":
            raise
        _without(sink, wish, error)


def _without(sink: _Sink, wish: dict[str, Any], unreachable: ApiError) -> None:
    from ringfence.host.install import backup_commands

    _, wrong = backup_commands.caught(lambda: backup_commands.stream(os.environ, wish, sink.write))
    if wrong:
        pid = "pid" in wrong["error"]["details"]  # a server runs, not for this account
        raise unreachable if pid else from_answer(wrong, wrong["status"])


@backup.command("verify")
def verify(path: File, json: Json = False) -> int:
    """Read all of a backup: whether it is whole, and what is in it."""
    from ringfence.host.install import backup_commands

    return say(backup_commands.verify(path, as_json=json))


@backup.command("restore")
def restore(
    path: File,
    home: Annotated[
        str | None, typer.Option("--home", metavar="DIR", help="Default: the usual state directory.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--db", metavar="URL", help="Where its rows go; sqlite: a file of the state.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move what is there aside; it is kept.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Also when its rows do not agree.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust-settings", help="Also settings that name what root runs or reads.")
    ] = False,
    json: Json = False,
) -> int:
    """Make an installation from a backup, on this host or another. Only where no server runs."""
    from ringfence.host.install import backup_commands
    from ringfence.host.install.whole_restore import Wish

    wish = Wish(Path(path), home, url, force, anyway, trust)
    return say(backup_commands.restore(os.environ, wish, as_json=json))
