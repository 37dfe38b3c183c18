"""The port of the audit (kernel.ports.Store has it). Implemented by host/store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Protocol

from ringfence.host.kernel.audit import Lane, Outcome
from ringfence.host.kernel.audit_check import Report
from ringfence.host.kernel.people import Actor


class Audit(Protocol):
    """Four lanes. What is written here is on disk, in this process's chain, when the call returns: do or release a thing
    only then. DiskFull, Unavailable: it is not, and the thing is not to be done. Invalid, TooLarge: details.

    Of `release`, `intent`, `traffic` and `outcomes` the callers will be the vault and egress; effects write their intents
    in the transaction of the ledger."""

    async def record(self, actor: Actor | None, action: str, subject: str, details: Mapping[str, Any]) -> None:
        """Lane act: what people, operators and the server did."""

    async def release(self, actor: Actor | None, subject: str, to: str, details: Mapping[str, Any]) -> None:
        """Lane release: `subject` (a credential, never its value) is about to be given to `to`. Unavailable also after
        5 s without an answer of the disk."""

    async def intent(self, actor: Actor | None, action: str, subject: str, details: Mapping[str, Any]) -> str:
        """Lane intent: a request that writes is about to go out. The id for `outcome`."""

    async def outcome(self, intent: str, outcome: Outcome, details: Mapping[str, Any]) -> None:
        """What became of it; again when more is known. NotFound."""

    def traffic(self, box: str, host: str, verdict: str, sent: int, received: int) -> None:
        """Lane traffic: in memory, bounded, no evidence. Never waits, never fails. Bytes."""

    def carried(self) -> Mapping[str, tuple[int, int]]:
        """Of the lane traffic: the bytes (sent, received) of each box since this was asked last."""

    async def page(
        self, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
    ) -> list[dict[str, Any]]:
        """Newest first, of the given lanes but traffic; behind the row with the id `before`. NotFound: no such row."""

    async def outcomes(self, intent: str) -> list[dict[str, Any]]:
        """What `outcome` was told of it, oldest first."""

    def seen(self, limit: int) -> dict[str, Any]:
        """Of the lane traffic: {"newest": [...], "totals": [...], "dropped": int}."""

    def state(self) -> dict[str, Any]:
        """{"ok", "chain" (this process's; "" before its first row), "signed" (its rows have MACs), "seen" (number of the row
        whose head is kept outside the database; 0: none)}. Not ok: a head could not be kept there."""

    async def sign(self) -> None:
        """Names the heads of other kernels' chains in this one, and keeps its own outside the database. Once in a while."""

    async def verify(self) -> Report:
        """Walks every chain."""

    async def cut(self, before: datetime, limit: int) -> int:
        """Retention: takes away at most `limit` rows that are older, and signs that it did. How many went."""
