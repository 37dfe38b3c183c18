"""The own commands' words and options. What they do is in own.py and bench_command.py, imported when called."""

from __future__ import annotations

from typing import Annotated

import typer

from ringfence.cli.options import Json

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The settings file.")
bench = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Measure this host.")
SettingsFile = Annotated[str | None, typer.Argument(metavar="FILE", help="Default: ringfence.toml of the state.")]


@bench.callback()
def _bench() -> None:
    """Ratios against the bare floor."""


def init(
    home: Annotated[str | None, typer.Option(metavar="DIR", help="The state directory.")] = None, json: Json = False
) -> None:
    """Make the state, its keys and the first operator token."""
    from ringfence.cli import own

    own.init(home, json)


def serve(
    config: Annotated[str | None, typer.Option(metavar="FILE", help="Settings.")] = None,
    db: Annotated[str | None, typer.Option(metavar="URL", help="The database.")] = None,
    accept: Annotated[str | None, typer.Option(metavar="ID,...", help="What this host may lack.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where; none for no TCP.")] = None,
    profile: Annotated[str | None, typer.Option(help="production: refuse what is not proved.")] = None,
    reason: Annotated[str | None, typer.Option(metavar="WHY", help="Why it is accepted; kept in the audit.")] = None,
) -> None:
    """Run the server in the foreground."""
    from ringfence.cli import own

    own.serve(config, db, accept, listen, profile, reason)


def doctor(
    json: Json = False, driver: Annotated[str | None, typer.Option(help="This driver's own check.")] = None
) -> None:
    """Show what this host can enforce, and the exact fix for each missing part."""
    from ringfence.cli import own

    own.doctor(json, driver)


def prove(
    driver: Annotated[str | None, typer.Option(metavar="D", help="The driver whose boxes are attacked.")] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="ID,...",
            help="Rows or groups: A01, a letter, leaks, drills; spike: credentials, other scopes, denied targets, "
            "trusted processes, tried from one shell.",
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="The settings that `serve` is given.")] = None,
    json: Json = False,
    disposable_host: Annotated[
        bool, typer.Option("--disposable-host", help="For a host that may be lost: no control needs it yet.")
    ] = False,
) -> int:
    """Attack throw-away boxes on this host, and show what held."""
    from ringfence.cli.prove_command import prove as run

    del disposable_host  # no row has a control that would harm the host
    return run(driver, only, config, json)


@config.command("check")
def config_check(file: SettingsFile = None, json: Json = False) -> None:
    """Check a settings file."""
    from ringfence.cli import own

    own.config_check(file, json)


@config.command("show")
def config_show(file: SettingsFile = None, json: Json = False) -> None:
    """Show every setting with its value."""
    from ringfence.cli import own

    own.config_show(file, json)


@bench.command("boxes")
def bench_boxes(json: Json = False) -> int:
    """Measure commands and boxes on this host."""
    from ringfence.cli.bench_command import boxes

    return boxes(json)


@bench.command("durable")
def bench_durable(json: Json = False) -> int:
    """Acknowledged events, restarts, several kernels on one PostgreSQL. Needs PostgreSQL's programs on this host."""
    from ringfence.cli.bench_command import durable

    return durable(json)


@bench.command("turns")
def bench_turns(json: Json = False) -> int:
    """Measure turns of the agent on this host."""
    from ringfence.cli.bench_command import turns

    return turns(json)


@bench.command("audit")
def bench_audit(json: Json = False) -> int:
    """Measure a walk along the audit on this host."""
    from ringfence.cli.bench_command import audit

    return audit(json)


@bench.command("walls")
def bench_walls(json: Json = False) -> int:
    """Measure what the walls cost on this host."""
    from ringfence.cli.bench_command import walls

    return walls(json)


@bench.command("life")
def bench_life(
    json: Json = False,
    docker: Annotated[
        str, typer.Option("--docker", metavar="IMAGE", help="Compare with a Docker engine of this host, by this image.")
    ] = "",
) -> int:
    """Measure pause, resume, starts and adoption on this host."""
    from ringfence.cli.bench_command import life

    return life(json, docker)


@bench.command("egress")
def bench_egress(
    json: Json = False,
    long: Annotated[bool, typer.Option("--long", help="100,000 requests for the memory, not 5,000.")] = False,
    mitmdump: Annotated[str, typer.Option("--mitmdump", metavar="PATH", help="Compare with this mitmdump.")] = "",
) -> int:
    """Measure the way out on this host."""
    from ringfence.cli.bench_command import egress

    return egress(json, long, mitmdump)
