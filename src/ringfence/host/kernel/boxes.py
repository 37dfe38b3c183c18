"""Boxes: nouns, limits, and the table of what may follow what.

Intent (`desired`, the user's and operator's) and observation (`observed`, the driver's word) are stored apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.ids import BoxId, TenantId, UserId


class BoxKind(StrEnum):
    HOME = "home"  # persistent, exactly one for each (tenant, user)
    RUN = "run"
    SKILL = "skill"
    SESSION = "session"
    SCRATCH = "scratch"
    PROBE = "probe"


class Desired(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"
    REMOVED = "removed"


class Observed(StrEnum):
    ABSENT = "absent"  # nothing provisioned yet
    STOPPED = "stopped"  # tree and ids, no process
    STARTING = "starting"
    RUNNING = "running"
    LOST = "lost"  # was running, is not; next ensure starts it


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes; `cpu_milli` 1000 = one core. The spawner has its own bounds beside these."""

    memory: int = 1 << 30
    pids: int = 512
    cpu_milli: int = 2000
    nofile: int = 65536
    fsize: int = 8 << 30
    shm: int = 256 << 20
    run: int = 32 << 20


@dataclass(frozen=True, slots=True)
class Box:
    id: BoxId
    tenant: TenantId
    user: UserId
    kind: BoxKind
    driver: str
    desired: Desired
    observed: Observed
    uid: int  # host id of the box's processes, 0 until provisioned
    identity: dict[str, Any] | None  # the driver's record of the running PID 1; opaque here
    limits: Limits
    image: str  # digest of what /usr is
    generation: int  # +1 at each start: a signal that names an older one is stale
    created_at: datetime
    started_at: datetime | None
    last_active_at: datetime | None
