"""`ringfence audit verify` and `ls`: through the running server, else on the stopped store (as its owner), or on a database
that is named."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from ringfence.cli import checks, say_it
from ringfence.cli.calls import call
from ringfence.cli.options import Database, Json
from ringfence.client.client import Client
from ringfence.client.errors import ApiError, Invalid, Unavailable, from_answer

audit = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The record of what was done and released.")
LANES = ("act", "release", "intent", "chain", "traffic")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@audit.command("verify")
def verify(url: Database = None, json: Json = False) -> int:
    """Walk every chain; exit 1 when a row was changed, taken out, put in or moved, with the first bad row of each chain;
    also when chains of other installations cannot be checked."""
    report = _asked(lambda client: client.audit_verify(), {"verb": "verify"}, url)
    if json:
        say_it.as_json(report)
    else:
        for note in report["notes"]:
            say_it.line(f"note: {say_it.plain(note)}")
        for finding in report["findings"]:
            where = f"row {finding['chain']}:{finding['seq']}" if finding["seq"] else f"chain {finding['chain']}"
            say_it.line(say_it.plain(f"BAD {where}: {finding['wrong']}: {finding['what']}"))
        for one in report["unchecked"]:
            say_it.line(say_it.plain(f"unchecked: {one['says']}"))
        say_it.line(f"{report['rows']} rows in {report['chains']} chains: {_state(report)}")
    return 0 if report["ok"] else 1


def _state(report: dict[str, Any]) -> str:
    broken, unchecked = len(report["findings"]), sum(one["chains"] for one in report["unchecked"])
    said = [f"{broken} of them BROKEN"] if broken else []
    if unchecked:
        said.append(f"{unchecked} of them unchecked" + ("" if broken else ", the others whole"))
    return ", ".join(said) or "whole"


@audit.command("ls")
def ls(
    lane: Annotated[str | None, typer.Option(metavar="L", help=f"One of {', '.join(LANES)}.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="T", help="ISO 8601 (UTC without a zone), or an age: 30m, 12h, 7d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=checks.MAX_PAGE, metavar="N", help="At most so many rows.")] = 100,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only rows older than this one.")] = None,
    url: Database = None,
    json: Json = False,
) -> None:
    """List what was recorded, newest first. `traffic` is in the server's memory only, and no evidence."""
    if lane is not None:
        checks.one_of("--lane", lane, LANES)
    if lane == "traffic":
        given = {"--since": since, "--before": before, "--db": url}
        if wrong := [option for option, value in given.items() if value is not None]:
            raise Invalid("usage", f"{wrong[0]} does not go with --lane traffic", "ringfence audit ls --lane traffic")
        _traffic(limit, json)
        return
    moment = _moment(since) if since is not None else None
    wish = {"lane": lane, "since": moment, "before": before, "limit": limit}
    rows = _asked(lambda client: _rows(client, wish), {"verb": "ls", **wish}, url)["rows"]
    if json:
        say_it.as_json({"rows": rows})
    else:
        titles = ("AT", "ID", "LANE", "WHO", "ACTION", "SUBJECT")
        say_it.table(
            titles, [(row["at"], row["id"], row["lane"], _who(row), _what(row), row["subject"]) for row in rows]
        )


def _traffic(limit: int, json: bool) -> None:
    seen = call(lambda client: client.audit_traffic(limit=limit))
    if json:
        say_it.as_json(seen)
        return
    names = ("at", "box", "host", "verdict", "sent", "received")
    say_it.table([name.upper() for name in names], [[each[name] for name in names] for each in seen["newest"]])
    say_it.note(f"no evidence: {seen['dropped']} older entries are forgotten")


async def _rows(client: Client, wish: dict[str, Any]) -> dict[str, Any]:
    return {"rows": await client.audit(**wish)}


def _asked(
    work: Callable[[Client], Awaitable[dict[str, Any]]], wish: dict[str, Any], url: str | None
) -> dict[str, Any]:
    """The server's answer; that of the store itself where none runs and none was named, or where the store is named."""
    if url is not None:
        return _own(wish, url)
    try:
        return call(work)
    except Unavailable as error:
        if os.environ.get("RINGFENCE_URL") or error.code != "unavailable":
            raise
        return _own(wish, None, error)


def _own(wish: dict[str, Any], url: str | None, unreachable: ApiError | None = None) -> dict[str, Any]:
    from ringfence.host.install import db_commands

    answer = db_commands.audit(os.environ, url, wish)
    if "error" in answer:
        if unreachable is not None and "pid" in answer["error"]["details"]:  # a server runs, not for this account
            raise unreachable
        raise from_answer(answer, answer["status"])
    return answer


def _moment(given: str) -> str:
    """ISO 8601, of a time or an age."""
    number, unit = given[:-1], given[-1:]
    if unit in _UNITS and number.isascii() and number.isdigit() and len(number) < 8:
        return _ago(timedelta(seconds=int(number) * _UNITS[unit])).isoformat()
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        what = f"--since {given!r} is no time and no age"
        raise Invalid("usage", what, "for example --since 2026-01-31T12:00 or --since 12h") from None
    return moment.isoformat() if moment.tzinfo is not None else moment.isoformat() + "+00:00"


def _ago(age: timedelta) -> datetime:
    """An age that no calendar reaches back to: the first day of all."""
    now = datetime.now().astimezone()  # noqa: TID251
    first = datetime.min.replace(tzinfo=UTC)
    return now - age if age < now - first else first


def _who(row: dict[str, Any]) -> str:
    actor = row["actor"]
    if actor is None:
        return "the server"
    name = actor["name"] or actor["via"]
    return f"{actor['via']} as {name}" if actor["impersonated"] else str(name)


def _what(row: dict[str, Any]) -> str:
    """The action, with the verb where one permission is for several; of an outcome what it was, and of which intent."""
    if row["ref"]:
        return f"{row['details'].get('outcome')} of {row['ref']}"
    return " ".join(str(word) for word in (row["action"], row["details"].get("verb")) if word)
