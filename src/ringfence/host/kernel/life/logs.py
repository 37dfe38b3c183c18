"""What a box's log says, line by line, and the port behind which the lines are kept.

A line is told by the host (`life`, `limit`), by the box's PID 1 (`guest`: hostile text), or is a row of the audit (`audit`, `egress`,
`limit`). The two first kinds are kept apart: a box that writes without end loses its own older lines, and none of the host's. Pure
but for the port.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from ringfence.host.kernel.ids import BoxId

MAX_TEXT = 2000  # characters of a line; PID 1 says no more at once either
CUT = " …"


class Source(StrEnum):
    LIFE = "life"  # started, ended, at rest, and why
    LIMIT = "limit"  # memory, disk
    EGRESS = "egress"  # its way out
    GUEST = "guest"  # what its PID 1 wrote to stderr
    AUDIT = "audit"  # who asked for what, rules that were broken


@dataclass(frozen=True, slots=True)
class LogLine:
    id: str  # no two of a box have the same
    at: datetime
    source: Source
    text: str  # one line of printable characters


@dataclass(frozen=True, slots=True)
class Said:
    """By the PID 1 of a box, since it was asked last: the first of it, the last of it, and how many bytes went between."""

    box: BoxId
    head: str
    tail: str
    dropped: int = 0


class BoxLogs(Protocol):
    def tell(self, box: BoxId, source: Source, text: str) -> None:
        """Kept soon after. Never waits, never fails; what it cannot take, as on a full disk, is counted and said later."""

    async def read(self, box: BoxId, since: datetime | None) -> list[LogLine]:
        """What is kept of it, of that moment or later, oldest first. Failed."""

    async def forget(self, box: BoxId) -> None:
        """The box is removed. Never raises."""


class Quiet:
    """Keeps nothing."""

    def tell(self, box: BoxId, source: Source, text: str) -> None:
        pass

    async def read(self, box: BoxId, since: datetime | None) -> list[LogLine]:
        return []

    async def forget(self, box: BoxId) -> None:
        pass


def cleaned(text: str) -> str:
    """On one line, cut to MAX_TEXT, without characters that do something to who shows them."""
    shown = "".join(char if char.isprintable() else " " for char in text[: MAX_TEXT + 1]).strip()
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - len(CUT)] + CUT


def said_lines(said: Said) -> list[str]:
    if not said.dropped:
        return [line for line in (said.head + said.tail).splitlines() if line.strip()]
    between = f"({said.dropped} bytes of what it said are left out)"
    return [line for line in (*said.head.splitlines(), between, *said.tail.splitlines()) if line.strip()]


def as_json(line: LogLine) -> str:
    return json.dumps({"at": line.at.isoformat(), "source": line.source.value, "text": line.text})


def parsed(raw: bytes) -> LogLine | None:
    """None: no line of ours, as the last one of a server that was killed while it wrote."""
    try:
        found = json.loads(raw)
        at = datetime.fromisoformat(found["at"])
        line = LogLine(found["at"], at, Source(found["source"]), str(found["text"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return line if at.tzinfo is not None else None


def of_audit(row: Mapping[str, Any]) -> LogLine:
    """A row of the audit (AuditRow.as_json)."""
    actor: Mapping[str, Any] = row["actor"] or {}
    who = "an operator" if actor.get("operator") else actor.get("user") or ""
    told = " ".join(f"{name}={value}" for name, value in row["details"].items() if isinstance(value, str | int | float))
    action, at = str(row["action"]), datetime.fromisoformat(str(row["at"]).replace("Z", "+00:00"))
    text = " ".join(part for part in (action, f"by {who}" if who else "", told) if part)
    return LogLine(str(row["id"]), at, _source_of(action), cleaned(text))


def _source_of(action: str) -> Source:
    if action == "box.disk_full":
        return Source.LIMIT
    return Source.EGRESS if action.startswith("egress.") else Source.AUDIT


def newest(lines: Sequence[LogLine], most: int) -> tuple[list[LogLine], bool]:
    """(the `most` newest, oldest first; whether others were left out). Where there is not room for all, half of it is the host's: a box
    that talks without end hides nothing that was told of it."""
    ordered = sorted(lines, key=lambda line: (line.at, line.id))
    said = [line for line in ordered if line.source is Source.GUEST]
    told = [line for line in ordered if line.source is not Source.GUEST]
    kept = told[-max(most - len(said), (most + 1) // 2) :]
    kept += said[len(said) - min(len(said), most - len(kept)) :]
    return sorted(kept, key=lambda line: (line.at, line.id)), len(ordered) > most
