"""I1 to I7 and I9 of the fault suite, over the database itself, the log of the outside world and what clients were told.

Reads with a connection of its own and shares no query with the product. `after` says what does not hold, in words: nothing
when all does. It is asked when everything is quiet: no run is at work, each is over or waits for a person.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.databases import is_postgres, outside
from tests.support.kill_scenarios import GHOST
from tests.support.oracle import EffectLog
from tests.support.receiver import SECRET

FINAL = ("completed", "failed", "cancelled")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Facts:
    """The rows that the invariants are about. Columns as `_QUERIES` names them."""

    threads: list[Row]
    events: list[Row]
    messages: list[Row]
    runs: list[Row]
    steps: list[Row]
    checkpoints: list[Row]
    effects: list[Row]
    gates: list[Row]
    answers: list[Row]
    intents: list[Row]


_QUERIES: Mapping[str, str] = {
    "threads": "SELECT id, cursor FROM threads",
    "events": "SELECT thread, cursor, kind, coalesce(run, '') FROM events ORDER BY thread, cursor",
    "messages": "SELECT id, thread, text, coalesce(author, '') FROM messages",
    "runs": "SELECT id, state, epoch, attempts, coalesce(worker, ''), cancel_requested FROM runs",
    "steps": "SELECT run, n, effect, state, coalesce(result, '') FROM steps",
    "checkpoints": "SELECT c.run, c.cursor, t.cursor, c.state FROM checkpoints c "
    "JOIN runs r ON r.id = c.run JOIN threads t ON t.id = r.thread",
    "effects": "SELECT run, n, key, state, tries, coalesce(gate, ''), CAST(arguments AS text) FROM effects",
    "gates": "SELECT id, run, n, kind, state, coalesce(answer, ''), CAST(arguments AS text) FROM gates",
    "answers": "SELECT gate, answer FROM gate_answers",
    "intents": "SELECT subject, details FROM audit_rows WHERE lane = 'intent' AND ref IS NULL",
}


def read(folder: Path) -> Facts:
    """One question each."""
    return Facts(**{name: _asked(folder, query) for name, query in _QUERIES.items()})


def _asked(folder: Path, query: str) -> list[Row]:
    """PostgreSQL's rows come as one line of JSON: a text may hold whatever separates rows and columns there."""
    if not is_postgres(folder):
        return outside(folder, query)
    columns = "abcdefg"[: len(query.split(" FROM ")[0].replace(", '')", "")[7:].split(","))]
    as_json = f"SELECT coalesce(jsonb_agg(to_jsonb(q)), '[]') FROM ({query}) AS q({','.join(columns)})"
    [[text]] = outside(folder, as_json)
    return [tuple(row.values()) for row in json.loads(str(text))]


def after(folder: Path, log: EffectLog, acks: Sequence[Mapping[str, Any]], asks: bool = False) -> list[str]:
    """`acks`: what clients and executors were told, with what they hold of it. `asks`: nothing may go out unasked."""
    facts = read(folder)
    return [
        *_acked(facts, acks),
        *_gapless(facts),
        *_ended_once(facts),
        *_effects(facts, log),
        *_fenced(facts),
        *_checkpoints(facts),
        *_secrets(folder),
        *_approvals(facts, log, asks),
    ]


def _acked(facts: Facts, acks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    messages, runs = {row[0] for row in facts.messages}, {row[0]: row for row in facts.runs}
    gates, answers = {row[0]: row for row in facts.gates}, set(facts.answers)
    results = {row[0]: row[4] for row in facts.steps}
    for ack in acks:
        body = ack.get("body", {})
        if "message" in body and (body["message"] not in messages or body["run"] not in runs):
            yield f"I1: acknowledged, and not there: {body}"
        if "gate" in body and (
            gates[body["gate"]][5] != body["answer"] or (body["gate"], body["answer"]) not in answers
        ):
            yield f"I1: an answer that was acknowledged is another one: {body}"
        if str(ack.get("path", "")).endswith("/cancel") and (wrong := _cancelled(runs[body["run"]], body["state"])):
            yield f"I1: a cancel that was acknowledged as {body['state']} is forgotten: {wrong}"
        if "step" in ack and json.loads(results.get(ack["step"]) or "null") != ack["result"]:
            yield f"I1: the step of {ack['step']} was {ack['result']} when it was acknowledged, and is {results}"


def _cancelled(run: Row, said: str) -> Row | None:
    """The run as it is, unless it is as was said: over, and if it was not then, cancelled since or ended by its loop
    meanwhile."""
    _, state, _, _, _, asked = run
    kept = state == said if said in FINAL else asked and state in ("cancelled", "completed")
    return None if kept else run


def _gapless(facts: Facts) -> Iterator[str]:
    seen: dict[str, list[int]] = {row[0]: [] for row in facts.threads}
    for thread, cursor, *_ in facts.events:
        seen[thread].append(cursor)
    for thread, newest in facts.threads:
        if seen[thread] != list(range(1, newest + 1)):
            yield f"I2: thread {thread} is at {newest} and has the events {seen[thread]}"
    for one, count in Counter((thread, text) for _, thread, text, author in facts.messages if author).items():
        if count > 1:  # nobody says the same twice in a thread but under the same key
            yield f"I2: the message {one} of one key is there {count} times"


def _ended_once(facts: Facts) -> Iterator[str]:
    ends = [row[3] for row in facts.events if row[2] == "run.ended"]
    open_gates = {row[1] for row in facts.gates if row[4] == "open"}
    for run, state, epoch, attempts, worker, _ in facts.runs:
        if ends.count(run) != (state in FINAL):
            yield f"I3: run {run} is {state} and has {ends.count(run)} ends"
        if state == "parked" and run not in open_gates:
            yield f"I3: run {run} is parked at no gate"
        if state in ("running", "queued"):
            yield f"I3: run {run} is {state} when all is quiet"
        if (worker and state != "running") or epoch < attempts:
            yield f"I3: run {run} is {state}, worker {worker}, epoch {epoch}, attempts {attempts}"
    for run, n, _, state, _ in facts.steps:
        if state == "begun" and {row[0]: row[1] for row in facts.runs}[run] in FINAL:
            yield f"I3: step {n} of {run} is under way, the run is over"


def _effects(facts: Facts, log: EffectLog) -> Iterator[str]:
    kinds = {(row[0], row[1]): row[2] for row in facts.steps}
    decided = {(row[1], row[2]): row[5] for row in facts.gates if row[3] == "in_doubt" and row[5]}
    carried, arrived = log.counted("carried"), log.counted("arrived")
    ledger = {row[2]: row for row in facts.effects}
    for key in arrived:
        if key not in ledger:
            yield f"I4: {key} went out and is in no ledger"
    for run, n, key, state, tries, *_ in facts.effects:
        by_hand = decided.get((run, n), "")
        if kinds[run, n] == "once" and carried[key] > 1 + (by_hand == "again"):
            yield f"I4: {key} was carried out {carried[key]} times"
        if arrived[key] > tries:
            yield f"I4: {key} arrived {arrived[key]} times, the ledger knows {tries}"
        if not by_hand and (state == "done") != (carried[key] > 0) and state in ("done", "not_done"):
            yield f"I4: {key} is {state} and was carried out {carried[key]} times"
        if state in ("intended", "sent") and {row[0]: row[1] for row in facts.runs}[run] in FINAL:
            yield f"I4: {key} is {state}, its run is over"


def _fenced(facts: Facts) -> Iterator[str]:
    written = [("a step", row[0], row[4]) for row in facts.steps]
    written += [("a checkpoint", row[0], row[3]) for row in facts.checkpoints]
    written += [("an effect", row[0], row[6]) for row in facts.effects]
    written += [("a gate", row[1], row[6]) for row in facts.gates]
    written += [("a message", row[1], row[2]) for row in facts.messages]
    for what, where, text in written:
        if GHOST in text:
            yield f"I5: whoever had lost {where} has written {what} into it"


def _checkpoints(facts: Facts) -> Iterator[str]:
    for run, cursor, newest, _ in facts.checkpoints:
        if cursor > newest:
            yield f"I6: the checkpoint of {run} knows event {cursor} of {newest}"


def _secrets(folder: Path) -> Iterator[str]:
    if is_postgres(folder):
        return  # its files hold more than this database; SQLite's have the same rows
    for file in folder.glob("ringfence.db*"):
        text = file.read_bytes()
        for canary in (SECRET, b"canary-query"):
            if canary in text:
                yield f"I7: {canary!r} is in {file.name}"


def _approvals(facts: Facts, log: EffectLog, asks: bool) -> Iterator[str]:
    used = [row[5] for row in facts.effects if row[5]]
    gates = {row[0]: row for row in facts.gates}
    for gate in used:
        if used.count(gate) > 1 or gates[gate][4] != "used":
            yield f"I9: gate {gate} was used {used.count(gate)} times and is {gates[gate][4]}"
    for gate, _, _, kind, state, answer, _ in facts.gates:
        if state == "used" and not answer:
            yield f"I9: gate {gate} ({kind}) is used and nobody has answered"
        if kind == "approval" and state == "used" and gate not in used:
            yield f"I9: gate {gate} is used by no intent"
    approved = {row[2] for row in facts.effects if row[5]}
    if asks and (unasked := set(log.counted("arrived")) - approved):
        yield f"I9: without an approval went out {unasked}"
    intents = [json.loads(row[1])["key"] for row in facts.intents]
    if missing := set(log.counted("arrived")) - set(intents):
        yield f"I9: the audit has no intent of {missing}"
