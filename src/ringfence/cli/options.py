"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Tenant = Annotated[str, typer.Option("--tenant", metavar="T", help="The tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
As = Annotated[str | None, typer.Option("--as", metavar="U", help="Act as this user (operators; recorded).")]
User = Annotated[str, typer.Argument(metavar="U", help="The user.")]
