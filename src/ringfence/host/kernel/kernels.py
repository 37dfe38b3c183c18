"""Kernel processes that work on one store, and the generations of a store: nouns and who stands in whose way. Pure.

A kernel says hello at its start and every HELLO_EVERY_SECONDS, and bye at its end. One that was killed says nothing: it
counts as there until LATELY_SECONDS after its last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ringfence.host.kernel.runs import LEASE_SECONDS

HELLO_EVERY_SECONDS = 30.0
LATELY_SECONDS = 120.0  # four hellos: three may be lost
# An installation without a word for so long is gone, for whoever wants a run of its boxes cancelled: two hellos, one may be
# late. Not for the redrive of its runs: that is always its own.
GONE_SECONDS = 2 * LEASE_SECONDS
# The worker of a run whose box has another tree, or may have gone on since the backup that has the run: nobody's.
RESTORED = "restored"
# A restored run's epochs begin so much higher for each generation: more than any run was ever claimed and adopted, and
# 2 ** 20 restores fit below 2 ** 53, where JSON numbers end. Whoever acts under an epoch of before is StaleEpoch.
EPOCH_JUMP = 1 << 32


@dataclass(frozen=True, slots=True)
class Kernel:
    worker: str  # id of the process, new at each start
    version: str
    schema_from: str  # the oldest revision of the schema that it runs on
    schema_to: str  # the newest that it knows
    installation: str
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None  # None: at work, or killed


class Kernels(Protocol):
    async def hello(self, worker: str, version: str, installation: str) -> Kernel:
        """Keeps the row, made at the first word. Durable when it returns."""

    async def bye(self, worker: str) -> None:
        """Idempotent."""

    async def generation(self) -> int:
        """Of the store: 1, and one more with each restore."""


def in_the_way(kernels: Sequence[Kernel], now: datetime, revision: str) -> list[Kernel]:
    """Those that may be at work and do not know `revision`, a contraction: it would take away what they need."""
    return [kernel for kernel in at_work(kernels, now) if kernel.schema_to < revision]


def at_work(kernels: Sequence[Kernel], now: datetime) -> list[Kernel]:
    return [
        kernel
        for kernel in kernels
        if kernel.ended_at is None and (now - kernel.seen_at).total_seconds() < LATELY_SECONDS
    ]
