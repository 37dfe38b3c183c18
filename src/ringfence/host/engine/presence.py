"""Whether somebody whose connection stays open may still speak: their token may be revoked or expire, they may be removed.

A request is let in once; a stream or a command may last for days. What this server revokes ends at once, expiry by the
clock, and what another server or an administrator did to the store at the next look. It must never let anybody in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import NotFound, RingfenceError, Unauthenticated
from ringfence.host.kernel.ids import TokenId, UserId
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.people import Actor, Token, User

NEW_TOKEN = "ringfence token add --user NAME"
BY_TOKEN = "token:"  # what `Actor.via` begins with
FIRST_LOOK_SECONDS = 1.0  # after it was let in; most commands are over by then and cost the store nothing
LOOK_SECONDS = 15.0  # one look-up by key each: 1,000 streams ask 67 times a second


def check_token(token: Token, user: User, now: datetime) -> None:
    """Unauthenticated: it has expired, or its user is disabled."""
    check_expiry(token.expires_at, now)
    if user.disabled:
        raise Unauthenticated("the token's user is disabled", remedy="ask an operator of this server")


def check_expiry(expires_at: datetime | None, now: datetime) -> None:
    """Unauthenticated."""
    if expires_at is not None and expires_at <= now:
        raise Unauthenticated(f"the token expired at {expires_at.isoformat(timespec='seconds')}", remedy=NEW_TOKEN)


class Presence:
    """web.ports.Presence."""

    def __init__(
        self,
        actor: Actor,
        clock: Onward,
        look: Callable[[Actor], Awaitable[None]],
        closed: Callable[[Presence], None],
    ) -> None:
        """`look`: asks the store. Unauthenticated."""
        self.actor = actor
        self._clock, self._look, self._closed = clock, look, closed
        self._ended = asyncio.Event()
        self._why: tuple[str, str] | None = None  # message, remedy
        self._log = logging.getLogger("ringfence.engine")

    def check(self) -> None:
        """Unauthenticated, once it is over. Asks nobody: it costs nothing to ask again and again."""
        if self._why is not None:
            raise Unauthenticated(self._why[0], remedy=self._why[1])
        check_expiry(self.actor.expires_at, self._clock.now())

    async def over(self) -> None:
        """Returns when `check` raises."""
        pause = FIRST_LOOK_SECONDS
        while not self._is_over():
            try:
                async with asyncio.timeout(min(pause, self._left())):
                    await self._ended.wait()
            except TimeoutError:
                await self._looked()
            pause = LOOK_SECONDS

    def end(self, message: str, remedy: str) -> None:
        """The first reason counts."""
        self._why = self._why or (message, remedy)
        self._ended.set()

    def close(self) -> None:
        """Nobody asks any more. Idempotent."""
        self._closed(self)

    def _is_over(self) -> bool:
        try:
            self.check()
        except Unauthenticated:
            return True
        return False

    def _left(self) -> float:
        """Seconds until the token expires. Some milliseconds more than none: a timer may be early by the wall clock."""
        if self.actor.expires_at is None:
            return LOOK_SECONDS
        return max(0.005, (self.actor.expires_at - self._clock.now()).total_seconds())

    async def _looked(self) -> None:
        if self._is_over():
            return
        try:
            await self._look(self.actor)
        except Unauthenticated as error:
            self.end(error.message, error.remedy)
        except RingfenceError as error:  # a store that does not answer now is asked again
            self._log.info("whether %s may still speak is not known: %s", self.actor.via, error)


class Presences:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._open: set[Presence] = set()

    def __len__(self) -> int:
        """Connections that stay open."""
        return len(self._open)

    def open(self, actor: Actor) -> Presence:
        """To be closed by the caller."""
        made = Presence(actor, self._parts.onward, self._look, self._open.discard)
        self._open.add(made)
        return made

    def token_removed(self, token: TokenId) -> None:
        self._end(lambda actor: actor.via == f"{BY_TOKEN}{token}", "the token is not valid any more", NEW_TOKEN)

    def user_removed(self, user: UserId, tokens: Collection[TokenId]) -> None:
        """`tokens`: theirs until now; one of an operator may be in use for somebody else."""
        theirs = {f"{BY_TOKEN}{token}" for token in tokens}

        def meant(actor: Actor) -> bool:
            return actor.via in theirs or (actor.user is not None and actor.user.id == user)

        self._end(meant, "the user was removed", "ringfence user ls")

    def _end(self, meant: Callable[[Actor], bool], message: str, remedy: str) -> None:
        for presence in list(self._open):
            if meant(presence.actor):
                presence.end(message, remedy)

    async def _look(self, actor: Actor) -> None:
        """Unauthenticated. Somebody at the operator socket stays for as long as the connection does."""
        store = self._parts.store
        if actor.via.startswith(BY_TOKEN):
            try:
                token, user = await store.tokens.get(TokenId(actor.via.removeprefix(BY_TOKEN)))
            except NotFound:
                raise Unauthenticated("the token is not valid any more", remedy=NEW_TOKEN) from None
            check_token(token, user, self._parts.onward.now())
        if actor.impersonated and actor.user is not None:
            try:
                await store.users.by_id(actor.user.id)
            except NotFound:
                raise Unauthenticated("the user was removed", remedy="ringfence user ls") from None
