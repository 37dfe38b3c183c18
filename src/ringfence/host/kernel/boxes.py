"""Boxes: nouns, limits, and the table of what may follow what.

Intent (`desired`, the user's and operator's) and observation (`observed`, the driver's word) are stored apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.ids import BoxId, TenantId, UserId


class BoxKind(StrEnum):
    HOME = "home"  # persistent, exactly one for each (tenant, user)
    RUN = "run"
    SKILL = "skill"  # a jail beside its user's home box: no HOME, no network, a small tree of its own (decision 0030)
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


class Rest(StrEnum):
    """How a box rests, beside what the driver sees of it."""

    NONE = ""
    PAUSED = "paused"  # while it is observed running: every process stands still
    ARCHIVED = "archived"  # while it is stopped: its tree is packed, and unpacked by the next start


BLOCK = 4096  # bytes: the least that a file with any content takes
FOLIO = 2 << 20  # the largest: a huge page of x86_64


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
    disk: int = 8 << 30  # of home, workspace and tmp together
    inodes: int = 500_000


# Of a box that runs they hold from its next start on: a process keeps its own, a tmpfs the size that it was made with.
FROM_NEXT_START = ("nofile", "fsize", "shm", "run")


def effective(limits: Limits, together: Mapping[str, int]) -> dict[str, int]:
    """What holds instead of what is set, where that differs: /dev/shm and /run take half and an eighth of what commands
    may use at most (spawner/limits.py, which a test holds to this), and no box more than all boxes `together`."""
    commands = limits.memory - max(64 << 20, limits.memory // 16)
    most = {**together, "shm": commands // 2, "run": commands // 8}
    return {name: most[name] for name, value in asdict(limits).items() if name in most and value > most[name]}


# Of a skill's jail, beside its user's box and out of the same parent: an eighth to a half of a box's.
JAIL_LIMITS = Limits(
    memory=512 << 20,
    pids=128,
    cpu_milli=1000,
    nofile=4096,
    fsize=1 << 30,
    shm=64 << 20,
    run=1 << 20,  # the least: a jail has no /run
    disk=256 << 20,
    inodes=20_000,
)


@dataclass(frozen=True, slots=True)
class LimitsAll:
    """Of all boxes together, so that host and server answer whatever boxes do. 0: by what the host has."""

    memory: int = 0  # bytes
    pids: int = 0
    cpu_milli: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """What one box may have the server work through; bursts of two seconds' worth."""

    output: int = 32 << 20  # bytes of command output a second; 0 = as fast as it is read
    events: int = 20  # of one run a second: live text of tools, progress


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Of a box's tree, in bytes and inodes; -1: not known."""

    by: str  # what bounds it: image, quota, accounting (it is only counted)
    used: int = -1
    free: int = -1  # that the box could still write
    inodes: int = -1
    inode_limit: int = 0  # that holds now, 0: none
    problem: str = ""  # why it cannot be used
    holder: str = ""  # who of the host keeps it so: for operators

    @property
    def known(self) -> bool:
        return self.used >= 0

    @property
    def full(self) -> bool:
        """Whether a write of one more block, or one more file, would fail or be too much."""
        return self.known and (self.free < BLOCK or 0 < self.inode_limit <= self.inodes)

    @property
    def short(self) -> bool:
        """Whether a write may have failed for want of room: ext4 takes one a folio at a time, all of it or nothing."""
        return self.full or (self.known and self.free < FOLIO)


@dataclass(frozen=True, slots=True)
class Sight:
    """What a driver sees of a box now."""

    state: Observed  # absent, stopped or running
    identity: dict[str, Any] | None
    uid: int
    pids: int
    memory_bytes: int
    memory_peak_bytes: int
    memory_limit_bytes: int
    oom_kills: int
    disk: DiskUse | None = None  # None: this driver cannot tell
    frozen: bool = False
    cpu_usec: int = 0  # that its processes have used since its start; 0: also where nobody can tell


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
    image: str  # digest of what /usr is, or was last
    generation: int  # +1 at each start: a signal that names an older one is stale
    created_at: datetime
    started_at: datetime | None
    last_active_at: datetime | None
    installation: str = ""  # where its tree is; "": there is only one
    rest: Rest = Rest.NONE
    rested_at: datetime | None = None  # since when; of a stopped box, since when it is stopped
    quarantined_at: datetime | None = None
    quarantine: str = ""  # why it is in quarantine, in words of the operator
    verb: str = ""  # what is being done with it (kernel.life.states.Verb); "": nothing
    verb_until: datetime | None = None  # by then it is over, done or not
    made_of: Mapping[str, Any] | None = None  # what it was started with: kernel.life.drift
    image_wanted: str = ""  # name or id that its operator has chosen; "": what the settings say
    image_bound: str = ""  # id that its next start has, or `host`; "": not decided yet
