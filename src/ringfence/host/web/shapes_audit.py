"""The JSON of the audit's routes as types. No behaviour here."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

LaneName = Literal["act", "release", "intent", "chain"]  # of rows: traffic is none


class AuditRowShape(BaseModel):
    """`actor`: who, null for the server. `details` and `actor` hold names and ids, never a secret."""

    id: str
    at: datetime
    lane: LaneName
    actor: dict[str, Any] | None
    action: str
    subject: str
    ref: str | None
    details: dict[str, Any]
    chain: str
    seq: int
    previous: str
    hash: str


class AuditList(BaseModel):
    rows: list[AuditRowShape]


class TrafficShape(BaseModel):
    """Bytes; what one process remembers, no evidence."""

    at: datetime
    box: str
    host: str
    verdict: str
    sent: int
    received: int


class TrafficTotal(BaseModel):
    box: str
    host: str
    verdict: str
    requests: int
    sent: int
    received: int


class TrafficList(BaseModel):
    newest: list[TrafficShape]
    totals: list[TrafficTotal]
    dropped: int


class FindingShape(BaseModel):
    """The first bad row of a chain; `seq` 0: the chain as a whole."""

    chain: str
    seq: int
    wrong: str
    what: str


class HeadShape(BaseModel):
    chain: str
    seq: int
    hash: str


class UncheckedShape(BaseModel):
    """Chains of another installation whose key is not here."""

    key: str
    installation: str
    chains: int
    says: str


class AuditReport(BaseModel):
    ok: bool
    rows: int
    chains: int
    findings: list[FindingShape]
    notes: list[str]
    open: list[HeadShape]
    unchecked: list[UncheckedShape]
