"""`ringfence sweep`: what the server has left behind on its host, found and taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import Json
from ringfence.client.errors import Invalid

TITLES = ("ACTION", "KIND", "BOX", "OWNER", "SIZE", "WHAT", "WHY")


def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what there is; take nothing away.")] = False,
    boxes: Annotated[
        str | None,
        typer.Option("--boxes", metavar="ID,...", help="Also these boxes without an owner, with all that is in them."),
    ] = None,
    json: Json = False,
) -> int:
    """Take away what is left of boxes that are no more (operators). The server does so at its start and every hour, but
    for boxes that its database does not know. Exit 1 when something could not be taken away."""
    named = [each for each in (boxes or "").split(",") if each]
    if boxes is not None and not named:
        raise Invalid("usage", "--boxes names no box", "ringfence sweep --dry-run shows those without an owner")
    report = call(lambda client: client.sweep(dry_run=dry_run, boxes=named))
    if json:
        say_it.as_json(report)
    else:
        _say(report)
    return 1 if any(each["action"] == "failed" for each in report["found"]) else 0


def _say(report: Mapping[str, Any]) -> None:
    found = report["found"]
    if found:
        say_it.table(TITLES, [_row(each) for each in found])
    counted = {name: sum(each["action"] == name for each in found) for name in ("removed", "reported", "failed")}
    say_it.line(", ".join(f"{number} {name}" for name, number in counted.items()))
    if strays := [each["box"] for each in found if each["kind"] == "box" and each["action"] == "reported"]:
        say_it.note(f"to delete boxes without an owner: ringfence sweep --boxes {','.join(strays[:20])}")


def _row(each: Mapping[str, Any]) -> tuple[object, ...]:
    why = each["error"] or each["why"]
    return each["action"], each["kind"], each["box"], each["owner"], say_it.size(each["bytes"]), each["what"], why
