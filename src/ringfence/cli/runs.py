"""`ringfence run`."""

from __future__ import annotations

from typing import Annotated

import typer

from ringfence.cli import checks, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant

run = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Runs: the agent's attempts at turns.")

RunId = Annotated[str, typer.Argument(metavar="R")]


@run.command("ls")
def ls(
    limit: Annotated[int, typer.Option(min=1, max=checks.MAX_PAGE, help="At most so many, newest first.")] = 100,
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
            (
                each["run"],
                each["thread"],
                each["user"],
                each["state"],
                each["reason"] or each["detail"] or "-",
                each["attempts"],
            )
            for each in found
        ]
        say_it.table(("RUN", "THREAD", "USER", "STATE", "REASON", "ATTEMPTS"), rows)


@run.command("show")
def show(
    run_id: RunId,
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


@run.command("cancel")
def cancel(run_id: RunId, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """End a run: its loop and its commands are stopped. One that has ended is left as it is."""
    answer = call(lambda client: client.cancel_run(run_id), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(answer)
    elif answer["ended_at"] is None:
        why = f"; {answer['detail']}" if answer["detail"] else ""
        say_it.line(f"run {say_it.plain(run_id)} is being ended{say_it.plain(why)}")
    else:
        say_it.line(f"run {say_it.plain(run_id)} has ended: {say_it.plain(answer['state'])}")


@run.command("redrive")
def redrive(run_id: RunId, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Try a failed run again, with what it has done so far."""
    answer = call(lambda client: client.redrive_run(run_id), tenant=tenant, act_as=act_as)
    say_it.as_json(answer) if json else say_it.line(f"run {say_it.plain(run_id)} is tried again")
