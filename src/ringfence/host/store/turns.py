"""Accepting a message: message, turn, queued run and their events in one transaction, once for each key.

The event is MESSAGE {"author", "text", "message"}; with files also "attachments": [{"path", "size"}]; of a message that
joined a turn also "steer": true, and then the event names the run that it joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.canonical import sha256_json
from ringfence.host.kernel.errors import Invalid, NotFound, TooLarge
from ringfence.host.kernel.ids import MessageId, RunId, ThreadId, TurnId, UserId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import (
    MAX_ATTACHMENTS,
    MAX_MESSAGE_BYTES,
    Attachment,
    EventKind,
    Message,
    Thread,
    Turn,
    TurnState,
)
from ringfence.host.store.database import Database
from ringfence.host.store.events import Draft, append
from ringfence.host.store.keys import Key, check_key
from ringfence.host.store.lanes import check_free, check_room, lane_of, to_steer
from ringfence.host.store.messages import add_message, attached, message_by_id, steers_of
from ringfence.host.store.owned import owned_row
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.places import offer
from ringfence.host.store.run_rows import run_of, run_row
from ringfence.host.store.schema import runs, turns
from ringfence.host.store.text import checked, storable
from ringfence.host.store.threads import find_thread
from ringfence.host.store.transaction import Tx

_PATH_BYTES = 4096  # PATH_MAX of Linux

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_BY_ID = sa.select(turns).where(turns.c.id == sa.bindparam("which"))
_INSERT_TURN = sa.insert(turns).returning(turns)
_INSERT_RUN = sa.insert(runs).returning(runs)


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody posts."""

    author: User
    text: str
    attachments: tuple[Attachment, ...]


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


class SqlTurns:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def accept(
        self,
        thread: ThreadId,
        actor: UserId,
        text: str,
        mode: Literal["queue", "steer", "reject"],
        key: str | None,
        attachments: Sequence[Attachment] = (),
    ) -> Accepted:
        """Also DiskFull: the database's reserve is in use. TooLarge: more than 256 KiB of UTF-8, more than 20 attachments.
        Invalid: NUL or no Unicode text; a key of
        0 or > 200 characters.

        The body that a key stands for is thread, text, mode and the paths of the attachments: their sizes are what was
        found, not what was asked. A turn is told at most 100 things after its message, together no longer than one
        message may be; a steer beyond that is queued.
        """
        checked(text, "the message", MAX_MESSAGE_BYTES)
        check_key(key)
        self._database.reserve.check()
        _check_attachments(attachments)

        def work(tx: Tx) -> Accepted:
            where, author = find_thread(tx.connection, thread), find_user_by_id(tx.connection, actor)
            said = Said(author, text, tuple(attachments))
            if key is None:
                return _accept(tx, where, said, mode)
            known = _key(author, key, thread, text, mode, [kept.path for kept in attachments])
            if earlier := known.find(tx):
                return _repeated(tx, earlier)
            accepted = _accept(tx, where, said, mode)
            known.keep(tx, accepted.message.id)
            return accepted

        return await self._database.write(work)

    async def repeat(
        self, thread: ThreadId, actor: UserId, text: str, mode: str, key: str, paths: Sequence[str]
    ) -> Accepted | None:
        check_key(key)

        def work(tx: Tx) -> Accepted | None:
            known = _key(find_user_by_id(tx.connection, actor), key, thread, text, mode, paths).find(tx)
            return None if known is None else _repeated(tx, known)

        return await self._database.write(work)

    async def get(self, turn: TurnId) -> Turn:
        return await self._database.read(lambda connection: turn_of(_turn_row(connection, turn)))

    async def said(self, turn: TurnId, after: int = 0) -> list[Message]:
        def question(connection: Connection) -> list[Message]:
            first = message_by_id(connection, _turn_row(connection, turn).message)
            own = [first] if first.cursor > after else []
            return own + steers_of(connection, turn, after)

        return await self._database.read(question)


def _key(author: User, key: str, thread: ThreadId, text: str, mode: str, paths: Sequence[str]) -> Key:
    return Key(author, key, sha256_json([thread, text, mode, list(paths)]))


def _check_attachments(attachments: Sequence[Attachment]) -> None:
    if len(attachments) > MAX_ATTACHMENTS:
        raise TooLarge(f"{len(attachments)} attachments; the limit is {MAX_ATTACHMENTS}", limit=MAX_ATTACHMENTS)
    for attachment in attachments:
        checked(attachment.path, "the path of an attachment", _PATH_BYTES)
        if attachment.size < 0:
            raise Invalid(f"an attachment of {attachment.size} bytes")


def _turn_row(connection: Connection, turn: TurnId) -> Row[Any]:
    row = connection.execute(_BY_ID, {"which": turn}).one_or_none() if storable(turn) else None
    row = owned_row(row, id=turn)
    if row is None:
        raise NotFound(f"no such turn: {turn!r}")
    return row


def _repeated(tx: Tx, message: Message) -> Accepted:
    """The answer to the same key and body, with the state of now."""
    turn = turn_of(_turn_row(tx.connection, message.turn))
    assert turn.run is not None
    run = run_of(run_row(tx.connection, turn.run))
    return Accepted(turn, run, message, repeated=True, steered=turn.message != message.id)


def _accept(tx: Tx, thread: Thread, said: Said, mode: str) -> Accepted:
    lane = lane_of(thread, said.author.id)
    tx.lock(f"lane {lane}")  # what is free or has room, and what comes after what
    if mode == "steer" and (run := to_steer(tx, lane, said.author.id, said.text)) is not None:
        return _steer(tx, thread, said, run)
    if mode == "reject":
        check_free(tx, lane)
    check_room(tx, lane)
    return _open(tx, thread, said, lane)


def _steer(tx: Tx, thread: Thread, said: Said, run: Row[Any]) -> Accepted:
    message = _message(tx, thread, said, run.turn)
    draft = Draft(EventKind.MESSAGE, {**_body(message), "steer": True}, said.author.id, run.turn, run.id)
    [event] = append(tx, thread.id, draft)
    message = replace(message, cursor=event.cursor)
    add_message(tx, message, steer=True)
    turn = turn_of(_turn_row(tx.connection, run.turn))
    return Accepted(turn, run_of(run), message, repeated=False, steered=True)


def _open(tx: Tx, thread: Thread, said: Said, lane: str) -> Accepted:
    turn, run = TurnId(tx.new_id("trn")), RunId(tx.new_id("run"))
    message = _message(tx, thread, said, turn)
    first, _ = append(
        tx,
        thread.id,
        Draft(EventKind.MESSAGE, _body(message), said.author.id, turn),
        Draft(EventKind.RUN_QUEUED, {}, said.author.id, turn, run),
    )
    message = replace(message, cursor=first.cursor)
    add_message(tx, message)
    opened = {
        "id": turn,
        "thread": thread.id,
        "actor": said.author.id,
        "message": message.id,
        "lane": lane,
        "state": TurnState.QUEUED.value,
        "reason": "",
        "run": run,
        "created_at": message.created_at,
    }
    turn_row = tx.connection.execute(_INSERT_TURN, opened).one()
    queued = _queue(tx, said.author, message, run, lane)
    offer(tx, lane)
    return Accepted(turn_of(turn_row), run_of(queued), message, repeated=False)


def _queue(tx: Tx, author: User, message: Message, run: RunId, lane: str) -> Row[Any]:
    queued = {
        "id": run,
        "turn": message.turn,
        "tenant": author.tenant,
        "thread": message.thread,
        "actor": author.id,
        "lane": lane,
        "position": message.cursor,
        "state": RunState.QUEUED.value,
        "reason": "",
        "epoch": 0,
        "attempts": 0,
        "token_hash": "",
        "cancel_requested": False,
        "worked": 0.0,
        "created_at": message.created_at,
    }
    return tx.connection.execute(_INSERT_RUN, queued).one()


def _message(tx: Tx, thread: Thread, said: Said, turn: TurnId) -> Message:
    """Without its cursor."""
    author = said.author
    made = MessageId(tx.new_id("msg"))
    return Message(made, thread.id, turn, author.id, author.name, said.text, 0, tx.now(), said.attachments)


def _body(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"author": message.author_name, "text": message.text, "message": message.id}
    return {**body, "attachments": attached(message)} if message.attachments else body
