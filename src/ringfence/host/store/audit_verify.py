"""Walks every chain of the audit and every signature of one chain about another. Reads only.

Page by page, each from a snapshot of its own: rows that come meanwhile are walked too, nobody waits for a long read, and
memory is that of a page. What is known of a chain when it has been walked is one finding at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import FIRST_CHAIN, OPEN, AuditRow, Head, Keys, Lane
from ringfence.host.kernel.audit_check import UNREADABLE, ChainCheck, Finding, Named, Report, Wrong, judged, names_in
from ringfence.host.store import audit_rows
from ringfence.host.store.audit_foreign import elsewhere
from ringfence.host.store.audit_rows import Reader
from ringfence.host.store.audit_witness import Witness

RESTORED = "store.restored"  # the act that says, under our key, that an older database was put in place on purpose
MAX_NOTES = 100
_PAGE = 200  # rows at once: 6 ms of the database's thread, 50 MiB if all are as large as they may be
_CHAINS = 200  # heads at once


@dataclass
class Walk:
    database: Reader
    keys: Keys
    witnesses: Sequence[Witness] = ()
    installation: str = ""  # this one; empty: every chain is to be ours
    report: Report = field(default_factory=Report)
    _declared: int = 0  # the newest generation that a restore's record names
    _found_older: list[tuple[str, Any]] = field(default_factory=list)  # (row, what a kernel found when it began)

    async def run(self) -> Report:
        """Unavailable and the other errors of a read; what is wrong with the audit is in the report."""
        if await self._first_alone():
            await self._chain(FIRST_CHAIN)
        after = ""
        while heads := await self.database.read(_heads(after)):
            for head in heads:
                await self._chain(head.chain)
            after = heads[-1].chain
        await self._orphans()
        self._older()
        await self._witnessed()
        return self.report

    async def _first_alone(self) -> bool:
        """An older release's chain that no kernel of this one has closed yet."""

        def question(connection: Connection) -> bool:
            head = audit_rows.find_head(connection, FIRST_CHAIN)
            return head is not None and not head.mac and head.closed_by is None

        return await self.database.read(question)

    async def _chain(self, chain: str) -> None:
        check: ChainCheck | None = None
        more = True
        while more:

            def step(connection: Connection, check: ChainCheck | None = check) -> tuple[ChainCheck, bool]:
                return self._step(connection, chain, check)

            check, more = await self.database.read(step)
        if check is None:
            return
        self.report.chains += 1
        found = check.end()
        whose = None
        if found is not None and found.wrong is Wrong.KEY:
            whose = await self._whose(check.head)
        if whose is None:
            self.report.add(found)
        else:
            self.report.leave(check.head, whose)
        if check.head.closed_by is None:
            self.report.open.append(check.head)

    async def _whose(self, head: Head) -> str | None:
        """The other installation's name, of a chain by a key that is not here; None: it is to be ours."""
        if any(witness.chain == head.chain for witness in self.witnesses):
            return None  # this vault has kept its head: it was made here
        return await self.database.read(lambda connection: elsewhere(connection, head, self.installation))

    def _step(self, connection: Connection, chain: str, check: ChainCheck | None) -> tuple[ChainCheck, bool]:
        """One page, with the head of the same moment: at the last page they have to agree. In the database's thread."""
        head = audit_rows.find_head(connection, chain)
        if check is None:
            if head is None:  # it went while we looked at its neighbours
                head = Head(chain, 0, "", 0, "", False, None, 0, "", "")
            check = ChainCheck(head, self.keys)
        elif head is not None and head != check.head:
            check = _moved(check, head, self.keys)
        try:
            rows = audit_rows.page(connection, chain, check.seq, _PAGE)
        except UNREADABLE:
            return self._one(connection, chain, check)
        for row in rows:
            check.feed(row)
            if check.done:
                break
            self._counted(connection, check, row)
        return check, len(rows) == _PAGE and not check.done

    def _one(self, connection: Connection, chain: str, check: ChainCheck) -> tuple[ChainCheck, bool]:
        """The same of a page with a row that cannot be read: row by row, up to that one."""
        try:
            rows = audit_rows.page(connection, chain, check.seq, 1)
        except UNREADABLE:
            check.unreadable()
            return check, False
        for row in rows:
            check.feed(row)
            if not check.done:
                self._counted(connection, check, row)
        return check, bool(rows) and not check.done

    def _counted(self, connection: Connection, check: ChainCheck, row: AuditRow) -> None:
        self.report.rows += 1
        if check.finding is None:  # what a chain says whose head nobody vouches for accuses no other
            self._look_at(connection, row)

    def _look_at(self, connection: Connection, row: AuditRow) -> None:
        """A row that is genuine as far as its chain goes."""
        for named in names_in(row):
            self.report.add(_judged(connection, named))
        if row.lane == Lane.CHAIN and row.action == OPEN:
            for name in ("refused", "older_release"):
                if told := row.details.get(name):
                    self._note(f"{row.id}: {name.replace('_', ' ')}: {told}")
            if (told := row.details.get("rolled_back")) and len(self._found_older) < MAX_NOTES:
                self._found_older.append((row.id, told))
        if row.action == RESTORED and isinstance(number := row.details.get("generation"), int):
            self._declared = max(self._declared, number)
            self._note(f"{row.id}: the store was restored: generation {number}")

    def _note(self, text: str) -> None:
        if len(self.report.notes) < MAX_NOTES:
            self.report.notes.append(text[:1000])

    async def _orphans(self) -> None:
        """Rows of chains that were never opened, or whose head was taken away."""
        chain: str | None = ""
        while chain is not None:
            chain = await self.database.read(_next(chain))
            if chain is None:
                return
            if await self.database.read(_missing(chain)):
                self.report.add(Finding(chain, 1, Wrong.UNKNOWN, "rows of a chain that has no head"))

    def _older(self) -> None:
        """What kernels found at their beginning. The record of a restore comes after the first of them, so only now is it
        known which were declared."""
        for row, told in self._found_older:
            for one in told if isinstance(told, list) else [told]:
                seen = one[3] if isinstance(one, list) and len(one) > 3 else None  # of which generation the witness was
                words = one[:3] if isinstance(one, list) else one
                if isinstance(seen, int) and seen < self._declared:
                    self._note(
                        f"{row}: rolled back by a restore that was declared (generation {self._declared}): {words}"
                    )
                else:
                    self._note(f"{row}: rolled back, and no restore was declared: {words}")

    async def _witnessed(self) -> None:
        for witness in self.witnesses:
            found = await self.database.read(_judgement(witness))
            if found is None:
                continue
            if witness.generation < self._declared:
                declared = f"a restore that was declared (generation {self._declared})"
                self._note(f"{witness.chain}: older than its witness of generation {witness.generation}, by {declared}")
            else:
                what = f"the database is older than what was seen: {found.what}"
                self.report.add(Finding(found.chain, found.seq, Wrong.ROLLED_BACK, what))


def _moved(check: ChainCheck, head: Head, keys: Keys) -> ChainCheck:
    """The walk goes on under the head of now: the chain grew, or was closed."""
    fresh = ChainCheck(head, keys)
    fresh.seq, fresh.hash = max((check.seq, check.hash), (fresh.seq, fresh.hash))
    return fresh


def _heads(after: str) -> Callable[[Connection], list[Head]]:
    return lambda connection: audit_rows.heads_after(connection, after, _CHAINS)


def _judged(connection: Connection, named: Named) -> Finding | None:
    head = audit_rows.find_head(connection, named.chain)
    return judged(named, head, audit_rows.hash_at(connection, named.chain, named.seq))


def judge(connection: Connection, witness: Witness) -> Finding | None:
    """What the database lacks of what was seen outside it."""
    return _judged(connection, witness.named)


def _judgement(witness: Witness) -> Callable[[Connection], Finding | None]:
    return lambda connection: judge(connection, witness)


def _next(chain: str) -> Callable[[Connection], str | None]:
    return lambda connection: audit_rows.next_chain(connection, chain)


def _missing(chain: str) -> Callable[[Connection], bool]:
    return lambda connection: audit_rows.find_head(connection, chain) is None
