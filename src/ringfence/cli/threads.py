"""`ringfence thread`."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from ringfence.cli import checks, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.client import Client
from ringfence.client.errors import NotFound

thread = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Threads and their members.")
member = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Members of a thread.")
thread.add_typer(member, name="member")
Name = Annotated[str, typer.Argument(metavar="T")]


@thread.command("add")
def add(
    name: Name,
    members: Annotated[list[str] | None, typer.Option("--member", metavar="U", help="Repeat it for more.")] = None,
    parallel: Annotated[bool, typer.Option("--parallel", help="Members' turns run side by side.")] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Make a thread."""
    answer = call(
        lambda client: client.add_thread(name, members=members or [], parallel=parallel), tenant=tenant, act_as=act_as
    )
    say_it.as_json(answer) if json else say_it.line(f"thread {say_it.plain(name)} added")


@thread.command("ls")
def ls(act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """List the threads."""
    found = call(lambda client: client.threads(), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"threads": found})
    else:
        rows = [(each["name"], "parallel" if each["parallel"] else "ordered", each["created_at"]) for each in found]
        say_it.table(("NAME", "LANES", "CREATED"), rows)


@thread.command("show")
def show(name: Name, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Show a thread and its members."""
    answer = call(lambda client: client.thread(name), tenant=tenant, act_as=act_as)
    say_it.as_json(answer) if json else say_it.facts(answer)


@thread.command("break-glass")
def break_glass(
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is recorded and told to the members.")],
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Operators: open the text of a thread for a while. Its members are told."""
    why = checks.reason(reason)
    answer = call(lambda client: client.break_glass(name, why), tenant=tenant, act_as=act_as)
    until = say_it.plain(answer["until"])
    say_it.as_json(answer) if json else say_it.line(f"{say_it.plain(name)} is open to you until {until}")


@member.command("add")
def member_add(name: Name, user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Make a user a member."""
    call(lambda client: client.add_member(name, user), tenant=tenant, act_as=act_as)
    say_it.as_json({"added": user}) if json else say_it.line(f"{say_it.plain(user)} is a member")


@member.command("rm")
def member_rm(name: Name, user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """End a membership."""

    async def work(client: Client) -> None:
        if user not in (await client.thread(name))["members"]:  # to the API, what is not there has been removed
            look = f"see: ringfence thread show {shlex.quote(name)}"
            raise NotFound("not_found", f"{user!r} is no member of {name!r}", look)
        await client.remove_member(name, user)

    call(work, tenant=tenant, act_as=act_as)
    say_it.as_json({"removed": user}) if json else say_it.line(f"{say_it.plain(user)} is no member any more")
