"""`ringfence box logs`."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.boxes import box as box
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.client import Client
from ringfence.client.logs import MOST


@box.command("logs")
def logs(
    user: User,
    lines: Annotated[int, typer.Option("--lines", min=1, max=MOST, help="The newest so many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as more comes, until ^C.")] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show why a box started, stopped, came to rest or was lost, and what its PID 1 said. It does not keep the box awake."""

    async def show(client: Client) -> None:
        if not follow:
            found = await client.box_logs(user, lines=lines)
            if found["more"] and not json:
                say_it.note("older lines are left out: see --lines")
            _print(found["lines"], json)
            return
        async for fresh in client.follow_box_logs(user, lines=lines):
            _print(fresh, json)

    call(show, tenant=tenant, act_as=act_as)


def _print(lines: Iterable[dict[str, Any]], json: bool) -> None:
    """A line each, also of JSON: so that a log can be cut anywhere, and followed."""
    for each in lines:
        if json:
            say_it.line(json_text.dumps({name: each[name] for name in ("at", "source", "text")}))
        else:
            say_it.line(say_it.plain(f"{each['at'][:19]}  {each['source']:<7} {each['text']}"))
    sys.stdout.flush()  # who reads a pipe sees a line when it comes
