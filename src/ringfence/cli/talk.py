"""`ringfence say` and `ringfence events`."""

from __future__ import annotations

import json as encoder
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant
from ringfence.client.client import Client

EXIT = {"completed": 0, "parked": 0, "rejected": 3}
PAGE = 1000


def say(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from stdin.")],
    thread: Annotated[str, typer.Option(metavar="T", help="The thread; a new name makes one.")],
    act_as: As = None,
    mode: Annotated[str, typer.Option(help="While the thread is busy: queue, steer or reject.")] = "queue",
    key: Annotated[str | None, typer.Option(metavar="K", help="The same key and text: the same turn.")] = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> int:
    """Post a message, show what happens, print the reply."""
    words = typer.get_binary_stream("stdin").read().decode(errors="surrogateescape") if text == "-" else text
    seen = None if json else _progress
    answer = call(lambda client: client.say(thread, words, mode=mode, key=key, seen=seen), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(answer)
    else:
        if answer["reply"]:
            say_it.line(say_it.prose(answer["reply"]))
        if answer["status"] != "completed":
            reason = f": {say_it.plain(answer['reason'])}" if answer["reason"] else ""
            say_it.note(f"ringfence: {answer['status']}{reason}")
            if answer["run"]:
                say_it.note(f"  see: ringfence run show {answer['run']}")
    return EXIT.get(answer["status"], 1)


def _progress(event: dict[str, Any]) -> None:
    body = event.get("body") or {}
    step = f"step {body.get('n', '?')} {body.get('tool', '')}".rstrip()
    words = {
        "run.queued": "queued",
        "run.started": "started",
        "run.redriven": "restarted",
        "step.begun": step,
        "step.ended": f"{step} ended",
    }.get(event["kind"])
    if words is not None:
        say_it.note(f"- {say_it.plain(words)}")


def events(
    thread: Annotated[str, typer.Argument(metavar="T")],
    after: Annotated[int, typer.Option(metavar="CURSOR", help="Only later ones.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as they happen.")] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Print a thread's events. With --follow and --json: one object a line."""

    async def work(client: Client) -> None:
        if follow:
            async for event in client.follow(thread, after=after):
                say_it.line(encoder.dumps(event) if json else _line(event))
                typer.get_text_stream("stdout").flush()
        found = await _all(client, thread, after)
        if json:
            say_it.as_json({"events": found})
        else:
            for event in found:
                say_it.line(_line(event))

    call(work, tenant=tenant, act_as=act_as)


async def _all(client: Client, thread: str, after: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := await client.events(thread, after=after, limit=PAGE):
        found.extend(page)
        after = page[-1]["cursor"]
    return found


def _line(event: dict[str, Any]) -> str:
    body = encoder.dumps(event.get("body"), ensure_ascii=False)
    who = event.get("actor") or "-"
    return f"{event['cursor']:>6}  {event.get('at')}  {event['kind']:<14}  {say_it.plain(f'{who}  {body}')}"
