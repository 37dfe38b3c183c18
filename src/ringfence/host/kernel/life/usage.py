"""What boxes use, as values: from what is seen of a box now and then to amounts of a day. Pure.

Amounts are counted by the monotonic clock, which is one for all processes of a boot and which nobody sets, and filed under the day
of the wall clock: a clock that jumps files an amount under the wrong day, and never makes one negative or too large (F26). CPU
time is the kernel's own counter, which begins with the box's start; a gauge is how far it is counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Protocol

from ringfence.host.kernel.boxes import Box
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.ids import BoxId, TenantId, UserId

DEFAULT_DAYS = 30  # shown when nobody says which
MOST_DAYS = 3660  # of one question: ten years
MOST_ROWS = 50_000  # of one answer: some 15 MB of JSON
DAY_MS = 86_400_000
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MIB_HOUR = 3_600_000 * 1024  # MiB times ms in a GiB times an hour
_REMEDY = "for example --from 2026-01-01 --to 2026-01-31"


@dataclass(frozen=True, slots=True)
class Amount:
    """Times in ms, egress in bytes. Names are those of the columns of box_days."""

    active_ms: int = 0
    running_ms: int = 0
    cpu_ms: int = 0
    memory_mib_ms: int = 0
    disk_mib_ms: int = 0
    egress_up: int = 0
    egress_down: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(*(getattr(self, name) + getattr(other, name) for name in NAMES))

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in NAMES)


NAMES = tuple(field.name for field in fields(Amount))


@dataclass(frozen=True, slots=True)
class Gauge:
    """How far a box is counted."""

    at_ms: int  # monotonic
    of: str  # which boot, a colon, and which start of the box; nothing behind the colon when it did not run
    cpu_usec: int = 0  # of the counter, so much is counted


@dataclass(frozen=True, slots=True)
class Look:
    """A box as it is seen. Bytes."""

    at_ms: int  # monotonic
    of: str = ":"  # as Gauge.of
    frozen: bool = False
    cpu_usec: int = 0
    memory: int = 0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class Metered:
    """A box and how far it is counted; None: never yet."""

    box: Box
    gauge: Gauge | None


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be written at once. `id`: by which the store knows one that it has written already, when nobody heard that."""

    id: str
    amounts: Mapping[tuple[str, BoxId], Amount]  # by day and box
    gauges: Mapping[BoxId, Gauge]


@dataclass(frozen=True, slots=True)
class DayUse:
    """One user's day. `name`: of then, when they are removed."""

    day: str
    user: UserId
    name: str
    amount: Amount
    starts: int
    pauses: int
    tokens: int  # of models


class Usage(Protocol):
    """What boxes used. Implemented by the store."""

    async def looked_at(self, *, all_of_them: bool) -> list[Metered]:
        """Those that run as far as the store knows, or all that are provisioned."""

    async def gauge(self, box: BoxId) -> Gauge | None: ...
    async def add(self, batch: Batch) -> None:
        """In one transaction. A batch that was written already changes nothing."""

    async def days(self, tenant: TenantId, user: UserId | None, first: str, last: str, limit: int) -> list[DayUse]:
        """Sorted by day and name; `limit` and one more, when there are more. `user` None: of everybody, who is removed too."""


def counted(before: Gauge | None, look: Look, most_ms: int) -> tuple[Amount, Gauge, int]:
    """(what was used between the two, how far the box is counted now, over how many ms). `most_ms`: how long, at most, the box
    may have run unseen: since its start, or the last look at all boxes that run."""
    boot, _, start = look.of.partition(":")
    passed = most_ms  # nothing else is known of one that was never counted, or in another boot, whose clock began anew
    if before is not None and before.of.partition(":")[0] == boot:
        passed = max(0, look.at_ms - before.at_ms)
    same = before is not None and before.of == look.of
    up = 0 if not start else passed if same else min(passed, most_ms)
    since = before.cpu_usec if same and before is not None else 0
    cpu_ms = max(0, look.cpu_usec - since) // 1000 if start else 0
    amount = Amount(
        running_ms=0 if look.frozen else up,
        cpu_ms=cpu_ms,
        memory_mib_ms=(max(0, look.memory) * up) >> 20,  # what stands still keeps its memory
        disk_mib_ms=(max(0, look.disk) * passed) >> 20,
    )
    return amount, Gauge(look.at_ms, look.of, since + cpu_ms * 1000), up or passed


def by_day(amount: Amount, passed_ms: int, wall: datetime) -> dict[str, Amount]:
    """Split over the days of UTC that the `passed_ms` before `wall` fall into, in proportion; nothing is lost by rounding."""
    moment = wall.astimezone(UTC)
    today = moment.date()
    into = int(timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second).total_seconds()) * 1000
    ends, left, room = [0], max(0, passed_ms), into + moment.microsecond // 1000
    while left > room and len(ends) < min(MOST_DAYS, today.toordinal()):
        ends.append(ends[-1] + room)
        left, room = left - room, DAY_MS
    ends.append(ends[-1] + left)
    days = ((today - timedelta(days=back)).isoformat() for back in range(len(ends) - 1))
    return {day: part for day, part in zip(days, _shares(amount, ends), strict=True) if part}


def _shares(amount: Amount, ends: Sequence[int]) -> list[Amount]:
    """`ends`: where each share ends, of the last one as the whole; from 0 on. Of no time at all the last has all."""
    whole = ends[-1]
    if not whole:
        return [Amount()] * (len(ends) - 2) + [amount]
    upto = [Amount(*(getattr(amount, name) * end // whole for name in NAMES)) for end in ends]
    return [
        Amount(*(getattr(after, name) - getattr(before, name) for name in NAMES)) for before, after in pairwise(upto)
    ]


def span(first: str | None, last: str | None, today: date) -> tuple[str, str]:
    """The days that are asked for, both of them included. Invalid: no days, an end before the beginning, too many."""
    end = _day("to", last) if last is not None else today if first is None else max(today, _day("from", first))
    begin = _day("from", first) if first is not None else date.fromordinal(max(1, end.toordinal() - DEFAULT_DAYS + 1))
    if begin > end:
        raise Invalid(f"from {begin} is after to {end}", remedy=_REMEDY)
    if (end - begin).days >= MOST_DAYS:
        raise Invalid(f"{(end - begin).days + 1} days are asked for; the limit is {MOST_DAYS}", remedy=_REMEDY)
    return begin.isoformat(), end.isoformat()


def _day(name: str, given: str) -> date:
    """2026-01-31, and none of the other forms of ISO 8601: days are compared as text."""
    try:
        if _DAY.fullmatch(given):
            return date.fromisoformat(given)
    except ValueError:
        pass
    raise Invalid(f"{name} {given[:40]!r} is no day", remedy=_REMEDY)


def gib_hours(mib_ms: int) -> float:
    return round(mib_ms / _MIB_HOUR, 6)
