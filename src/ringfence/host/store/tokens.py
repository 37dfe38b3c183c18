"""API tokens: hashes only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ringfence.host.kernel.errors import NotFound
from ringfence.host.kernel.ids import TokenId, UserId
from ringfence.host.kernel.people import Scope, Token, User
from ringfence.host.store.database import Database
from ringfence.host.store.owned import owned, owned_row
from ringfence.host.store.people import find_user_by_id
from ringfence.host.store.schema import tokens
from ringfence.host.store.text import checked, storable
from ringfence.host.store.transaction import Tx

_NOTE_BYTES = 1024
_USED_EVERY = timedelta(minutes=1)  # last_used_at is for people: a commit for each request would be for nobody
_USE = (
    sa.update(tokens)
    .where(tokens.c.id == sa.bindparam("which"))
    .where(sa.or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < sa.bindparam("at")))
    .values(last_used_at=sa.bindparam("at"))
)
# Built once: it is part of every request.
_LIVE = sa.select(tokens).where(tokens.c.secret_hash == sa.bindparam("hashed"), tokens.c.removed_at.is_(None))
_BY_ID = sa.select(tokens).where(tokens.c.id == sa.bindparam("which"), tokens.c.removed_at.is_(None))


class SqlTokens:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._uses: dict[TokenId, datetime] = {}  # the newest that is not on disk yet, of tokens that were found

    async def add(
        self, user: UserId, secret_hash: str, scopes: frozenset[Scope], note: str, expires_at: datetime | None
    ) -> Token:
        checked(note, "the note", _NOTE_BYTES)

        def work(tx: Tx) -> Token:
            find_user_by_id(tx.connection, user)
            token = Token(TokenId(tx.new_id("tok")), user, scopes, note, tx.now(), expires_at, None)
            row = {
                "id": token.id,
                "user": user,
                "secret_hash": secret_hash,
                "scopes": sorted(scope.value for scope in scopes),
                "note": note,
                "created_at": token.created_at,
                "expires_at": expires_at,
            }
            tx.connection.execute(sa.insert(tokens).values(row))
            return token

        return await self._database.write(work)

    async def find(self, secret_hash: str) -> tuple[Token, User]:
        def question(connection: Connection) -> tuple[Token, User]:
            found = connection.execute(_LIVE, {"hashed": secret_hash}).one_or_none() if storable(secret_hash) else None
            row = owned_row(found, secret_hash=secret_hash)
            if row is None:
                raise NotFound("no such token")
            return _token_of(row), find_user_by_id(connection, row.user)

        token, user = await self._database.read(question)
        return self._used(token), user

    async def get(self, token: TokenId) -> tuple[Token, User]:
        def question(connection: Connection) -> tuple[Token, User]:
            found = connection.execute(_BY_ID, {"which": token}).one_or_none() if storable(token) else None
            row = owned_row(found, id=token)
            if row is None:
                raise NotFound(f"no such token: {token!r}")
            return _token_of(row), find_user_by_id(connection, row.user)

        return await self._database.read(question)

    async def all(self, user: UserId) -> list[Token]:
        """Oldest first."""
        query = sa.select(tokens).where(tokens.c.user == user, tokens.c.removed_at.is_(None))
        query = query.order_by(tokens.c.created_at, tokens.c.id)

        def question(connection: Connection) -> list[Token]:
            find_user_by_id(connection, user)
            return [_token_of(row) for row in owned(connection.execute(query), user=user)]

        return [_with(self._uses, token) for token in await self._database.read(question)]

    async def remove(self, token: TokenId) -> None:
        def work(tx: Tx) -> None:
            live = sa.update(tokens).where(tokens.c.id == token, tokens.c.removed_at.is_(None))
            if not storable(token) or not tx.connection.execute(live.values(removed_at=tx.now())).rowcount:
                raise NotFound(f"no such token: {token!r}", remedy="ringfence token ls --user U")

        await self._database.write(work)

    async def note_uses(self) -> None:
        uses = dict(self._uses)
        if not uses:
            return
        rows = [
            {"which": token, "at": at} for token, at in sorted(uses.items())
        ]  # in one order: kernels share the rows
        await self._database.write(lambda tx: tx.connection.execute(_USE, rows) and None)
        for token, at in uses.items():
            if self._uses.get(token) == at:
                del self._uses[token]

    def _used(self, token: Token) -> Token:
        """Remembers the use, at most once a minute. Who comes in waits for no write: neither a full disk nor a lock keeps
        anybody out of what can be read."""
        known, now = _with(self._uses, token), self._database.world.clock.now()
        if known.last_used_at is not None and now - known.last_used_at < _USED_EVERY:
            return known
        self._uses[token.id] = now
        return replace(token, last_used_at=now)


def _with(uses: Mapping[TokenId, datetime], token: Token) -> Token:
    return replace(token, last_used_at=uses.get(token.id, token.last_used_at))


def _token_of(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        user=row.user,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        note=row.note,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
    )
