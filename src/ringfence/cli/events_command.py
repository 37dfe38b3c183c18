"""`ringfence events`: a thread's record in words, or as JSON."""

from __future__ import annotations

import json as encoder
import sys
from contextlib import aclosing
from typing import Annotated, Any

import typer

from ringfence.cli import checks, event_words, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant
from ringfence.client.client import Client


def events(
    thread: Annotated[str, typer.Argument(metavar="T")],
    after: Annotated[int, typer.Option(min=0, max=checks.MAX_CURSOR, metavar="CURSOR", help="Only later ones.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they happen.")] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Print a thread's events. With --follow and --json: one object a line, and the live text of your own runs too."""

    async def work(client: Client) -> None:
        if follow:
            await _follow(client, thread, after, json)
        elif json:
            say_it.as_json({"events": await _all(client, thread, after)})
        else:
            for event in await _all(client, thread, after):
                say_it.line(event_words.line(event))

    call(work, tenant=tenant, act_as=act_as)


async def _follow(client: Client, thread: str, after: int, json: bool) -> None:
    async with aclosing(client.follow(thread, after=after, live=json)) as items:
        async for item in items:
            say_it.line(encoder.dumps(item) if json else event_words.line(item))
            sys.stdout.flush()


async def _all(client: Client, thread: str, after: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := await client.events(thread, after=after, limit=checks.MAX_PAGE):
        found.extend(page)
        after = page[-1]["cursor"]
    return found
