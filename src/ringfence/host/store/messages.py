"""The rows of messages: what people say to a turn, and the agent's replies.

A message that joins a turn which is there already is a steer. Its row says so, in an index that other messages are not
in: a turn's steers are found, and everybody else's messages cost nothing more.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.ids import MessageId, ThreadId, TurnId
from ringfence.host.kernel.threads import Attachment, Message
from ringfence.host.store.events import MAX_CURSOR
from ringfence.host.store.owned import owned
from ringfence.host.store.schema import STEER, messages, turns
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_INSERT = sa.insert(messages)
_BY_ID = sa.select(messages).where(messages.c.id == sa.bindparam("which"))
_FIRST = sa.select(messages).join(turns, turns.c.message == messages.c.id).where(turns.c.id == sa.bindparam("which"))
_BEFORE = (
    sa.select(messages)
    .where(
        messages.c.thread == sa.bindparam("in_thread"),
        messages.c.cursor < sa.bindparam("before", type_=sa.BigInteger),
        messages.c.cursor > sa.bindparam("after", type_=sa.BigInteger),
    )
    .order_by(messages.c.cursor.desc())
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)
_STEERS = (
    sa.select(messages)
    .where(
        sa.text(STEER),
        messages.c.turn == sa.bindparam("of_turn"),
        messages.c.cursor > sa.bindparam("after", type_=sa.BigInteger),
    )
    .order_by(messages.c.cursor)
)
_FIRST_STEER = _STEERS.with_only_columns(messages.c.cursor).limit(1)


def message_of(row: Row[Any]) -> Message:
    return Message(
        id=row.id,
        thread=row.thread,
        turn=row.turn,
        author=row.author,
        author_name=row.author_name,
        text=row.text,
        cursor=row.cursor,
        created_at=row.created_at,
        attachments=_attachments(row.attachments) if row.attachments else (),
    )


def _attachments(kept: list[dict[str, Any]]) -> tuple[Attachment, ...]:
    return tuple(Attachment(one["path"], one["size"]) for one in kept)


def attached(message: Message) -> list[dict[str, Any]]:
    """As the column and the events have it."""
    return [{"path": attachment.path, "size": attachment.size} for attachment in message.attachments]


def add_message(tx: Tx, message: Message, *, steer: bool = False) -> None:
    values = {
        "id": message.id,
        "thread": message.thread,
        "turn": message.turn,
        "author": message.author,
        "author_name": message.author_name,
        "text": message.text,
        "cursor": message.cursor,
        "attachments": attached(message) or None,
        "steer": steer,
        "created_at": message.created_at,
    }
    tx.connection.execute(_INSERT, values)


def message_by_id(connection: Connection, message: MessageId) -> Message:
    """One that a foreign key names."""
    return message_of(owned(connection.execute(_BY_ID, {"which": message}), id=message)[0])


def messages_before(
    connection: Connection, thread: ThreadId, before: int | None, after: int, count: int
) -> list[Message]:
    """Between the cursors, newest first."""
    below = MAX_CURSOR if before is None else max(0, min(before, MAX_CURSOR))
    which = {"in_thread": thread, "before": below, "after": after, "count": count}
    if not storable(thread):
        return []
    return [message_of(row) for row in owned(connection.execute(_BEFORE, which), thread=thread)]


def said_to(connection: Connection, turn: TurnId) -> list[Message]:
    """By people, oldest first: the turn's own message, then the steers."""
    first = owned(connection.execute(_FIRST, {"which": turn}), turn=turn)
    return [*map(message_of, first), *steers_of(connection, turn)]


def steers_of(connection: Connection, turn: TurnId, after: int = 0) -> list[Message]:
    """Behind the cursor, oldest first."""
    which = {"of_turn": turn, "after": max(0, min(after, MAX_CURSOR))}
    return [message_of(row) for row in owned(connection.execute(_STEERS, which), turn=turn)]


def next_steer(connection: Connection, turn: TurnId, after: int) -> int | None:
    """The cursor of the first one behind `after`."""
    which = {"of_turn": turn, "after": max(0, min(after, MAX_CURSOR))}
    cursor: int | None = connection.execute(_FIRST_STEER, which).scalar_one_or_none()
    return cursor
