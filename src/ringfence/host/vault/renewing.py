"""Access tokens of credentials of kind `oauth_refresh`: renewed before they end, by one kernel at a time, stored before they
are used. What is lent is the access token; the refresh token goes to the address of its grant and nowhere else.

What a service gives is the next version of the credential, with the refresh token that it may have exchanged for the old one:
both are on disk, in one transaction, before anybody is given either. A task that has begun to ask goes on when nobody waits for
it any more: the old refresh token may be worth nothing by then. Must never ask for one credential twice at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import Conflict, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.outward import grants, renewing
from ringfence.host.kernel.outward.credentials import Credential
from ringfence.host.kernel.outward.grants import Stored
from ringfence.host.kernel.outward.ports import Credentials, Lent, Vault
from ringfence.host.kernel.outward.renewals import Renewal, Renewals, TokenEndpoint, TokenReply, Turn
from ringfence.host.kernel.outward.renewing import Due, NotGranted
from ringfence.host.kernel.outward.secret import Secret

LEASE = (
    30.0  # seconds of a turn: 10 of the question, 5 of its row, the rest for a store that is slow to take the answer
)
PATIENCE = 12.0  # seconds that is waited for another kernel's question, which takes 10: the worker gives up after 15
AHEAD_PATIENCE = 1.0  # seconds that is waited when there is a token still
_LOOK = 0.2  # seconds between looks at what another kernel does
_USELESS = (
    60.0  # seconds before the next question to a service that gives tokens of no use: each such is a version of its own
)
_AGAIN = (0.2, 1.0, 3.0)  # seconds between tries to store what was given


class Now(Protocol):
    def now(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Failure:
    why: str
    final: bool = False


class Renewing:
    """`holder`: this kernel process. `clock`: of what expires."""

    def __init__(
        self,
        vault: Vault,
        credentials: Credentials,
        renewals: Renewals,
        endpoint: TokenEndpoint,
        audit: Audit,
        clock: Now,
        holder: str,
        lease: float = LEASE,
    ) -> None:
        self._vault, self._credentials, self._renewals = vault, credentials, renewals
        self._endpoint, self._audit, self._clock, self._holder = endpoint, audit, clock, holder
        self._lease = lease
        self._flights: dict[str, asyncio.Task[Failure | None]] = {}
        self._unsaved: dict[
            str, tuple[int, Secret]
        ] = {}  # what was given and could not be stored, and after which version
        self._closed = False
        self._log = logging.getLogger("ringfence.vault")

    async def lent(self, credential: Credential, value: Secret, refused: int = 0) -> tuple[Credential, Lent]:
        """`value`: of that version. `refused`: the version whose token was just answered with 401; 0: none. The version that
        is lent by now, which is the same when there is no other token. Unavailable, with a remedy for the owner."""
        stored = grants.opened(value)
        due = renewing.due(stored.access, self._clock.now())
        if due is Due.FRESH and not self._disliked(credential, stored, refused):
            return credential, self._lent(credential, stored)
        failure = await self._renewed(credential, PATIENCE if due is not Due.SOON else AHEAD_PATIENCE)
        credential, value = await self._vault.read(self._credentials, credential.id)
        stored = grants.opened(value)
        if renewing.due(stored.access, self._clock.now()) is Due.NOW:
            raise _unavailable(credential, failure)
        return credential, self._lent(credential, stored)

    async def close(self) -> None:
        """Waits for what was asked: what comes is stored. Nothing is asked any more."""
        self._closed = True
        await asyncio.gather(*self._flights.values(), return_exceptions=True)

    def _disliked(self, credential: Credential, stored: Stored, refused: int) -> bool:
        access = stored.access
        return refused == credential.version and access is not None and not renewing.young(access, self._clock.now())

    def _lent(self, credential: Credential, stored: Stored) -> Lent:
        assert stored.access is not None
        return Lent(stored.access.token, credential.version, renewing.keeps(stored.access, self._clock.now()))

    # --- one question at a time --------------------------------------------------------------------------------------

    async def _renewed(self, credential: Credential, patience: float) -> Failure | None:
        flight = self._flights.get(credential.id)
        if flight is None:
            if self._closed:
                return Failure("this server is ending")
            flight = self._flights[credential.id] = asyncio.ensure_future(self._fly(credential))
        done, _ = await asyncio.wait({flight}, timeout=patience + _LOOK)
        return flight.result() if done else Failure("the service has not answered yet")

    async def _fly(self, credential: Credential) -> Failure | None:
        try:
            return await self._in_turn(credential.id, credential.version)
        except RingfenceError as error:
            return Failure(error.message)
        except Exception:
            self._log.exception("renewing %s ended by an error", credential.id)
            return Failure("a fault of this server: its log says more")
        finally:
            del self._flights[credential.id]

    async def _in_turn(self, identifier: str, behind: int) -> Failure | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            credential, value = await self._vault.read(self._credentials, identifier)
            if credential.version > behind:
                return None
            said = await self._renewals.take(identifier, credential.version, self._holder, self._lease)
            match said.turn:
                case Turn.MINE:
                    return await self._mine(credential, grants.opened(value), said)
                case Turn.LATER | Turn.REFUSED:
                    return Failure(said.why, final=said.turn is Turn.REFUSED)
                case Turn.BUSY if loop.time() >= end:
                    return Failure("another server asks for it, and has not been answered yet")
            await asyncio.sleep(_LOOK)

    # --- the question ------------------------------------------------------------------------------------------------

    async def _mine(self, credential: Credential, stored: Stored, turn: Renewal) -> Failure | None:
        behind, value = self._unsaved.get(credential.id, (0, None))
        if value is not None and behind == credential.version:
            return await self._save(credential, value, turn)
        self._unsaved.pop(credential.id, None)
        asked_at = self._clock.now()
        try:
            reply = await self._asked(credential, stored)
        except RingfenceError as error:
            return await self._failed(credential, turn, error.message, cut=bool(error.details.get("sent")))
        return await self._answered(credential, stored, turn, reply, asked_at)

    async def _asked(self, credential: Credential, stored: Stored) -> TokenReply:
        """A release of the refresh token, so that the audit has it before. RingfenceError: `sent` says whether it went out."""
        parts = urlsplit(stored.grant.token_url)
        details = {"name": credential.name, "version": credential.version, "user": credential.user, "method": "POST"}
        where = {"host": parts.netloc, "path": parts.path}
        await self._audit.release(None, f"credential:{credential.id}", f"tokens:{parts.netloc}", details | where)
        headers, body = renewing.question(stored.grant)
        whose = (credential.tenant, credential.user)
        return await self._endpoint.ask(whose, stored.grant.token_url, headers, body)

    async def _answered(
        self, credential: Credential, stored: Stored, turn: Renewal, reply: TokenReply, asked_at: datetime
    ) -> Failure | None:
        host = urlsplit(stored.grant.token_url).netloc
        said = renewing.answer(reply.status, reply.body)
        if isinstance(said, NotGranted):
            why = f"{host}: {said.why}"
            if said.final and turn.cut:
                why += "; a question before this one was cut off, and what it was given, perhaps a new refresh token, is lost"
            return await self._failed(credential, turn, why, final=said.final, said=reply.retry_after)
        given = grants.sealed(renewing.with_granted(stored, said, asked_at))
        if said.access is not None:
            return await self._save(credential, given, turn)
        if (
            said.refresh_token is not None
        ):  # no token that is of use, and yet the old refresh token may be worth nothing now
            failure = await self._save(credential, given, turn)
            if failure is not None:
                return failure
            credential = replace(credential, version=credential.version + 1)
            turn = await self._renewals.take(credential.id, credential.version, self._holder, self._lease)
        return await self._failed(credential, turn, f"{host}: {said.why}", said=_USELESS)

    async def _save(self, credential: Credential, value: Secret, turn: Renewal) -> Failure | None:
        """Nobody is given any of it before it is on disk."""
        draft = replace(credential, version=credential.version + 1)
        for seconds in (*_AGAIN, None):
            try:
                made = await self._vault.put(self._credentials, draft, value)
            except (Conflict, NotFound):  # stored anew by its owner meanwhile, or revoked: that counts
                self._unsaved.pop(credential.id, None)
                return None
            except RingfenceError as error:
                self._log.error("the next version of %s is not stored: %s", credential.id, error.message)
                if seconds is None:
                    self._unsaved[credential.id] = (credential.version, value)
                    return await self._failed(credential, turn, f"it could not be stored: {error.message}", cut=True)
                await asyncio.sleep(seconds)
            else:
                self._unsaved.pop(credential.id, None)
                await self._told(made, "secret.renewed", {"expires_at": _end(grants.opened(value))})
                return None
        raise AssertionError("unreachable")

    async def _failed(
        self,
        credential: Credential,
        turn: Renewal,
        why: str,
        *,
        final: bool = False,
        cut: bool = False,
        said: float | None = None,
    ) -> Failure:
        wait = None if final else renewing.wait(turn.failures + 1, said)
        if final or turn.failures == 0:
            await self._told(credential, "secret.refused" if final else "secret.not_renewed", {"why": why})
        try:
            await self._renewals.failed(credential.id, credential.version, self._holder, why, wait, cut=cut)
        except RingfenceError as error:  # its turn ends by itself
            self._log.error("renewing %s: %s", credential.id, error.message)
        return Failure(why, final)

    async def _told(self, credential: Credential, action: str, details: dict[str, Any]) -> None:
        """A row of an act. What has happened is not undone for want of one."""
        named = {"name": credential.name, "version": credential.version, "user": credential.user}
        try:
            await self._audit.record(None, action, f"credential:{credential.id}", named | details)
        except RingfenceError as error:
            self._log.error("not recorded: %s of %s: %s", action, credential.id, error.message)


def _end(stored: Stored) -> str:
    return stored.access.expires_at.isoformat(timespec="seconds") if stored.access is not None else ""


def _unavailable(credential: Credential, failure: Failure | None) -> Unavailable:
    why = failure.why if failure is not None else "what it was given has ended already"
    remedy = renewing.OWNER if failure is not None and failure.final else renewing.LATER
    what = "the refresh token was refused" if failure is not None and failure.final else "there is no access token now"
    return Unavailable(f"{what} for {credential.name!r}: {why}; {remedy}", remedy=remedy)
