"""`ringfence say`: a message, what happens, the reply. stdout has the reply, once, and nothing else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringfence.cli import checks, event_words, gate_command, options, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant
from ringfence.cli.watching import Watching

EXIT = {"completed": 0, "parked": 0, "rejected": 3}
INTERRUPTED = 130
IDS = ("thread", "turn", "run", "message")


def say(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from stdin.")],
    thread: Annotated[str, typer.Option(metavar="T", help="The thread; a new name makes one.")],
    act_as: As = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="While the thread is busy: queue (wait for your turn), steer (add to your own turn that is under way), "
            "or reject.",
        ),
    ] = "queue",
    key: Annotated[str | None, typer.Option(metavar="K", help="The same key and text: the same turn.")] = None,
    attach: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="A file in the box to go with it; repeat it for more.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what happens, terminal or not.")] = False,
    tenant: Tenant = "default",
    json: Json = False,
) -> int:
    """Post a message, show what happens, print the reply."""
    checks.one_of("--mode", mode, checks.MODES)
    checks.key(key)
    files = checks.attachments(attach)
    given = typer.get_binary_stream("stdin").read().decode(errors="surrogateescape") if text == "-" else text
    words = checks.message(given)
    watching = Watching(verbose or (sys.stderr.isatty() and not json))
    try:
        answer = call(
            lambda client: client.say(thread, words, mode=mode, key=key, attachments=files, seen=watching.see),
            tenant=tenant,
            act_as=act_as,
        )
    except KeyboardInterrupt:
        watching.close()
        return _left(watching.accepted, thread, options.again(act_as, tenant), json)
    finally:
        watching.close()  # before an error is told, too
    if json:
        say_it.as_json(answer)
    else:
        _print(answer, options.again(act_as, tenant))
    return EXIT.get(answer["status"], 1)


def _left(accepted: Mapping[str, Any] | None, thread: str, own: str, json: bool) -> int:
    if accepted is None:
        what, details = "left before the server said whether it has the message", {"thread": thread}
        mend = f"see: ringfence events {shlex.quote(thread)}{own}"
    else:
        what, details = "the turn goes on without you", {name: accepted[name] for name in IDS}
        mend = f"cancel it: ringfence run cancel {accepted['run']}{own}"
    return say_it.error("interrupted", what, mend, details, json, INTERRUPTED)


def _print(answer: Mapping[str, Any], own: str) -> None:
    if answer["reply"]:
        say_it.line(say_it.prose(answer["reply"]))
    if answer["status"] == "completed":
        return
    for gate in answer["gates"]:
        for row in gate_command.lines(gate, own):
            say_it.note(row)
    say_it.note(f"ringfence: {say_it.plain(event_words.ending(answer['status'], answer['reason'], answer['why']))}")
    if answer["status"] == "rejected":
        say_it.note("  wait for the turn under way, or: --mode queue, --mode steer")
    elif answer["run"]:
        say_it.note(f"  see: ringfence run show {answer['run']}{say_it.plain(own)}")
