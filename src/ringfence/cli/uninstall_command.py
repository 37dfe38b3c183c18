"""`ringfence uninstall`: an own command, but that boxes of a running server are stopped by it."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import Json
from ringfence.client.client import Client
from ringfence.client.errors import Conflict, Invalid, from_answer


def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Take everything away: boxes, files, accounts, units.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --purge: also while boxes run.")] = False,
    json: Json = False,
) -> int:
    """Stop every box and say what there is to take away; with --purge take it away, for ever."""
    from ringfence.host.install import uninstall_commands as commands

    found = _asked(commands.find(os.environ))
    facts = _asked(commands.plan(found["found"]))
    if not purge:
        facts = {**facts, "stopped": _stopped(facts, found["found"])}
        return _said(facts, json, purged=False)
    if not yes:
        _ask(facts)
    done = _asked(commands.purge(found["found"], force=force))
    return _said(done, json, purged=True)


def _asked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise from_answer(answer, answer["status"])
    return answer


def _stopped(facts: dict[str, Any], found: Any) -> list[str]:
    """Ids of boxes."""
    if not facts["server"]:
        from ringfence.host.install import uninstall_commands as commands

        return list(_asked(commands.stop(found))["stopped"])

    async def stop(client: Client) -> list[str]:
        ended = []
        for box in await client.boxes():
            if box["observed"] not in ("absent", "stopped"):
                await client.stop_box(box["user"], tenant=box["tenant"])
                ended.append(box["box"])
        return ended

    return call(stop)


def _ask(facts: dict[str, Any]) -> None:
    """Conflict: it was not meant. Invalid: nobody can be asked."""
    word = facts["installation"] or facts["home"]
    if not sys.stdin.isatty():
        raise Invalid("usage", "nobody can be asked whether this is meant", "ringfence uninstall --purge --yes")
    for line in _lines(facts):
        say_it.note(line)
    sys.stderr.write(f"Everything of it is deleted for ever. To go on, type {word}: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip() != word:
        raise Conflict("conflict", "nothing was taken away", "ringfence uninstall says what there is")


def _said(facts: dict[str, Any], json: bool, *, purged: bool) -> int:
    left = facts.get("left", [])
    if json:
        say_it.as_json(facts)
        return 1 if left else 0
    if not purged:
        for line in _lines(facts):
            say_it.line(line)
        say_it.line(f"stopped     {len(facts['stopped'])} boxes; to take all of this away: ringfence uninstall --purge")
        return 0
    for one in left:
        say_it.line(say_it.plain(f"left        {one}"))
    for one in facts["kept"]:
        say_it.line(say_it.plain(f"kept        {one}"))
    say_it.line("something is left: ask again" if left else f"gone        {facts['home']}, {facts['boxes']} boxes")
    return 1 if left else 0


def _lines(facts: dict[str, Any]) -> list[str]:
    server = f"pid {facts['server']}" if facts["server"] else "does not run"
    return [
        f"state       {facts['home']} ({facts['installation'] or 'not whole'})",
        f"server      {server}; {facts['boxes']} boxes, {len(facts['running'])} of them run",
        *(say_it.plain(f"takes       {each}") for each in facts["takes"]),
        *(say_it.plain(f"keeps       {each}") for each in facts["kept"]),
    ]
