"""Idempotency keys: which message a key of an actor stands for. Kept for as long as the settings say, 7 days by
default (architecture.md section 7); the sweep forgets them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ringfence.host.kernel.errors import Invalid, KeyReused
from ringfence.host.kernel.ids import MessageId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.threads import Message
from ringfence.host.store.columns import Utc
from ringfence.host.store.messages import message_by_id
from ringfence.host.store.owned import owned_row
from ringfence.host.store.schema import idempotency
from ringfence.host.store.text import storable
from ringfence.host.store.transaction import Tx

_CHARACTERS = 200

# Built once: SQLAlchemy takes longer to build a statement than SQLite to run it.
_NAME = (idempotency.c.tenant, idempotency.c.actor, idempotency.c.key)
_OLDEST = (
    sa.select(*_NAME)
    .where(idempotency.c.created_at <= sa.bindparam("before", type_=Utc))
    .order_by(idempotency.c.created_at)
    .limit(sa.bindparam("count", type_=sa.BigInteger))
)
_OVER = sa.delete(idempotency).where(sa.tuple_(*_NAME).in_(_OLDEST))
_THIS = sa.and_(
    idempotency.c.tenant == sa.bindparam("of_tenant"),
    idempotency.c.actor == sa.bindparam("by_actor"),
    idempotency.c.key == sa.bindparam("named"),
)
_FIND = sa.select(idempotency).where(_THIS)
_FORGET = sa.delete(idempotency).where(_THIS)
_INSERT = sa.insert(idempotency)


@dataclass(frozen=True, slots=True)
class Key:
    """An actor's key, and what was asked under it."""

    actor: User
    text: str
    body_hash: str

    def find(self, tx: Tx) -> Message | None:
        """The message that it stands for. KeyReused. One that is kept no more stands for nothing, swept or not."""
        which = {"of_tenant": self.actor.tenant, "by_actor": self.actor.id, "named": self.text}
        found = tx.connection.execute(_FIND, which).one_or_none()
        kept = owned_row(found, tenant=self.actor.tenant, actor=self.actor.id, key=self.text)
        if kept is None:
            return None
        if kept.created_at <= tx.now() - tx.world.keep_keys:
            tx.connection.execute(_FORGET, which)
            return None
        message = message_by_id(tx.connection, MessageId(kept.message))
        if kept.body_hash != self.body_hash:
            raise KeyReused(
                f"the key {self.text!r} was used for another message",
                remedy="take a new key for a new message",
                turn=message.turn,
            )
        return message

    def keep(self, tx: Tx, message: MessageId) -> None:
        row = {
            "tenant": self.actor.tenant,
            "actor": self.actor.id,
            "key": self.text,
            "body_hash": self.body_hash,
            "message": message,
            "created_at": tx.now(),
        }
        tx.connection.execute(_INSERT, row)


def keys_due(connection: Connection, before: datetime) -> bool:
    """Whether there is one for `forget_keys`."""
    return connection.execute(_OLDEST, {"before": before, "count": 1}).first() is not None


def forget_keys(tx: Tx, before: datetime, count: int) -> int:
    """Up to `count` of that time and earlier, the oldest; how many."""
    return tx.connection.execute(_OVER, {"before": before, "count": count}).rowcount


def check_key(key: str | None) -> None:
    """Invalid: 0 or > 200 characters, or no text."""
    if key is not None and not (0 < len(key) <= _CHARACTERS and storable(key)):
        raise Invalid(f"an idempotency key has 1 to {_CHARACTERS} characters", remedy="take a UUID")
