"""Options that many commands share."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

DEFAULT_TENANT = "default"
Tenant = Annotated[str, typer.Option("--tenant", metavar="T", help="The tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
As = Annotated[str | None, typer.Option("--as", metavar="U", help="Act as this user (operators; recorded).")]
Database = Annotated[
    str | None, typer.Option("--db", metavar="URL", help="Default: the server's, else of the settings.")
]
User = Annotated[str, typer.Argument(metavar="U", help="The user.")]


def again(act_as: str | None, tenant: str) -> str:
    """What a command to copy must say of whom the one before spoke for and where, with a space before it; empty when that
    goes without saying."""
    said = f" --as {shlex.quote(act_as)}" if act_as else ""
    return said if tenant == DEFAULT_TENANT else f"{said} --tenant {shlex.quote(tenant)}"
