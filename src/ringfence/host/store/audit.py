"""kernel.auditing.Audit on the database: this process's chain, what is read of all chains, and the traffic in memory.

An answer means that the row is on disk. Whoever is to do or release something afterwards does so only then: no room, no
release. Must never be told a secret: subjects and details name things.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import Head, Lane, Outcome, parse_row_id, row_id
from ringfence.host.kernel.audit_check import Finding, Report
from ringfence.host.kernel.errors import NotFound, Unavailable
from ringfence.host.kernel.people import Actor
from ringfence.host.store import audit_cut, audit_rows
from ringfence.host.store.audit_chain import Chain, Draft
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.audit_traffic import Traffic
from ringfence.host.store.audit_verify import Walk, judge
from ringfence.host.store.audit_witness import Witness, keeper
from ringfence.host.store.database import Database
from ringfence.host.store.text import checked_json, cleaned, storable
from ringfence.host.store.transaction import Tx

T = TypeVar("T")
RELEASE_SECONDS = 5.0  # a disk that takes longer is as good as full: what is released waits for it
_MOST_TOLD = 20  # findings of the witnesses in one row


def actor_json(actor: Actor | None) -> dict[str, Any] | None:
    """What is kept of an actor."""
    if actor is None:
        return None
    user = actor.user
    return {
        "user": user.id if user else None,
        "name": user.name if user else None,
        "tenant": user.tenant_name if user else None,
        "operator": actor.operator,
        "via": actor.via,
        "impersonated": actor.impersonated,
    }


def drafted(
    lane: Lane, actor: Actor | None, action: str, subject: str, details: Mapping[str, Any], ref: str | None = None
) -> Draft:
    """For who writes in a transaction of his own: `audit.chain.append(tx, drafted(...))`. Invalid, TooLarge: details
    that are no JSON, or more than 256 KiB of it."""
    kept = checked_json(details, "the details of an audit record")
    return Draft(lane, actor_json(actor), cleaned(action), cleaned(subject), kept, ref)


def release_draft(actor: Actor | None, subject: str, to: str, details: Mapping[str, Any]) -> Draft:
    return drafted(Lane.RELEASE, actor, "release", subject, {**details, "to": cleaned(to)})


async def in_time(writing: Awaitable[T]) -> T:
    """Of a transaction with a row of the release lane. Unavailable: nothing is released."""
    try:
        async with asyncio.timeout(RELEASE_SECONDS):
            return await writing
    except TimeoutError:
        raise Unavailable(
            f"the audit took longer than {RELEASE_SECONDS:.0f} s: nothing is released",
            remedy="look at the volume of the database: ringfence status",
        ) from None


class SqlAudit:
    def __init__(self, database: Database, signer: Signer | None = None) -> None:
        signer = signer or Signer()
        self._database, self._keys = database, signer.keys
        self.chain = Chain(signer.worker, signer.keys)
        self._traffic = Traffic(database.world.clock)
        self._witnesses = keeper(signer)
        self._witnessed: tuple[str, int] | None = None
        self._unkept = False  # the last head that was to be kept outside the database was not
        self._log = logging.getLogger("ringfence.audit")

    # --- what is recorded ------------------------------------------------------------------------------------------

    async def record(self, actor: Actor | None, action: str, subject: str, details: Mapping[str, Any]) -> None:
        await self._write(drafted(Lane.ACT, actor, action, subject, details))

    async def release(self, actor: Actor | None, subject: str, to: str, details: Mapping[str, Any]) -> None:
        await in_time(self._write(release_draft(actor, subject, to, details)))

    async def intent(self, actor: Actor | None, action: str, subject: str, details: Mapping[str, Any]) -> str:
        head = await self._write(drafted(Lane.INTENT, actor, action, subject, details))
        return row_id(head.chain, head.seq)

    async def outcome(self, intent: str, outcome: Outcome, details: Mapping[str, Any]) -> None:
        chain, seq = parse_row_id(intent)
        kept = checked_json({**details, "outcome": outcome.value}, "the details of an audit record")

        def work(tx: Tx) -> None:
            row = audit_rows.find_row(tx.connection, chain, seq) if storable(chain) else None
            if row is None or row.lane != Lane.INTENT or row.ref is not None:
                raise NotFound(f"no such intent: {intent!r}", remedy="ringfence audit ls --lane intent")
            self.chain.append(tx, Draft(Lane.INTENT, None, "outcome", row.subject, kept, intent))

        await self._database.write(work)

    def traffic(self, box: str, host: str, verdict: str, sent: int, received: int) -> None:
        self._traffic.add(box, host, verdict, sent, received)

    def carried(self) -> Mapping[str, tuple[int, int]]:
        return self._traffic.carried()

    async def _write(self, draft: Draft) -> Head:
        return await self._database.write(lambda tx: self.chain.append(tx, draft))

    # --- what is read ----------------------------------------------------------------------------------------------

    async def page(
        self, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
    ) -> list[dict[str, Any]]:
        return await audit_rows.page_of(self._database, lanes, since, before, limit)

    async def outcomes(self, intent: str) -> list[dict[str, Any]]:
        found = await self._database.read(lambda connection: audit_rows.outcomes(connection, intent))
        return [row.as_json() for row in found]

    def seen(self, limit: int) -> dict[str, Any]:
        newest, totals = self._traffic.newest(limit), self._traffic.totals()
        return {"newest": newest, "totals": totals, "dropped": self._traffic.dropped}

    def state(self) -> dict[str, Any]:
        seen = self._witnessed[1] if self._witnessed is not None else 0
        return {"ok": not self._unkept, "chain": self.chain.name, "signed": bool(self._keys.mine), "seen": seen}

    async def verify(self) -> Report:
        return await Walk(
            self._database, self._keys, await self._all_witnesses(), self._database.world.installation
        ).run()

    # --- the chain's own -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begins this process's chain: what it finds of the others is its first row. Idempotent."""
        witnesses = await self._all_witnesses()
        found = await self._database.read(lambda connection: [judge(connection, each) for each in witnesses])
        wrong = [(one, finding) for one, finding in zip(witnesses, found, strict=True) if finding is not None]
        told = [[each.chain, each.seq, each.what, one.generation] for one, each in wrong[:_MOST_TOLD]]
        more = {"rolled_back": told} if told else {}
        head = await self._database.write(lambda tx: self.chain.open(tx, more))
        self._log_older(head.generation, told)
        await self._keep(head)
        await self._tidy(witnesses, found)

    def _log_older(self, generation: int, told: list[list[Any]]) -> None:
        for chain, _, what, seen in told:
            if seen < generation:
                how = f"restored as generation {generation}, if `ringfence audit verify` says so"
                self._log.warning("the database is older than what was seen of it (%s): chain %s, %s", how, chain, what)
            else:
                self._log.error("the database is older than what was seen of it: chain %s, %s", chain, what)

    async def sign(self) -> None:
        """Names what the other chains have come to since, and keeps what this one has outside the database. Once in a
        while."""
        head, names = await self._database.write(self.chain.sign)
        self.chain.signed(names)
        await self._keep(head)

    async def end(self) -> None:
        """The last row of the chain: nothing of this process follows. Idempotent."""
        if not self.chain.name:
            return
        head = await self._database.write(self.chain.end)
        if head is not None:
            await self._keep(head)

    async def cut(self, before: datetime, limit: int) -> int:
        return await self._database.write(lambda tx: audit_cut.cut(tx, self.chain, before, limit))

    # --- witnesses -------------------------------------------------------------------------------------------------

    async def _all_witnesses(self) -> list[Witness]:
        if self._witnesses is None:
            return []
        return await asyncio.to_thread(self._witnesses.all)

    async def _keep(self, head: Head) -> None:
        if self._witnesses is None or self._witnessed == (head.chain, head.seq):
            return
        try:
            await asyncio.to_thread(self._witnesses.keep, head)
            self._witnessed, self._unkept = (head.chain, head.seq), False
        except OSError as error:
            self._unkept = True
            self._log.error("the head of the audit is not kept outside the database: %s", error)

    async def _tidy(self, witnesses: list[Witness], found: list[Finding | None]) -> None:
        """What says the same as a closed chain is covered by the witness of the chain that closed it."""
        if self._witnesses is None or self._witnessed is None:
            return
        for witness, finding in zip(witnesses, found, strict=True):
            head = await self._database.read(_head(witness.chain))
            if finding is None and head is not None and head.closed_by is not None:
                await asyncio.to_thread(self._witnesses.drop, witness.chain)


def _head(chain: str) -> Callable[[Connection], Head | None]:
    return lambda connection: audit_rows.find_head(connection, chain)
