"""What the `db` verbs say: facts of database.py as text or JSON, with the exit code. Prints nothing itself. `audit` gives
facts alone: a server's answer is shown in the same words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringfence.host.install import database
from ringfence.host.install.commands import Answer, failure
from ringfence.host.kernel.errors import RingfenceError

MOST_SHOWN = 100  # lines of findings or differences; --json has all

Facts = dict[str, Any]


def upgrade(environment: Mapping[str, str], db: str | None, *, contract: bool, as_json: bool) -> Answer:
    """JSON: `{"schema", "newest", "to_contract", "generation"}`."""

    def work() -> Facts:
        place = database.find(environment, db)
        with database.alone(place, must=False) as held:
            return database.work(place, "upgrade", {"contract": contract}, held=held)

    def lines(facts: Facts) -> list[str]:
        waiting = ", ".join(facts["to_contract"])
        said = [f"schema      {facts['schema']} (this release knows up to {facts['newest']})"]
        return [*said, f"to contract {waiting}: ringfence db upgrade --contract"] if waiting else said

    return _answered(work, lines, as_json=as_json)


def check(environment: Mapping[str, str], db: str | None, *, as_json: bool) -> Answer:
    """JSON: `{"ok", "schema", "newest", "to_contract", "generation", "findings": [{"rule", "id", "says"}],
    "notes": [text]}`. A note is no finding: what cannot be looked at here, or was done before."""

    def work() -> Facts:
        return database.work(database.find(environment, db), "check", {}, held=False)

    def lines(facts: Facts) -> list[str]:
        found = facts["findings"]
        notes = _notes(facts)
        if not found:
            return [*notes, f"whole: schema {facts['schema']}, generation {facts['generation']}"]
        shown = [f"{one['rule']}: {one['id']}: {one['says']}" for one in found[:MOST_SHOWN]]
        return [*notes, *shown, f"{len(found)} findings; a backup that is whole: ringfence db restore FILE"]

    return _answered(work, lines, as_json=as_json)


def backup(environment: Mapping[str, str], db: str | None, target: str, *, as_json: bool) -> Answer:
    """JSON: `{"file", "size_bytes", "made_at", "release", "schema", "floor", "generation", "installation", "dialect",
    "audit": [[chain, seq, hash]], "rows", "sha256"}`."""

    def lines(facts: Facts) -> list[str]:
        return [
            f"file        {facts['file']} ({facts['size_bytes']} bytes, {facts['rows']} rows)",
            f"schema      {facts['schema']}, generation {facts['generation']}",
            f"sha256      {facts['sha256']} of what is packed in it",
            "            keep vault/ and installation.json with it: it is put back into this installation only",
        ]

    return _answered(lambda: database.make_backup(database.find(environment, db), Path(target)), lines, as_json=as_json)


def restore(environment: Mapping[str, str], db: str | None, source: str, *, anyway: bool, as_json: bool) -> Answer:
    """JSON: `{"generation", "rows", "runs_to_redrive", "replaced", "findings", "notes", "backup"}`."""

    def lines(facts: Facts) -> list[str]:
        made = facts["backup"]
        return [
            f"restored    {facts['rows']} rows of {made['made_at']}: generation {facts['generation']}",
            f"replaced    {facts['replaced'] or 'nothing: there was no database'}",
            f"runs        {facts['runs_to_redrive']} were at work and are decided anew when the server starts",
            "            tokens, members and users are those of then: revoke again what was revoked since",
            *_notes(facts),
        ]

    return _answered(
        lambda: database.put_back(database.find(environment, db), Path(source), anyway=anyway), lines, as_json=as_json
    )


def rebuild(environment: Mapping[str, str], db: str | None, *, dry_run: bool, as_json: bool) -> Answer:
    """JSON: `{"ok", "written", "differences": [{"table", "id", "column", "kept", "derived"}]}`; `ok` = there was none."""

    def work() -> Facts:
        place = database.find(environment, db)
        with database.alone(place, must=not dry_run) as held:
            return database.work(place, "rebuild", {"dry_run": dry_run}, held=held)

    def lines(facts: Facts) -> list[str]:
        found = facts["differences"]
        if not found:
            return ["what is derived from the events is as they say"]
        shown = [
            f"{one['table']} {one['id']} {one['column'] or 'row'}: {one['kept']!r:.80}, by the events {one['derived']!r:.80}"
            for one in found[:MOST_SHOWN]
        ]
        return [
            *shown,
            f"{len(found)} differences, {'written as the events say' if facts['written'] else 'not written'}",
        ]

    return _answered(work, lines, as_json=as_json)


def audit(environment: Mapping[str, str], db: str | None, wish: Mapping[str, Any]) -> Facts:
    """The answer of `app.read_audit`, or `{"error": {"code", "message", "remedy", "details"}, "status": HTTP status}`."""
    try:
        return database.audit(environment, db, wish)
    except RingfenceError as error:
        return {"error": error.as_json(), "status": error.http_status}


def _notes(facts: Facts) -> list[str]:
    return [f"note: {text}" for text in facts.get("notes", [])]


def _answered(work: Callable[[], Facts], lines: Callable[[Facts], list[str]], *, as_json: bool) -> Answer:
    try:
        facts = work()
    except RingfenceError as error:
        return failure(error, as_json=as_json)
    code = 0 if facts.get("ok", True) else 1
    return Answer(code, json.dumps(facts) + "\n" if as_json else "\n".join([*lines(facts), ""]))
