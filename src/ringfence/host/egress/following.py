"""What other kernels on the store change in rules, bindings and credentials: in force here within about a second.

The store is asked each half second for what has changed since the last look, whoever changed it; what was not heard of for ten
seconds may have changed, and no worker goes on then. What does not count in the store is told to the audit. Must never believe
more of an answer than whose configuration is to be read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from ringfence.host.egress.chores import Chores
from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.rolls import BINDINGS, CREDENTIAL, RULES, Altered, Rolls

EVERY = 0.5  # seconds between two looks: a change is in force within one and the time that a worker takes
# Twenty looks. A database that is started anew or fails over is back within it; a worker would otherwise go on by rules that
# were taken back on another host for as long as this one cannot see it.
UNHEARD = 10.0
_LOOK = 5.0  # seconds that one look may take: a server that does not answer is not waited for
_MOST_TOLD = 100  # ids in one row of the audit


class Following:
    """`shared`: there may be other kernels. `people`: of the users here who are of a tenant. `reload`, `revoke`: as ports.Egress;
    `cut`: every worker ends, and the next reads for itself."""

    def __init__(
        self,
        rolls: Rolls,
        audit: Audit,
        chores: Chores,
        clock: Callable[[], float],
        *,
        shared: bool,
        people: Callable[[TenantId], Collection[UserId]],
        reload: Callable[[Collection[UserId] | None], Awaitable[None]],
        revoke: Callable[[str], Awaitable[None]],
        cut: Callable[[str], None],
    ) -> None:
        self._rolls, self._audit, self._chores, self._clock, self._shared = rolls, audit, chores, clock, shared
        self._people, self._reload, self._revoke, self._cut = people, reload, revoke, cut
        self._number: int | None = None
        self._heard = 0.0
        self._late: dict[str, float] = {}  # what could not be read, since when
        self._begun = False
        self._one = asyncio.Lock()
        self._log = logging.getLogger("ringfence.egress")

    async def begin(self) -> None:
        """Before anything is read that changes are to be heard of. Idempotent. RingfenceError: the store does not answer."""
        async with self._one:
            if self._begun:
                return
            if self._shared:
                self._number, _ = await self._rolls.news(None)
            self._heard, self._begun = self._clock(), True
            self._chores.go(self._follow(), "news of the way out")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self._tell()
            if self._shared:
                await self._looked()

    async def _looked(self) -> None:
        """Whatever kind of error ends a look, nothing was heard by it, and the next one comes."""
        try:
            await self._look()
        except Exception as error:
            if not isinstance(error, (RingfenceError, TimeoutError)):
                self._log.exception("a look at what other kernels change ended by an error")
            unheard = self._clock() - self._heard
            if unheard > UNHEARD:
                self._log.error("what other kernels change is not known since %.0f s: %s", unheard, error)
                self._cut("what other kernels change is not known")

    async def _look(self) -> None:
        async with asyncio.timeout(_LOOK):
            number, changed = await self._rolls.news(self._number)
        self._number, self._heard = number, self._clock()
        await self._apply({*changed, *self._late})

    async def _apply(self, changed: Collection[str]) -> None:
        """Values first: what stands for them is no good without. What fails has ended the worker that it was for, so nothing goes on
        by what was before; it is tried again for a while, for what commands are given is read with it."""
        for of in sorted(changed, key=lambda each: not each.startswith(CREDENTIAL)):
            try:
                await self._changed(of)
            except Exception as error:
                if not isinstance(error, RingfenceError):  # a fault of ours: nobody knows how far it came
                    self._cut("what another kernel has changed could not be put in force")
                if of not in self._late:
                    self._log.warning("%s were changed by another kernel and cannot be read: %s", of, error)
                if self._clock() - self._late.setdefault(of, self._clock()) > UNHEARD:
                    del self._late[of]
            else:
                self._late.pop(of, None)

    async def _changed(self, of: str) -> None:
        kind, _, whose = of.partition(":")
        if of.startswith(CREDENTIAL):
            await self._revoke(whose)
        elif f"{kind}:" in (RULES, BINDINGS):
            people = None if not whose else {UserId(whose), *self._people(TenantId(whose))}
            await self._reload(people)

    async def _tell(self) -> None:
        for found in self._rolls.noticed():
            self._log.error("%s: %s", found.of, found.why)
            with suppress(Exception):  # the log has it, and `vault status`
                await self._audit.record(None, "outward.altered", f"roll:{found.of}", _details(found))


def _details(found: Altered) -> dict[str, object]:
    return {"why": found.why, "odd": list(found.odd[:_MOST_TOLD]), "lost": list(found.lost[:_MOST_TOLD])}
