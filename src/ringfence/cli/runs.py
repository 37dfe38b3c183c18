"""`ringfence run`."""

from __future__ import annotations

from typing import Annotated

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant

run = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Runs: the agent's attempts at turns.")


@run.command("ls")
def ls(
    limit: Annotated[int, typer.Option(help="At most so many, newest first.")] = 100,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List runs."""
    found = call(lambda client: client.runs(limit=limit), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"runs": found})
    else:
        rows = [
            (each["run"], each["thread"], each["user"], each["state"], each["reason"] or "-", each["attempts"])
            for each in found
        ]
        say_it.table(("RUN", "THREAD", "USER", "STATE", "REASON", "ATTEMPTS"), rows)


@run.command("show")
def show(
    run_id: Annotated[str, typer.Argument(metavar="R")],
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show a run and its steps."""
    answer = call(lambda client: client.run(run_id), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(answer)
        return
    steps = answer.pop("steps") or []
    say_it.facts(answer)
    if steps:
        say_it.table(
            ("STEP", "TOOL", "EFFECT", "STATE"),
            [(each["n"], each["tool"], each["effect"], each["state"]) for each in steps],
        )
