"""The row of the audit that says who put a store back, written by the transaction that puts it back.

A store that is older than what was seen of it is a forgery unless this row is in it, so there must never be a moment at which
one is there without the other: neither a kill nor a full disk may come in between.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from ringfence.host.kernel.audit import Head, Lane
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.ports import Clock, Ids
from ringfence.host.store.audit import drafted
from ringfence.host.store.audit_chain import Chain
from ringfence.host.store.audit_keys import Signer
from ringfence.host.store.audit_verify import RESTORED
from ringfence.host.store.audit_witness import keeper
from ringfence.host.store.dialect import Dialect, LeaseClock
from ringfence.host.store.transaction import Tx, World


@dataclass(frozen=True, slots=True)
class Declarer:
    """Who puts a store back, and how it is signed."""

    signer: Signer
    clock: Clock
    ids: Ids
    installation: str
    by: str  # who asks
    file: str  # that is put back

    def declare(self, connection: Connection, dialect: Dialect, facts: Mapping[str, Any]) -> Head | None:
        """A chain of its own, from its first row to its last. Its head; inside the caller's transaction."""
        clock = LeaseClock(self.clock)
        tx = Tx(
            connection, World(dialect, self.clock, clock, Onward(self.clock), self.ids, installation=self.installation)
        )
        chain = Chain(self.signer.worker, self.signer.keys)
        # How many findings, not each: a row holds 256 KiB.
        details = {**facts, "findings": len(facts["findings"]), "by": self.by, "file": self.file}
        chain.append(tx, drafted(Lane.ACT, None, RESTORED, "store", details))
        return chain.end(tx)

    def witness(self, head: Head | None) -> None:
        """Keeps it outside the database, when the store is put back. Blocks. The next kernel keeps its own of the same store:
        one that cannot be written is said, and undoes nothing."""
        witnesses = keeper(self.signer)
        if head is None or witnesses is None:
            return
        try:
            witnesses.keep(head)
        except OSError as error:
            log = logging.getLogger("ringfence.audit")
            log.error("the head of the audit is not kept outside the database: %s", error)
