"""`ringfence db rebuild`: what is derived from events, derived again and compared with what the tables say.

Derived are: a thread's cursor (its newest event), messages (`message`, `reply`), and of turns the actor, the message,
the run, the reply, what they wait for (`run.parked`), and how they ended (`run.ended`). A turn that has not ended is in
the state of its run. Runs, steps and checkpoints are facts of their own: where one contradicts the events, it is told
and left alone. It must never change an event. Of a thread that was cut, only what was said from its first kept cursor
on can be derived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.runs import RUN_FINAL, RunState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.schema import cuts, events, messages, runs, threads, turns

_LIFE = (EventKind.RUN_QUEUED.value, EventKind.RUN_STARTED.value, EventKind.RUN_REDRIVEN.value)
_SAID = {EventKind.MESSAGE.value, EventKind.REPLY.value}
_FINAL = {state.value for state in RUN_FINAL}
_PAGE = 500
_MESSAGE = ("thread", "turn", "author", "author_name", "text", "cursor", "attachments", "steer")
_TURN = ("thread", "actor", "message", "state", "reason", "reply", "run")


@dataclass(frozen=True, slots=True)
class Difference:
    table: str  # threads, messages, turns; runs: told, never mended
    id: str
    column: str  # "" when the row is missing or has no event
    kept: Any  # what the table says
    derived: Any  # what the events say; None for a row that no event speaks of

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class _Told:
    """What the events of one thread say."""

    cursor: int
    messages: dict[str, dict[str, Any]]
    turns: dict[str, dict[str, Any]]


def compare(connection: Connection) -> list[Difference]:
    """One thread at a time, so memory holds the messages of one thread."""
    kept_from = {row.thread: row.kept_from for row in connection.execute(sa.select(cuts))}
    found: list[Difference] = []
    for thread in connection.execute(sa.select(threads.c.id, threads.c.cursor).order_by(threads.c.id)).all():
        told = _read(connection, thread.id)
        first = kept_from.get(thread.id, 1)
        newest = max(told.cursor, first - 1)
        if newest != thread.cursor:
            found.append(Difference("threads", thread.id, "cursor", thread.cursor, newest))
        found += _messages(connection, thread.id, first, told)
        found += _turns(connection, thread.id, first, told)
    return found


def _read(connection: Connection, thread: str) -> _Told:
    told = _Told(0, {}, {})
    query = sa.select(events).where(events.c.thread == thread).order_by(events.c.cursor)
    for event in connection.execute(query, execution_options={"yield_per": _PAGE}):
        told.cursor = event.cursor
        if event.kind in _SAID:
            told.messages[event.body["message"]] = _message(event)
        if event.turn is not None:
            _apply(told, event)
    return told


def _message(event: Row[Any]) -> dict[str, Any]:
    said = event.kind == EventKind.MESSAGE.value
    return {
        "thread": event.thread,
        "turn": event.turn,
        "author": event.actor if said else None,
        "author_name": event.body["author"],
        "text": event.body["text"],
        "cursor": event.cursor,
        "attachments": event.body.get("attachments"),
        "steer": bool(event.body.get("steer", False)),
        "created_at": event.created_at,
    }


def _apply(told: _Told, event: Row[Any]) -> None:
    """One event's part in what becomes of its turn."""
    if event.kind == EventKind.MESSAGE.value and not event.body.get("steer"):
        told.turns[event.turn] = {
            "thread": event.thread,
            "actor": event.actor,
            "message": event.body["message"],
            "state": None,  # that of its run
            "reason": "",
            "asked": "",  # what it was parked for last
            "reply": None,
            "run": None,
        }
        return
    turn = told.turns.get(event.turn)
    if turn is None:
        return  # its message was cut
    if event.kind in _LIFE:
        turn |= {"state": None, "reason": "", "reply": None, "run": event.run}
    elif event.kind == EventKind.RUN_PARKED.value:
        turn["asked"] = event.body["kind"]
    elif event.kind == EventKind.REPLY.value:
        turn["reply"] = event.body["text"]
    elif event.kind == EventKind.RUN_ENDED.value:
        turn |= {"state": event.body["state"], "reason": event.body["reason"], "run": event.run}


def _messages(connection: Connection, thread: str, first: int, told: _Told) -> Iterator[Difference]:
    there = sa.select(messages).where(messages.c.thread == thread, messages.c.cursor >= first)
    seen: set[str] = set()
    for row in connection.execute(there, execution_options={"yield_per": _PAGE}):
        seen.add(row.id)
        wanted = told.messages.get(row.id)
        if wanted is None:
            yield Difference("messages", row.id, "", row.cursor, None)
        else:
            yield from _columns("messages", row, wanted, _MESSAGE)
    for missing in told.messages.keys() - seen:
        yield Difference("messages", missing, "", None, told.messages[missing]["cursor"])


def _turns(connection: Connection, thread: str, first: int, told: _Told) -> Iterator[Difference]:
    state = sa.select(turns, runs.c.state.label("run_state")).outerjoin(runs, runs.c.id == turns.c.run)
    seen: set[str] = set()
    for row in connection.execute(state.where(turns.c.thread == thread)).all():
        seen.add(row.id)
        wanted = told.turns.get(row.id)
        if wanted is None:
            if first == 1:
                yield Difference("turns", row.id, "", row.state, None)
            continue
        if (wanted["state"] is None) == (row.run_state in _FINAL):
            yield Difference("runs", row.run or row.id, "state", row.run_state, wanted["state"] or "not ended")
        yield from _columns("turns", row, _now(wanted, row.run_state), _TURN)
    for missing in told.turns.keys() - seen:
        yield Difference("turns", missing, "", None, told.turns[missing]["message"])


def _now(wanted: dict[str, Any], run_state: str | None) -> dict[str, Any]:
    """The turn as it is when its run is in that state: one that waits for an answer says for which."""
    if wanted["state"] is not None:
        return wanted
    return {**wanted, "state": run_state, "reason": wanted["asked"] if run_state == RunState.PARKED.value else ""}


def _columns(table: str, row: Row[Any], wanted: dict[str, Any], columns: Sequence[str]) -> Iterator[Difference]:
    for column in columns:
        kept = row._mapping[column]
        if kept != wanted[column]:
            yield Difference(table, row.id, column, kept, wanted[column])


def mend(connection: Connection, found: Sequence[Difference]) -> None:
    """Writes what was derived. A turn whose row is missing is told only: its lane and times are in no event."""
    tables = {"threads": threads, "messages": messages, "turns": turns}
    for one in found:
        table = tables.get(one.table)
        if table is None or not one.column:
            continue
        connection.execute(sa.update(table).where(table.c.id == one.id).values({one.column: one.derived}))
    for one in found:
        if one.table == "messages" and not one.column and one.derived is not None:
            _insert_message(connection, one.id, int(one.derived))


def _insert_message(connection: Connection, message: str, cursor: int) -> None:
    of_it = sa.select(events).where(events.c.cursor == cursor, events.c.kind.in_(_SAID))
    for event in connection.execute(of_it).all():
        if event.body["message"] == message:
            connection.execute(sa.insert(messages).values(id=message, **_message(event)))
