"""The journal of a run: each step's begin before it happens, its first end, and the newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.effects import EffectState, with_effect
from ringfence.host.kernel.errors import Conflict, Diverged, NotFound, StepGap
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Checkpoint, Effect, Step, StepState
from ringfence.host.kernel.threads import EventKind
from ringfence.host.store.blobs import SqlBlobs, keep_checked
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.run_rows import fenced, run_row
from ringfence.host.store.schema import BEGUN, checkpoints, steps, threads
from ringfence.host.store.text import checked, checked_json
from ringfence.host.store.transaction import Tx

_STATE_BYTES = 512 * 1024  # wire generation 1, checkpoint.save
_TOOL_BYTES = 200
# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_MINE = steps.c.run == sa.bindparam("in_run")
_STEP = sa.select(steps).where(_MINE, steps.c.n == sa.bindparam("number"))
_ALL = sa.select(steps).where(_MINE).order_by(steps.c.n)
_STATES = sa.select(steps.c.run, steps.c.n, steps.c.state).where(_MINE).order_by(steps.c.n)
_CHECKPOINT = sa.select(checkpoints).where(checkpoints.c.run == sa.bindparam("in_run"))
_COUNT = sa.select(sa.func.count()).where(_MINE)
_INSERT = sa.insert(steps).returning(steps)
_CHANGE = sa.update(steps).where(_MINE, steps.c.n == sa.bindparam("number")).returning(steps)
_CUT = sa.update(steps).where(_MINE, sa.text(BEGUN)).returning(steps)
_CURSOR = sa.select(threads.c.cursor).where(threads.c.id == sa.bindparam("which"))


def step_of(row: Row[Any]) -> Step:
    return Step(
        run=row.run,
        n=row.n,
        tool=row.tool,
        arguments=row.arguments,
        digest=row.digest,
        effect=Effect(row.effect),
        state=StepState(row.state),
        result=row.result,
        begun_at=row.begun_at,
        ended_at=row.ended_at,
    )


class SqlSteps:
    def __init__(self, database: Database, blobs: SqlBlobs) -> None:
        self._database = database
        self._blobs = blobs

    async def begin(
        self, run: RunId, epoch: int, n: int, tool: str, arguments: Mapping[str, Any], digest: str, effect: Effect
    ) -> tuple[Step, bool]:
        """Also TooLarge: arguments of more than 256 KiB as JSON. Invalid."""
        checked(tool, "the name of a tool", _TOOL_BYTES)
        values = {
            "run": run,
            "n": n,
            "tool": tool,
            "arguments": checked_json(arguments, "the arguments of a step"),
            "digest": digest,
            "effect": effect.value,
            "state": StepState.BEGUN.value,
        }
        return await self._database.write(lambda tx: _begin(tx, epoch, values))

    async def end(self, run: RunId, epoch: int, n: int, result: Mapping[str, Any], interrupted: bool) -> Step:
        """Also TooLarge: a result of more than 256 KiB as JSON. Invalid."""
        kept = checked_json(result, "the result of a step")
        state = StepState.INTERRUPTED if interrupted else StepState.ENDED
        return await self._database.write(lambda tx: end_step(tx, run, epoch, n, kept, state))

    async def get(self, run: RunId, n: int) -> Step | None:
        """NotFound: the run."""

        def question(connection: Connection) -> Step | None:
            run_row(connection, run)
            row = _step(connection, run, n)
            return None if row is None else step_of(row)

        return await self._database.read(question)

    async def all(self, run: RunId) -> list[Step]:
        """By number. NotFound."""

        def question(connection: Connection) -> list[Step]:
            run_row(connection, run)
            return steps_of(connection, run)

        return await self._database.read(question)

    async def save_checkpoint(
        self, run: RunId, epoch: int, boundary: str, step: int, state: str, blobs: Sequence[str] = ()
    ) -> Checkpoint:
        """Only the newest is kept; its cursor is the thread's newest. Conflict: `step` has not ended.
        TooLarge: a state of more than 512 KiB. Invalid. The blobs are hashed before the transaction, see blobs.py."""
        checked(state, "the state of a checkpoint", _STATE_BYTES)
        checked(boundary, "the boundary of a checkpoint", _TOOL_BYTES)
        made = await self._blobs.check(run, epoch, blobs) if blobs else {}
        return await self._database.write(lambda tx: _save(tx, run, epoch, boundary, step, state, made))

    async def checkpoint(self, run: RunId) -> Checkpoint | None:
        """NotFound."""

        def question(connection: Connection) -> Checkpoint | None:
            run_row(connection, run)
            return find_checkpoint(connection, run)

        return await self._database.read(question)


def steps_of(connection: Connection, run: RunId) -> list[Step]:
    """Of a run that is there, by number."""
    return [step_of(row) for row in owned(connection.execute(_ALL, {"in_run": run}), run=run)]


def states_of(connection: Connection, run: RunId) -> dict[int, StepState]:
    """Of a run that is there, by number. Without arguments and results: a run has up to 1,000 steps of 512 KiB."""
    return {row.n: StepState(row.state) for row in owned(connection.execute(_STATES, {"in_run": run}), run=run)}


def find_checkpoint(connection: Connection, run: RunId) -> Checkpoint | None:
    row = owned_row(connection.execute(_CHECKPOINT, {"in_run": run}).one_or_none(), run=run)
    if row is None:
        return None
    return Checkpoint(row.run, row.boundary, row.step, row.cursor, row.state, row.created_at)


def _step(connection: Connection, run: RunId, n: int) -> Row[Any] | None:
    return owned_row(connection.execute(_STEP, {"in_run": run, "number": n}).one_or_none(), run=run)


def _count(connection: Connection, run: RunId) -> int:
    count: int = connection.execute(_COUNT, {"in_run": run}).scalar_one()
    return count


def _begin(tx: Tx, epoch: int, values: dict[str, Any]) -> tuple[Step, bool]:
    run, n = values["run"], values["n"]
    row = fenced(tx, run, epoch)
    known = _step(tx.connection, run, n)
    if known is not None:
        if known.digest != values["digest"]:
            raise Diverged(
                f"step {n} of run {run} is {known.tool} in the journal; {values['tool']} was asked with other content",
                journal={"tool": known.tool, "digest": known.digest},
                asked={"tool": values["tool"], "digest": values["digest"]},
            )
        return step_of(known), False
    following = _count(tx.connection, run) + 1
    if n != following:
        raise StepGap(f"step {n} of run {run} is not the next one, which is {following}", expected=following)
    step = step_of(tx.connection.execute(_INSERT, {**values, "begun_at": tx.now()}).one())
    body = {"n": n, "tool": step.tool, "effect": step.effect.value}
    append(tx, row.thread, Draft(EventKind.STEP_BEGUN, body, row.actor, row.turn, run))
    return step, True


def end_step(tx: Tx, run: RunId, epoch: int, n: int, result: dict[str, Any], state: StepState) -> Step:
    row = fenced(tx, run, epoch)
    known = _step(tx.connection, run, n)
    if known is None:
        raise NotFound(f"no such step: {n} of run {run}")
    if known.state != StepState.BEGUN:
        return step_of(known)
    ended = {"in_run": run, "number": n, "state": state.value, "result": result, "ended_at": tx.now()}
    step = step_of(tx.connection.execute(_CHANGE, ended).one())
    append(tx, row.thread, _ended(row, step))
    return step


def _ended(row: Row[Any], step: Step) -> Draft:
    """`row`: of the step's run."""
    ok = step.result is not None and step.result.get("ok", True) is True
    body: dict[str, Any] = {"n": step.n, "tool": step.tool, "effect": step.effect.value, "ok": ok}
    if step.result is not None and "effect" in step.result and step.effect is Effect.ONCE:
        body["outcome"] = step.result["effect"]
    return Draft(EventKind.STEP_ENDED, body, row.actor, row.turn, row.id)


def cut_steps(tx: Tx, row: Row[Any], result: Mapping[str, Any], effects: Mapping[int, EffectState]) -> None:
    """What is under way in the run of `row`, which ends in this transaction: interrupted, and so its event says.
    `effects`: what is known of those that the host carried out, by step; their results say it."""
    ended = {"in_run": row.id, "state": StepState.INTERRUPTED.value, "result": dict(result), "ended_at": tx.now()}
    cut = sorted((step_of(each) for each in tx.connection.execute(_CUT, ended)), key=lambda step: step.n)
    for step in [step for step in cut if step.n in effects]:
        known = with_effect(result, effects[step.n])
        row_of = tx.connection.execute(_CHANGE, {"in_run": row.id, "number": step.n, "result": known}).one()
        cut[cut.index(step)] = step_of(row_of)
    if cut:
        append(tx, row.thread, *(_ended(row, step) for step in cut))


def _save(tx: Tx, run: RunId, epoch: int, boundary: str, step: int, state: str, blobs: Mapping[str, str]) -> Checkpoint:
    row = fenced(tx, run, epoch)
    if step != 0:
        known = _step(tx.connection, run, step)
        if known is None or known.state == StepState.BEGUN:
            raise Conflict(f"a checkpoint after step {step} of run {run}, which has not ended")
    keep_checked(tx, run, blobs)
    cursor = tx.connection.execute(_CURSOR, {"which": row.thread}).scalar_one()
    saved = Checkpoint(run, boundary, step, cursor, state, tx.now())
    values = {
        "run": run,
        "boundary": boundary,
        "step": step,
        "cursor": cursor,
        "state": state,
        "blobs": list(blobs),
        "created_at": saved.created_at,
    }
    tx.connection.execute(tx.world.dialect.upsert(checkpoints, ["run"]), values)
    return saved
