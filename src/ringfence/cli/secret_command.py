"""`ringfence secret`: credentials in the vault, and where they may be used. A value is read from stdin and never printed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ringfence.cli import say_it, value_in
from ringfence.cli.binding_options import (
    Env,
    Header,
    Host,
    Inject,
    Method,
    Mounted,
    Path,
    Port,
    Query,
    Ranges,
    Recipe,
    SchemeOption,
    Shape,
    Uses,
    binding,
    say_bindings,
    where,
)
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.errors import Invalid

secret = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Credentials that never enter a box.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The credential.")]
Wide = Annotated[
    bool, typer.Option("--tenant-wide", help="The tenant's: every user may bind it where it may reach (operators).")
]


@secret.command("set")
def set_secret(
    user: User,
    name: Name,
    value: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    recipe: Recipe = None,
    host: Host = None,
    header: Header = None,
    scheme: SchemeOption = None,
    query: Query = None,
    method: Method = None,
    path: Path = None,
    port: Port = None,
    env: Env = None,
    shape: Shape = None,
    uses: Uses = None,
    inject: Inject = False,
    mounted: Mounted = False,
    ranges: Ranges = False,
    tenant_wide: Wide = False,
    shared: Annotated[bool, typer.Option("--shared", help="May be granted to single users of the tenant.")] = False,
    oauth: Annotated[
        bool, typer.Option("--oauth", help="The value is an OAuth grant as JSON; so it is with --recipe oauth-refresh.")
    ] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Keep the newline at the end of stdin.")] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Store a value from standard input; with a recipe or a host it is bound at once. Again: its next version."""
    value_in.refused(value)
    if tenant_wide and shared:
        raise Invalid("usage", "--tenant-wide and --shared are two scopes", "take one of them")
    given = (recipe, host, header, scheme, query, method, path, port, env, shape, uses)
    wish = binding(*given, inject, mounted, ranges) if any((*given, inject, mounted, ranges)) else None
    text = value_in.read(name, whole=whole)
    if tenant_wide:
        answer = call(
            lambda client: client.set_tenant_secret(name, text, user=user if wish else "", binding=wish, oauth=oauth),
            tenant=tenant,
            act_as=act_as,
        )
    else:
        answer = call(
            lambda client: client.set_secret(user, name, text, shared=shared or None, binding=wish, oauth=oauth),
            tenant=tenant,
            act_as=act_as,
        )
    if json:
        say_it.as_json(answer)
        return
    say_it.line(f"credential {say_it.plain(name)}: version {answer['version']} of scope {answer['scope']} stored")
    say_bindings(answer["bindings"])


@secret.command("ls")
def ls(
    user: Annotated[str | None, typer.Argument(metavar="U", help="The user; none: the whole tenant.")] = None,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List what a user may bind, and what it is bound to. Never a value."""
    if user is None:
        found = call(lambda client: client.all_secrets(), tenant=tenant, act_as=act_as)
    else:
        whose = user
        found = call(lambda client: client.secrets(whose), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"secrets": found})
        return
    rows = [
        (
            each["name"],
            each["scope"],
            each["user"],
            each["version"],
            each["updated_at"],
            ",".join(each["granted"]) or "-",
        )
        for each in found
    ]
    say_it.table(("NAME", "SCOPE", "USER", "VERSION", "STORED", "GRANTED"), rows)
    for each in found:
        if each["renewal"] is not None:
            say_it.note(say_it.plain(_renewal(each["name"], each["renewal"])))
    bound = [(each["name"], one) for each in found for one in each["bindings"]]
    if bound:
        say_it.line("")
        say_it.table(
            ("BINDING", "NAME", "USE", "HOST", "WHERE", "ENV"),
            [(b["id"], name, b["use"], b["host"], where(b), ",".join(b["environment"]) or "-") for name, b in bound],
        )


def _renewal(name: str, standing: dict[str, Any]) -> str:
    if standing["state"] == "refused":
        remedy = f"sign in anew, and store what that gives: ringfence secret set U {name}"
        return f"{name}: its refresh token is refused ({standing['why']}); {remedy}"
    if standing["state"] == "asking":
        return f"{name}: an access token is being asked for"
    return f"{name}: no new access token ({standing['why']}); again at {standing['again_at']}"


@secret.command("rm")
def rm(
    user: User, name: Name, tenant_wide: Wide = False, act_as: As = None, tenant: Tenant = "default", json: Json = False
) -> None:
    """Revoke a credential for good: its value is deleted, and no worker has it any more when this ends."""
    _revoke(user, name, tenant_wide, act_as, tenant, json)


@secret.command("revoke")
def revoke(
    user: User,
    name: Name,
    grantee: Annotated[
        str | None, typer.Argument(metavar="[USER]", help="Only take back what was granted to them.")
    ] = None,
    tenant_wide: Wide = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Revoke a credential for good, as rm; with USER only take back what was granted to them."""
    if grantee is None:
        _revoke(user, name, tenant_wide, act_as, tenant, json)
        return
    to = grantee
    call(lambda client: client.grant_secret(user, name, to, granted=False), tenant=tenant, act_as=act_as)
    said = f"{say_it.plain(name)} is not granted to {say_it.plain(to)} any more"
    say_it.as_json({"name": name, "user": to, "granted": False}) if json else say_it.line(said)


@secret.command("grant")
def grant(
    user: User,
    name: Name,
    to: Annotated[str, typer.Argument(metavar="USER", help="Who may bind it.")],
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Let another user of the tenant bind a shared credential of U."""
    call(lambda client: client.grant_secret(user, name, to), tenant=tenant, act_as=act_as)
    said = f"{say_it.plain(name)} may be bound by {say_it.plain(to)}"
    say_it.as_json({"name": name, "user": to, "granted": True}) if json else say_it.line(said)


@secret.command("bind")
def bind(
    user: User,
    name: Name,
    recipe: Recipe = None,
    host: Host = None,
    header: Header = None,
    scheme: SchemeOption = None,
    query: Query = None,
    method: Method = None,
    path: Path = None,
    port: Port = None,
    env: Env = None,
    shape: Shape = None,
    uses: Uses = None,
    inject: Inject = False,
    mounted: Mounted = False,
    ranges: Ranges = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Say where a credential may be used: a recipe, or a host and a place in the request. Of another's, neither: as its owner has said."""
    wish = binding(recipe, host, header, scheme, query, method, path, port, env, shape, uses, inject, mounted, ranges)
    made = call(lambda client: client.bind_secret(user, name, wish), tenant=tenant, act_as=act_as)
    say_it.as_json({"bindings": made}) if json else say_bindings(made)


@secret.command("reach")
def reach(
    user: User,
    name: Name,
    recipe: Recipe = None,
    host: Host = None,
    header: Header = None,
    scheme: SchemeOption = None,
    query: Query = None,
    method: Method = None,
    path: Path = None,
    port: Port = None,
    env: Env = None,
    shape: Shape = None,
    uses: Uses = None,
    inject: Inject = False,
    ranges: Ranges = False,
    none: Annotated[bool, typer.Option("--none", help="Nowhere any more: what others have bound ends.")] = False,
    tenant_wide: Wide = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Say where others may bind a shared or a tenant's credential, besides where that was said before."""
    if none == bool(recipe or host):
        raise Invalid("usage", "nothing says where others may bind it", "give --recipe R, --host H, or --none")
    given = (recipe, host, header, scheme, query, method, path, port, env, shape, uses)
    if none and any((*given, inject, ranges)):
        raise Invalid("usage", "--none says nothing of a place", "leave the rest away, or --none")
    place = None if none else binding(*given, inject, False, ranges)
    if tenant_wide:
        answer = call(lambda client: client.reach_tenant_secret(name, place), tenant=tenant, act_as=act_as)
    else:
        answer = call(lambda client: client.reach_secret(user, name, place), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(answer)
        return
    said = f"credential {say_it.plain(name)} may be bound by others at {len(answer['reach'])} places"
    say_it.line(
        f"{said}:" if answer["reach"] else f"credential {say_it.plain(name)} may be bound by nobody but its owner"
    )
    for each in answer["reach"]:
        say_it.line(say_it.plain(f"  {each['use']} at {each['host']} {where(each)}"))


@secret.command("unbind")
def unbind(
    user: User,
    which: Annotated[str, typer.Argument(metavar="NAME|ID", help="A binding's id, or a credential for all of its.")],
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """End bindings: what stands for the credential is refused from then on."""
    gone = call(lambda client: client.unbind_secret(user, which), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"unbound": gone})
    else:
        for each in gone:
            say_it.line(f"binding {each} ended")


def _revoke(user: str, name: str, wide: bool, act_as: str | None, tenant: str, json: bool) -> None:
    if wide:
        answer = call(lambda client: client.revoke_tenant_secret(name), tenant=tenant, act_as=act_as)
    else:
        answer = call(lambda client: client.revoke_secret(user, name), tenant=tenant, act_as=act_as)
    said = f"credential {say_it.plain(name)} revoked: no worker has it any more"
    say_it.as_json(answer) if json else say_it.line(said)
