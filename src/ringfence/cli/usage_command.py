"""`ringfence usage`: what boxes used, day by day, as a table, as JSON, or as CSV for a spreadsheet."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import DEFAULT_TENANT, As, Json
from ringfence.client.client import Client
from ringfence.client.errors import Invalid

COLUMNS = (
    "day",
    "user",
    "tenant",
    "active_seconds",
    "running_seconds",
    "cpu_seconds",
    "memory_gib_hours",
    "disk_gib_hours",
    "egress_up_bytes",
    "egress_down_bytes",
    "model_tokens",
    "starts",
    "pauses",
)
# A spreadsheet takes a cell that begins so for a formula, also behind blanks of a kind (OWASP: CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def usage(
    user: Annotated[str | None, typer.Argument(metavar="[U]", help="The user; without: everybody (operators).")] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="Of UTC: 2026-01-31.")] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="Included. Default: the last 30 days.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    act_as: As = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="T", help="The tenant.")] = DEFAULT_TENANT,
    json: Json = False,
) -> None:
    """Show what a box used, day by day: time at work, CPU, memory, disk, bytes that went out, tokens of models."""
    if as_csv and json:
        raise Invalid("usage", "--csv and --json are two forms of one answer", "leave one of them out")
    _check(first, last)

    async def work(client: Client) -> dict[str, Any]:
        if user is None:
            return await client.tenant_usage(first=first, last=last)
        return await client.usage(user, first=first, last=last)

    answer = call(work, tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(answer)
    elif as_csv:
        sys.stdout.write(csv_of(answer["rows"]))
    else:
        _table(answer)


def _check(first: str | None, last: str | None) -> None:
    found = [_day(option, given) for option, given in (("--from", first), ("--to", last)) if given is not None]
    if len(found) == 2 and found[0] > found[1]:
        raise Invalid("usage", f"--from {first} is after --to {last}", "exchange the two")


def _day(option: str, given: str) -> date:
    try:
        if len(given) == 10:
            return date.fromisoformat(given)
    except ValueError:
        pass
    raise Invalid("usage", f"{option} {given!r} is no day", f"for example {option} 2026-01-31")


def csv_of(rows: Sequence[dict[str, Any]]) -> str:
    """RFC 4180, with a line of titles. No cell is a formula, whatever a user is called."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in COLUMNS])
    return out.getvalue()


def _cell(value: object) -> object:
    """Numbers are ours, and none is below 0."""
    if isinstance(value, str) and value.lstrip(" \u00a0").startswith(_FORMULA):
        return "'" + value
    return value


def _table(answer: dict[str, Any]) -> None:
    titles = (
        "DAY",
        "USER",
        "ACTIVE",
        "RUNNING",
        "CPU",
        "MEM GiBh",
        "DISK GiBh",
        "UP",
        "DOWN",
        "TOKENS",
        "STARTS",
        "PAUSES",
    )
    say_it.table(titles, [_line(row) for row in [*answer["rows"], {**answer["sum"], "day": "sum"}]])
    say_it.note(f"days of UTC from {answer['first']} to {answer['last']}; times in seconds")


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    times = [f"{row[name]:.1f}" for name in ("active_seconds", "running_seconds", "cpu_seconds")]
    stored = [f"{row[name]:.3f}" for name in ("memory_gib_hours", "disk_gib_hours")]
    bytes_ = [say_it.size(row[name]) for name in ("egress_up_bytes", "egress_down_bytes")]
    return (row["day"], row["user"], *times, *stored, *bytes_, row["model_tokens"], row["starts"], row["pauses"])
