"""How a run ends, and how an ended one is tried again. Write functions only; runs.py has the door.

A run that ended cannot lose what was said to it: a steer joins a turn only while its run is not final (steers.py), and
`end_run` with `seen` refuses to end a run before its loop has taken up every steer. Both lock the run's row first.
What an end makes known of effects is told to the audit's chain in the same transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ringfence.host.kernel.errors import Conflict, Steered
from ringfence.host.kernel.ids import MessageId, RunId
from ringfence.host.kernel.runs import REASONS, RUN_FINAL, RunState, cut_short, redrivable
from ringfence.host.kernel.threads import EventKind, Message
from ringfence.host.store.abandoned import is_abandoned
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.blob_rows import drop_blobs
from ringfence.host.store.effect_ends import Judge, close_effects, use_answers
from ringfence.host.store.events import Draft, append
from ringfence.host.store.gates import close_gates
from ringfence.host.store.messages import add_message, next_steer
from ringfence.host.store.park import worked
from ringfence.host.store.places import offer
from ringfence.host.store.run_rows import change_run, change_turn, check_fence, locked_run, run_of
from ringfence.host.store.schema import turns, users
from ringfence.host.store.steps import cut_steps
from ringfence.host.store.transaction import Tx

AGENT = "agent"  # the author's name in the agent's replies
BY_HAND = "redriven by hand"
_WAITING = (RunState.QUEUED.value, RunState.PARKED.value)

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_REPLY = sa.select(turns.c.reply).where(turns.c.id == sa.bindparam("which"))
_GONE = sa.select(users.c.removed_at).where(users.c.id == sa.bindparam("which"))


@dataclass(frozen=True, slots=True)
class Ending:
    state: RunState  # final
    reason: str
    reply: str | None = None
    judge: Judge | None = None  # of answers that nothing has used yet; None: they are not looked at


def end_run(tx: Tx, chain: Chain, run: RunId, epoch: int, ending: Ending, seen: int | None) -> Row[Any]:
    row = locked_run(tx, run)
    if row.epoch == epoch and row.state in RUN_FINAL:
        kept = tx.connection.execute(_REPLY, {"which": row.turn}).scalar_one()
        if row.state == ending.state and kept == ending.reply:
            return row
        raise Conflict(f"run {run} has ended already: {row.state}", state=row.state)
    check_fence(row, epoch)
    if seen is not None:
        said = next_steer(tx.connection, row.turn, seen)
        if said is not None:
            raise Steered(f"more was said to the turn of run {run}", cursor=said)
    return _finish(tx, chain, row, _as_gone(tx, row, ending))


def _as_gone(tx: Tx, row: Row[Any], ending: Ending) -> Ending:
    """Whoever cancels a run of a removed user knows only that it is to end."""
    if ending.state is RunState.CANCELLED and _gone(tx, row):
        return replace(ending, reason="user_removed")
    return ending


def _gone(tx: Tx, row: Row[Any]) -> bool:
    """Whether the user of a run was removed."""
    return tx.connection.execute(_GONE, {"which": row.actor}).scalar_one() is not None


def _finish(tx: Tx, chain: Chain, row: Row[Any], ending: Ending) -> Row[Any]:
    """Run, turn, steps, gates, effects, reply and events, whatever state the run was in."""
    now, state, reason = tx.now(), ending.state.value, ending.reason
    ended = change_run(
        tx,
        row.id,
        state=state,
        reason=reason,
        worker=None,
        lease_until=None,
        not_before=None,
        worked=worked(tx, row),
        ended_at=now,
    )
    change_turn(tx, row, state=state, reason=reason, reply=ending.reply, ended_at=now)
    if redrivable(run_of(ended)):
        drop_blobs(tx, row.id)
    if ending.judge is not None:
        use_answers(tx, chain, row, ending.judge)
    close_gates(tx, row, f"its run ended: {REASONS.get(reason) or reason or state}")
    cut_steps(tx, row, cut_short(ending.state, reason), close_effects(tx, chain, row))
    offer(tx, row.lane)
    body = {"state": state, "reason": reason, "message": REASONS.get(reason, "")}
    last = Draft(EventKind.RUN_ENDED, body, row.actor, row.turn, row.id)
    if ending.reply is None:
        append(tx, row.thread, last)
    else:
        _reply(tx, row, ending.reply, last)
    return ended


def _reply(tx: Tx, row: Row[Any], text: str, last: Draft) -> None:
    message = MessageId(tx.new_id("msg"))
    body = {"author": AGENT, "text": text, "message": message}
    said, _ = append(tx, row.thread, Draft(EventKind.REPLY, body, row.actor, row.turn, row.id), last)
    add_message(tx, Message(message, row.thread, row.turn, None, AGENT, text, said.cursor, tx.now()))


def cancel_run(tx: Tx, chain: Chain, row: Row[Any], ending: Ending) -> Row[Any]:
    """A waiting run ends, a running one is asked to, a final one stays. A running one whose server is gone ends too, under
    an epoch that keeps the server out when it is back; what had been sent for it, nobody else can ask after."""
    if row.state in RUN_FINAL:
        return row
    if row.state in _WAITING:
        return _finish(tx, chain, change_run(tx, row.id, cancel_requested=True), ending)
    if is_abandoned(tx, row):
        taken = change_run(tx, row.id, cancel_requested=True, epoch=row.epoch + 1)
        return _finish(tx, chain, taken, _as_gone(tx, row, replace(ending, judge=None)))
    return row if row.cancel_requested else change_run(tx, row.id, cancel_requested=True)


def reopen_run(tx: Tx, run: RunId) -> Row[Any]:
    row = locked_run(tx, run)
    why_not = redrivable(run_of(row))
    if not why_not and _gone(tx, row):
        why_not = REASONS["user_removed"]
    if why_not:
        raise Conflict(f"run {run} is not tried again: {why_not}", state=row.state, reason=row.reason)
    queued = change_run(
        tx,
        run,
        state=RunState.QUEUED.value,
        reason="",
        attempts=0,
        worked=0.0,
        not_before=None,
        token_hash="",
        cancel_requested=False,
        ended_at=None,
    )
    change_turn(tx, row, state=RunState.QUEUED.value, reason="", reply=None, ended_at=None)
    append(tx, row.thread, Draft(EventKind.RUN_QUEUED, {"reason": BY_HAND}, row.actor, row.turn, run))
    offer(tx, row.lane)
    return queued
