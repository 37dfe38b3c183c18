"""`ringfence tenant`, `user`, `token`."""

from __future__ import annotations

from typing import Annotated

import typer

from ringfence.cli import checks, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant

tenant = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Organisations.")
user = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="People, agents and projects: each with a box.")
token = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="API tokens.")

Name = Annotated[str, typer.Argument(metavar="NAME")]
Owner = Annotated[str, typer.Option("--user", metavar="U", help="Whose.")]


@tenant.command("add")
def tenant_add(name: Name, json: Json = False) -> None:
    """Add a tenant."""
    answer = call(lambda client: client.add_tenant(name))
    say_it.as_json(answer) if json else say_it.line(f"tenant {say_it.plain(name)} added")


@tenant.command("ls")
def tenant_ls(json: Json = False) -> None:
    """List the tenants."""
    found = call(lambda client: client.tenants())
    if json:
        say_it.as_json({"tenants": found})
    else:
        say_it.table(("NAME", "CREATED"), [(each["name"], each["created_at"]) for each in found])


@tenant.command("rm")
def tenant_rm(name: Name, json: Json = False) -> None:
    """Remove a tenant that has no users."""
    call(lambda client: client.remove_tenant(name))
    _removed(json, "tenant", name)


@user.command("add")
def user_add(
    name: Name,
    kind: Annotated[str, typer.Option(help="person, agent or project.")] = "person",
    owner: Annotated[str | None, typer.Option(metavar="U", help="Who answers for an agent or project.")] = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Add a user, and provision the box."""
    checks.one_of("--kind", kind, checks.KINDS)
    answer = call(lambda client: client.add_user(name, kind=kind, owner=owner), tenant=tenant)
    say_it.as_json(answer) if json else say_it.line(f"user {say_it.plain(name)} added")


@user.command("ls")
def user_ls(tenant: Tenant = "default", json: Json = False) -> None:
    """List the users of a tenant."""
    found = call(lambda client: client.users(), tenant=tenant)
    if json:
        say_it.as_json({"users": found})
    else:
        say_it.table(("NAME", "KIND", "CREATED"), [(each["name"], each["kind"], each["created_at"]) for each in found])


@user.command("show")
def user_show(name: Name, tenant: Tenant = "default", json: Json = False) -> None:
    """Show a user."""
    answer = call(lambda client: client.user(name), tenant=tenant)
    say_it.as_json(answer) if json else say_it.facts(answer)


@user.command("rm")
def user_rm(
    name: Name,
    purge: Annotated[bool, typer.Option("--purge", help="Delete the files too, now and for good.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go and what would stay.")] = False,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Remove a user: stop the box, revoke the tokens. The files stay in the state directory unless purged."""
    if dry_run:
        from ringfence.cli import export_command

        export_command.rehearse(name, tenant, purge=purge, json=json)
        return
    call(lambda client: client.remove_user(name, purge=purge), tenant=tenant)
    _removed(json, "user", name)


@user.command("export")
def user_export(
    name: Name,
    output: Annotated[str, typer.Option("--output", metavar="FILE", help="A name that is free: FILE.tar.gz.")],
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Write a user's own data to a file: messages, runs and steps, files of the box, names of credentials."""
    from ringfence.cli import export_command

    export_command.export(name, output, tenant, act_as, json=json)


@token.command("add")
def token_add(
    user: Owner,
    scope: Annotated[list[str] | None, typer.Option(help="user (default), read, operator; repeat it.")] = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    ttl: Annotated[float | None, typer.Option(metavar="SEC", help="Expires after so many seconds.")] = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Make a token. It is shown once; only its hash is kept."""
    scopes = [checks.one_of("--scope", each, checks.SCOPES) for each in scope or ["user"]]
    checks.seconds("--ttl", ttl)
    answer = call(lambda client: client.add_token(user, scopes=scopes, note=note, ttl_seconds=ttl), tenant=tenant)
    if json:
        say_it.as_json(answer)
    else:
        say_it.line(answer["token"])
        say_it.note(f"token {answer['id']} of {say_it.plain(user)}: it is not shown again")


@token.command("ls")
def token_ls(user: Owner, tenant: Tenant = "default", json: Json = False) -> None:
    """List a user's tokens, without their secrets."""
    found = call(lambda client: client.tokens(user), tenant=tenant)
    if json:
        say_it.as_json({"tokens": found})
    else:
        rows = [(each["id"], ",".join(each["scopes"]), each["expires_at"], each["note"]) for each in found]
        say_it.table(("ID", "SCOPES", "EXPIRES", "NOTE"), rows)


@token.command("rm")
def token_rm(
    token_id: Annotated[str, typer.Argument(metavar="ID")], user: Owner, tenant: Tenant = "default", json: Json = False
) -> None:
    """Revoke a token."""
    call(lambda client: client.remove_token(user, token_id), tenant=tenant)
    _removed(json, "token", token_id)


def _removed(json: bool, what: str, name: str) -> None:
    say_it.as_json({"removed": name}) if json else say_it.line(f"{what} {say_it.plain(name)} removed")
