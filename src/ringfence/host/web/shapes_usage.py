"""The JSON of what boxes used, of what a removal would take, and how a report becomes it. No behaviour here."""

from __future__ import annotations

from pydantic import BaseModel

from ringfence.host.kernel.life.usage import DayUse, gib_hours
from ringfence.host.web.ports_usage import UsageReport


class UsageShape(BaseModel):
    """A user's day of UTC; in a sum `day` and `user` are null. `active_seconds`: a command, terminal or run was at work;
    `running_seconds`: the box ran and did not stand still. `model_tokens`: of calls that ended on that day, as long as they are
    kept (retention.runs_days)."""

    day: str | None
    user: str | None
    tenant: str
    active_seconds: float
    running_seconds: float
    cpu_seconds: float
    memory_gib_hours: float
    disk_gib_hours: float
    egress_up_bytes: int
    egress_down_bytes: int
    model_tokens: int
    starts: int
    pauses: int


class UsageList(BaseModel):
    """Days from `first` to `last`, both included; one without a row had nothing to count."""

    first: str
    last: str
    rows: list[UsageShape]
    sum: UsageShape


class RemovalBox(BaseModel):
    """Bytes; -1: nobody could tell."""

    box: str
    observed: str
    disk_bytes: int
    inodes: int


class RemovalShape(BaseModel):
    """What goes: the box (its files with --purge, else they stay on the disk), live runs, tokens, credentials, what was lent,
    rules and bindings; threads whose only member the user is are read by nobody any more. What stays: shared threads with
    `messages` of the user in them, under the name of then; the audit, and what was used."""

    tenant: str
    user: str
    box: RemovalBox | None
    runs: list[str]
    tokens: int
    credentials: list[str]
    grants: list[str]
    bindings: int
    rules: int
    threads_alone: list[str]
    threads_shared: list[str]
    messages: int


def report(given: UsageReport) -> UsageList:
    rows = [_shape(given.tenant, each.day, each.name, [each]) for each in given.rows]
    return UsageList(first=given.first, last=given.last, rows=rows, sum=_shape(given.tenant, None, None, given.rows))


def _shape(tenant: str, day: str | None, user: str | None, days: list[DayUse]) -> UsageShape:
    """Summed as it was counted: sums of rounded numbers would differ from what the rows say."""
    amounts = [each.amount for each in days]
    return UsageShape(
        day=day,
        user=user,
        tenant=tenant,
        active_seconds=sum(each.active_ms for each in amounts) / 1000,
        running_seconds=sum(each.running_ms for each in amounts) / 1000,
        cpu_seconds=sum(each.cpu_ms for each in amounts) / 1000,
        memory_gib_hours=gib_hours(sum(each.memory_mib_ms for each in amounts)),
        disk_gib_hours=gib_hours(sum(each.disk_mib_ms for each in amounts)),
        egress_up_bytes=sum(each.egress_up for each in amounts),
        egress_down_bytes=sum(each.egress_down for each in amounts),
        model_tokens=sum(each.tokens for each in days),
        starts=sum(each.starts for each in days),
        pauses=sum(each.pauses for each in days),
    )
