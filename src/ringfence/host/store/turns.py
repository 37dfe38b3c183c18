"""Accepting a message: message, turn, queued run and their events in one transaction, once for each key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.canonical import sha256_json
from ringfence.host.kernel.errors import Invalid, KeyReused, LaneBusy, NotFound
from ringfence.host.kernel.ids import MessageId, RunId, ThreadId, TurnId, UserId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import MAX_MESSAGE_BYTES, EventKind, Message, Thread, Turn, TurnState
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.runs import run_of, run_row
from ringfence.host.store.schema import LIVE, idempotency, messages, runs, turns
from ringfence.host.store.text import checked, storable
from ringfence.host.store.threads import find_thread, message_of
from ringfence.host.store.transaction import Tx

_KEY_KEPT = timedelta(days=7)  # architecture.md section 7
_KEY_CHARACTERS = 200

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_BY_ID = sa.select(turns).where(turns.c.id == sa.bindparam("which"))
_INSERT_MESSAGE = sa.insert(messages)
_INSERT_TURN = sa.insert(turns).returning(turns)
_INSERT_RUN = sa.insert(runs).returning(runs)


def turn_of(row: Row[Any]) -> Turn:
    return Turn(
        id=row.id,
        thread=row.thread,
        actor=row.actor,
        message=row.message,
        lane=row.lane,
        state=TurnState(row.state),
        reason=row.reason,
        reply=row.reply,
        run=row.run,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )


def lane_of(thread: Thread, actor: UserId) -> str:
    """What may have one live run."""
    return f"{thread.id}/{actor}" if thread.parallel else thread.id


class SqlTurns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def accept(
        self, thread: ThreadId, actor: UserId, text: str, mode: Literal["queue", "reject"], key: str | None
    ) -> Accepted:
        """Also TooLarge: more than 256 KiB of UTF-8. Invalid: NUL or no Unicode text; a key of 0 or > 200 characters."""
        checked(text, "the message", MAX_MESSAGE_BYTES)
        if key is not None and not (0 < len(key) <= _KEY_CHARACTERS and storable(key)):
            raise Invalid(f"an idempotency key has 1 to {_KEY_CHARACTERS} characters", remedy="take a UUID")

        def work(tx: Tx) -> Accepted:
            where, author = find_thread(tx.connection, thread), find_user_by_id(tx.connection, actor)
            body_hash = sha256_json([thread, text, mode])
            if key is not None and (earlier := _repeat(tx, author, key, body_hash)):
                return earlier
            if mode == "reject":
                _check_free(tx, lane_of(where, actor))
            accepted = _accept(tx, where, author, text)
            if key is not None:
                _keep_key(tx, author, key, body_hash, accepted.turn.id)
            return accepted

        return await self._database.write(work)

    async def get(self, turn: TurnId) -> Turn:
        return await self._database.read(lambda connection: turn_of(_turn_row(connection, turn)))


def _turn_row(connection: Connection, turn: TurnId) -> Row[Any]:
    row = connection.execute(_BY_ID, {"which": turn}).one_or_none() if storable(turn) else None
    if row is None:
        raise NotFound(f"no such turn: {turn!r}")
    return row


def _repeat(tx: Tx, actor: User, key: str, body_hash: str) -> Accepted | None:
    """The turn that the key stands for. KeyReused."""
    mine = sa.and_(idempotency.c.tenant == actor.tenant, idempotency.c.actor == actor.id)
    tx.connection.execute(sa.delete(idempotency).where(idempotency.c.created_at <= tx.now() - _KEY_KEPT))
    kept = tx.connection.execute(sa.select(idempotency).where(mine, idempotency.c.key == key)).one_or_none()
    if kept is None:
        return None
    if kept.body_hash != body_hash:
        raise KeyReused(
            f"the key {key!r} was used for another message", remedy="take a new key for a new message", turn=kept.turn
        )
    turn = turn_of(_turn_row(tx.connection, kept.turn))
    said = tx.connection.execute(sa.select(messages).where(messages.c.id == turn.message)).one()
    assert turn.run is not None
    return Accepted(turn, run_of(run_row(tx.connection, turn.run)), message_of(said), repeated=True)


def _check_free(tx: Tx, lane: str) -> None:
    live = sa.select(runs.c.id).where(runs.c.lane == lane, sa.text(LIVE)).limit(1)
    if busy := tx.connection.execute(live).scalar_one_or_none():
        raise LaneBusy(
            "an earlier message is still being worked on", remedy="wait for it, or use --mode queue", run=busy
        )


def _accept(tx: Tx, thread: Thread, author: User, text: str) -> Accepted:
    now = tx.now()
    said, turn, run = MessageId(tx.new_id("msg")), TurnId(tx.new_id("trn")), RunId(tx.new_id("run"))
    first, _ = append(
        tx,
        thread.id,
        Draft(EventKind.MESSAGE, {"author": author.name, "text": text, "message": said}, author.id, turn),
        Draft(EventKind.RUN_QUEUED, {}, author.id, turn, run),
    )
    message = Message(said, thread.id, turn, author.id, author.name, text, first.cursor, now)
    lane = lane_of(thread, author.id)
    tx.connection.execute(_INSERT_MESSAGE, _message_row(message))
    opened = {
        "id": turn,
        "thread": thread.id,
        "actor": author.id,
        "message": said,
        "lane": lane,
        "state": TurnState.QUEUED.value,
        "reason": "",
        "run": run,
        "created_at": now,
    }
    queued = {
        "id": run,
        "turn": turn,
        "tenant": author.tenant,
        "thread": thread.id,
        "actor": author.id,
        "lane": lane,
        "position": first.cursor,
        "state": RunState.QUEUED.value,
        "reason": "",
        "epoch": 0,
        "attempts": 0,
        "token_hash": "",
        "cancel_requested": False,
        "created_at": now,
    }
    turn_row = tx.connection.execute(_INSERT_TURN, opened).one()
    run_row_ = tx.connection.execute(_INSERT_RUN, queued).one()
    return Accepted(turn_of(turn_row), run_of(run_row_), message, repeated=False)


def _message_row(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "thread": message.thread,
        "turn": message.turn,
        "author": message.author,
        "author_name": message.author_name,
        "text": message.text,
        "cursor": message.cursor,
        "created_at": message.created_at,
    }


def _keep_key(tx: Tx, actor: User, key: str, body_hash: str, turn: TurnId) -> None:
    row = {
        "tenant": actor.tenant,
        "actor": actor.id,
        "key": key,
        "body_hash": body_hash,
        "turn": turn,
        "created_at": tx.now(),
    }
    tx.connection.execute(sa.insert(idempotency).values(row))
