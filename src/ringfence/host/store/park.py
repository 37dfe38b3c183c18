"""A run that waits for an answer, and one that has it: parked, and back in the queue. Write functions only.

A parked run has no lease, no token and no attempt counted against it: it did not break down, it asked.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.engine import Row

from ringfence.host.kernel.runs import LEASE_SECONDS, RunState
from ringfence.host.store.places import offer
from ringfence.host.store.run_rows import change_run, change_turn
from ringfence.host.store.transaction import Tx

ANSWERED = "answered"  # why a run is queued whose gate was answered or has run out


def park_run(tx: Tx, row: Row[Any], reason: str) -> Row[Any]:
    """`row`: of a running run, fenced."""
    parked = change_run(
        tx,
        row.id,
        state=RunState.PARKED.value,
        reason=reason,
        attempts=0,
        worker=None,
        lease_until=None,
        not_before=None,
        token_hash="",
        worked=worked(tx, row),
    )
    change_turn(tx, row, state=RunState.PARKED.value, reason=reason)
    return parked


def unpark_run(tx: Tx, row: Row[Any]) -> None:
    """Nothing for a run that is not parked: it may have ended meanwhile. Whoever may claim it is told: it may have been
    answered, or have run out of time, at another kernel."""
    if row.state == RunState.PARKED.value:
        change_run(tx, row.id, state=RunState.QUEUED.value, reason=ANSWERED)
        change_turn(tx, row, state=RunState.QUEUED.value, reason="")
        offer(tx, row.lane)


def hold_run(tx: Tx, row: Row[Any], reason: str) -> Row[Any]:
    """Back into the queue though nothing went wrong with it: it waits for its box or its user. The attempt is not counted.
    `row`: of a running run, fenced."""
    held = change_run(
        tx,
        row.id,
        state=RunState.QUEUED.value,
        reason=reason,
        attempts=max(row.attempts - 1, 0),
        worker=None,
        lease_until=None,
        token_hash="",
        worked=worked(tx, row),
    )
    change_turn(tx, row, state=RunState.QUEUED.value)
    return held


def worked(tx: Tx, row: Row[Any]) -> float:
    return worked_by(row, tx.lease_now())


def worked_by(row: Row[Any], now: datetime) -> float:
    """Seconds, when the lease ends now. After the lease's own end nobody can have worked under it."""
    before: float = row.worked
    if row.lease_until is None:
        return before
    left: float = (row.lease_until - now).total_seconds()
    return before + min(max(LEASE_SECONDS - left, 0.0), LEASE_SECONDS)
