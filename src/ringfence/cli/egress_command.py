"""`ringfence egress`: rules of the only way out of a box, what they come to, and what went out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ringfence.cli import checks, egress_words, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.client import Client
from ringfence.client.errors import Invalid

egress = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The only way out of a box: rules and log.")

REFUSED = 3  # by policy
Words = Annotated[
    list[str] | None, typer.Argument(metavar="U HOST", help="With --tenant-wide or --installation: HOST.")
]
Wide = Annotated[bool, typer.Option("--tenant-wide", help="For every user of the tenant (operators).")]
All = Annotated[bool, typer.Option("--installation", help="For every user of every tenant (operators).")]
Method = Annotated[list[str] | None, typer.Option("--method", metavar="M", help="Only these; repeat it.")]
Path = Annotated[list[str] | None, typer.Option("--path", metavar="P", help="Only these: * a segment, ** any number.")]
Port = Annotated[list[int] | None, typer.Option("--port", metavar="N", help="Default: 443; of a deny every port.")]
Query = Annotated[list[str] | None, typer.Option("--query", metavar="K=V", help="Only with this in the query.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME[:HOST]", help="git-read:github.com, pypi, npm, debian, ...")]
Plain = Annotated[bool, typer.Option("--plain", help="http without TLS too.")]
Socket = Annotated[bool, typer.Option("--websocket", help="WebSockets too.")]
Unread = Annotated[bool, typer.Option("--passthrough", help="By name alone, unread: no methods, paths or credentials.")]
Up = Annotated[int | None, typer.Option(metavar="BYTES", help="Most of a request's body; default 100 MiB.")]
Down = Annotated[int | None, typer.Option(metavar="BYTES", help="Most of a response's body; default 2 GiB.")]
Note = Annotated[str, typer.Option(help="What it is for.")]
Limit = Annotated[int, typer.Option(min=1, max=checks.MAX_PAGE, help="At most so many of each kind.")]


@dataclass(frozen=True, slots=True)
class _Layer:
    """`user` None: the tenant's or, with `installation`, the installation's."""

    user: str | None
    installation: bool
    rest: tuple[str, ...]  # of the words


@egress.command("allow")
def allow(
    words: Words = None,
    preset: Preset = None,
    method: Method = None,
    path: Path = None,
    port: Port = None,
    query: Query = None,
    plain: Plain = False,
    websocket: Socket = False,
    passthrough: Unread = False,
    up_bytes: Up = None,
    down_bytes: Down = None,
    note: Note = "",
    tenant_wide: Wide = False,
    installation: All = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Let requests out. Without a rule nothing leaves a box."""
    more: dict[str, Any] = {"plain": plain, "websocket": websocket, "passthrough": passthrough}
    more |= {"up_bytes": up_bytes, "down_bytes": down_bytes}
    at = _layer(words, tenant_wide, installation, 0 if preset else 1)
    _add(at, _rule("allow", at, preset, method, path, port, query, note) | more, act_as, tenant, json)


@egress.command("deny")
def deny(
    words: Words = None,
    method: Method = None,
    path: Path = None,
    port: Port = None,
    query: Query = None,
    note: Note = "",
    tenant_wide: Wide = False,
    installation: All = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Deny requests, whatever another layer allows."""
    at = _layer(words, tenant_wide, installation, 1)
    _add(at, _rule("deny", at, None, method, path, port, query, note), act_as, tenant, json)


@egress.command("ask")
def ask(
    words: Words = None,
    preset: Preset = None,
    method: Method = None,
    path: Path = None,
    port: Port = None,
    query: Query = None,
    plain: Plain = False,
    websocket: Socket = False,
    note: Note = "",
    tenant_wide: Wide = False,
    installation: All = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Hold a request until somebody says yes: see `ringfence gate ls`."""
    at = _layer(words, tenant_wide, installation, 0 if preset else 1)
    more = {"plain": plain, "websocket": websocket}
    _add(at, _rule("ask", at, preset, method, path, port, query, note) | more, act_as, tenant, json)


@egress.command("ls")
def ls(
    user: Annotated[str | None, typer.Argument(metavar="U", help="The user: rules of all layers.")] = None,
    tenant_wide: Wide = False,
    installation: All = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List rules, as they count for a user, or of one layer."""
    found = _rules(user, tenant_wide, installation, act_as, tenant)
    if json:
        say_it.as_json(found)
    else:
        egress_words.table(found["rules"])
        egress_words.odd(found["lint"])


@egress.command("lint")
def lint(
    user: Annotated[str | None, typer.Argument(metavar="U", help="The user.")] = None,
    tenant_wide: Wide = False,
    installation: All = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> int:
    """Say which rules surely do not do what was meant; exit 1 when there are some."""
    found = _rules(user, tenant_wide, installation, act_as, tenant)
    if json:
        say_it.as_json({"lint": found["lint"]})
    else:
        for each in found["lint"]:
            say_it.line(say_it.plain(each))
    return 1 if found["lint"] else 0


@egress.command("rm")
def rm(
    words: Annotated[list[str] | None, typer.Argument(metavar="U ID", help="A rule's id; see ls.")] = None,
    tenant_wide: Wide = False,
    installation: All = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Remove a rule: connections that it let through are closed."""
    at = _layer(words, tenant_wide, installation, 1)
    gone = call(
        lambda client: client.remove_egress_rule(at.user, at.rest[0], installation=at.installation),
        tenant=tenant,
        act_as=act_as,
    )
    say_it.as_json(gone) if json else say_it.line(f"removed: {egress_words.rule(gone)}")


@egress.command("test")
def test(
    user: User,
    method: Annotated[str, typer.Argument(metavar="METHOD", help="GET, POST, ..., or CONNECT.")],
    url: Annotated[str, typer.Argument(metavar="URL")],
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> int:
    """Explain what would become of a request, which rule decides, and which credential is used; exit 3 when it is denied."""
    found = call(lambda client: client.test_egress(user, method, url), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(found)
    else:
        for each in egress_words.explained(found, user):
            say_it.line(each)
    return REFUSED if found["answer"] == "deny" else 0


@egress.command("log")
def log(
    user: User,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as more comes.")] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="ISO 8601.")] = None,
    limit: Limit = 100,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show what went out of a box and what was refused. Traffic is in memory; releases and intents are evidence."""

    async def show(client: Client) -> None:
        if not follow:
            _say_log(await client.egress_log(user, since=since, limit=limit), json, follow)
            return
        first = True
        async for found in client.follow_egress(user, since=since, limit=limit):
            if first or found["traffic"] or found["rows"]:
                _say_log(found, json, follow)
            first = False

    call(show, tenant=tenant, act_as=act_as)


def _say_log(found: dict[str, Any], json: bool, follow: bool) -> None:
    if json and follow:
        egress_words.as_line(found)
    elif json:
        say_it.as_json(found)
    else:
        for each in egress_words.log(found):
            say_it.line(each)
    egress_words.flush()


def _layer(words: Sequence[str] | None, wide: bool, installation: bool, rest: int) -> _Layer:
    """`rest`: how many words are not the user."""
    given = tuple(words or ())
    if wide and installation:
        raise Invalid("usage", "--tenant-wide and --installation are two layers", "take one of them")
    if wide or installation:
        if len(given) not in (rest, rest + 1):
            raise Invalid("usage", f"{len(given)} words, not {rest}", "see: ringfence egress --help")
        return _Layer(None, installation, given[len(given) - rest :])
    if len(given) != rest + 1:
        raise Invalid("usage", f"{len(given)} words, not {rest + 1}: a user first", "see: ringfence egress --help")
    return _Layer(given[0], False, given[1:])


def _rule(
    answer: str,
    at: _Layer,
    preset: str | None,
    method: Sequence[str] | None,
    path: Sequence[str] | None,
    port: Sequence[int] | None,
    query: Sequence[str] | None,
    note: str,
) -> dict[str, Any]:
    """NewRule of the API."""
    pairs = [each.partition("=") for each in query or ()]
    if any(not equals for _, equals, _ in pairs):
        raise Invalid("usage", "--query is no K=V", "for example --query service=git-upload-pack")
    return {
        "answer": answer,
        "host": "" if preset else at.rest[0],
        "preset": preset or "",
        "ports": list(port) if port else None,
        "methods": [each.upper() for each in method or ()],
        "paths": list(path or ()),
        "query": [[name, value] for name, _, value in pairs],
        "note": note,
    }


def _add(at: _Layer, rule: dict[str, Any], act_as: str | None, tenant: str, json: bool) -> None:
    made = call(
        lambda client: client.add_egress_rule(at.user, rule, installation=at.installation),
        tenant=tenant,
        act_as=act_as,
    )
    if json:
        say_it.as_json(made)
        return
    for each in made["rules"]:
        say_it.line(f"added: {egress_words.rule(each)}")
    egress_words.odd(made["lint"])


def _rules(user: str | None, wide: bool, installation: bool, act_as: str | None, tenant: str) -> dict[str, Any]:
    if user is None and not (wide or installation):
        raise Invalid("usage", "no user", "name one, or give --tenant-wide or --installation")
    of = None if wide or installation else user
    return call(lambda client: client.egress_rules(of, installation=installation), tenant=tenant, act_as=act_as)
