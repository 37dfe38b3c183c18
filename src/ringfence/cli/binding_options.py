"""Where a credential may be used, as options of `secret set` and `secret bind`, and how it is shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ringfence.cli import checks, say_it
from ringfence.client.errors import Invalid

SCHEMES = ("raw", "bearer", "token", "basic_password", "basic_user")
Recipe = Annotated[
    str | None, typer.Option(metavar="R", help="github, npm, pypi, openai, anthropic, bearer, oauth-refresh, ...")
]
Host = Annotated[str | None, typer.Option(metavar="H", help="The host that takes it; of a recipe: instead of its own.")]
Header = Annotated[str | None, typer.Option(metavar="X", help="The header whose value it is.")]
SchemeOption = Annotated[str | None, typer.Option(metavar="S", help=f"Of the header: {', '.join(SCHEMES)}.")]
Query = Annotated[str | None, typer.Option(metavar="P", help="A parameter of the query: URLs end up in logs.")]
Method = Annotated[list[str] | None, typer.Option("--method", metavar="M", help="Only these; repeat it.")]
Path = Annotated[list[str] | None, typer.Option("--path", metavar="P", help="Only these, * and ** as wildcards.")]
Port = Annotated[list[int] | None, typer.Option("--port", metavar="N", help="Default: 443.")]
Env = Annotated[list[str] | None, typer.Option("--env", metavar="V", help="Variable of commands that stands for it.")]
Inject = Annotated[bool, typer.Option("--inject", help="Without a placeholder: any process of the box spends it.")]
Mounted = Annotated[bool, typer.Option("--mounted", help="In clear in the box's commands: one's own only.")]
Shape = Annotated[str | None, typer.Option(metavar="S", help="What the placeholder looks like.")]
Ranges = Annotated[bool, typer.Option("--ranges", help="Parts of answers may be asked for: for resumed downloads.")]
Uses = Annotated[int | None, typer.Option(min=1, help="Of one placeholder.")]


def binding(
    recipe: str | None,
    host: str | None,
    header: str | None,
    scheme: str | None,
    query: str | None,
    method: Sequence[str] | None,
    path: Sequence[str] | None,
    port: Sequence[int] | None,
    env: Sequence[str] | None,
    shape: str | None,
    uses: int | None,
    inject: bool,
    mounted: bool,
    ranges: bool,
) -> dict[str, Any]:
    """NewBinding of the API. Nothing but variables: of another's credential, wherever its owner lets it be sent."""
    if inject and mounted:
        raise Invalid("usage", "--inject and --mounted are two ways", "take one of them")
    somehow = any((header, scheme, query, method, path, port, shape, uses, inject, ranges))
    if somehow and not (recipe or host or mounted):
        raise Invalid("usage", "nothing says where it may be used", "give --recipe R, or --host H with --header X")
    if scheme is not None:
        checks.one_of("--scheme", scheme, SCHEMES)
    return {
        "recipe": recipe or "",
        "host": host or "",
        "header": header or "",
        "scheme": scheme,
        "query": query or "",
        "ports": list(port or [443]),
        "methods": [each.upper() for each in method or ()],
        "paths": list(path or ()),
        "environment": None if env is None else list(env),
        "use": "inject" if inject else "mounted" if mounted else "placeholder",
        "shape": shape or "",
        "uses": uses,
        "ranges": ranges,
    }


def say_bindings(bindings: Sequence[dict[str, Any]]) -> None:
    for each in bindings:
        names = f", stands in {', '.join(each['environment'])}" if each["environment"] else ""
        say_it.line(say_it.plain(f"  {each['id']}: {each['use']} at {each['host']} {where(each)}{names}"))
    if any(each["use"] == "mounted" for each in bindings):
        say_it.note("  mounted: every command of the box has the value in clear")
    if any(each["use"] == "inject" for each in bindings):
        say_it.note("  injected: any process of the box spends it, by asking the host")
    if any(each["ranges"] for each in bindings):
        say_it.note("  ranges: a server that echoes the value can be made to give it by halves")


def where(binding: dict[str, Any]) -> str:
    places = [
        f"?{each['query']}=" if each["query"] else f"{each['header']} ({each['scheme']})"
        for each in binding["positions"]
    ]
    methods = "/".join(binding["methods"])
    return " ".join(part for part in ("|".join(places), methods, ",".join(binding["paths"])) if part)
