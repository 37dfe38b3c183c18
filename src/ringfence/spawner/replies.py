"""What the spawner answers: the shapes of its replies, by which the kernel learns what it may rely on. Data only.

protocol.py names them again, so that host/drivers has one module to import. Must never carry a path of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# What bounds a tree: an ext4 image of its own; the file system's project quota; nothing but being counted.
DiskBy = Literal["image", "quota", "accounting"]
# Of a socket in a box's network: explicit proxy of one invocation; every other TCP; names.
ListenerKind = Literal["proxy", "transparent", "dns_udp", "dns_tcp"]
# What somebody left behind, in the order in which it is taken away: a cgroup's processes end with it, a mount's device too.
# stranger: a process under an id that was never given out.
DebrisKind = Literal[
    "cgroup",
    "processes",
    "worker",
    "stranger",
    "socket",
    "temporary",
    "copy",
    "mount",
    "loop",
    "directory",
    "release",
    "image",
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process a box's PID 1 is, so that nobody else is ever taken for it."""

    pid: int  # in the spawner's pid namespace
    start_time: int  # /proc/PID/stat field 22, clock ticks
    boot_id: str
    pid_ns: int  # inode
    net_ns: int  # inode
    pidfd_inode: int  # 0 where the kernel has no pidfs
    uid: int  # as the spawner's user namespace counts


@dataclass(frozen=True, slots=True)
class Greeting:
    version: int
    installation: str
    mode: Literal["root", "subuid", "shared"]
    cgroups: Literal["v2", "v1", "none"]  # v1 includes hybrid: controllers v1, freeze and kill in the unified tree
    boot_id: str
    weak: list[str]  # ids of what this host cannot enforce: no-cgroup, shared-uid, no-landlock, ...
    guest_digest: str
    bwrap: str  # version
    disk: DiskBy = "accounting"  # of a box that is made now
    disk_free: int = 0  # bytes of the volume that holds the boxes
    disk_promised: int = 0  # bytes that disk images may still grow by
    disk_reserve: int = 0  # bytes that no new box may take
    disk_broken: list[str] = field(default_factory=list)  # boxes whose image cannot be used, 20 at most
    limits_all: dict[str, int] = field(default_factory=dict)  # of all boxes together: memory, pids, cpu_milli
    runtime: str = ""  # digest of the release that makes boxes now
    image: str = ""  # what /usr of a box that starts now is: of the host's, the hash of its package status
    # Of these what is not in force, as boxes of before use more: name -> wanted and now, -1: no limit at all.
    limits_unmet: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provisioned:
    uid: int
    ids: int  # how many ids from uid on are this box's
    created: bool


@dataclass(frozen=True, slots=True)
class FoundImage:
    image: str  # its id, or `host`


@dataclass(frozen=True, slots=True)
class Started:
    identity: Identity
    already: bool
    timings_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Observed:
    state: Literal["absent", "stopped", "running"]
    identity: Identity | None
    uid: int
    pids: int
    memory: int  # bytes now, 0 where unknown
    memory_peak: int
    memory_limit: int  # of the leaf that commands are in
    oom_kills: int  # since the leaf was made
    frozen: bool = False
    cpu_usec: int = 0  # of all its processes since its start; 0 also where unknown
    disk_by: DiskBy = "accounting"
    disk_used: int = -1  # bytes; -1: not known without a walk
    disk_free: int = -1  # bytes that the box could still write
    inodes: int = -1
    inode_limit: int = 0  # that holds now; 0: none
    disk_problem: str = ""  # why the image cannot be used
    disk_holder: str = ""  # who of the host keeps it so: for operators


@dataclass(frozen=True, slots=True)
class Listed:
    boxes: list[str]  # 500 at most: a page with all of them running jails has some 31 KiB
    running: list[str]
    more: bool
    jails: list[str] = field(default_factory=list)  # of kind skill, running or not


@dataclass(frozen=True, slots=True)
class Repaired:
    """clean: an image in which nothing was wrong; mended: something was; limits: its quota is set anew; nothing: a tree that is
    only counted has nothing to repair."""

    found: str


@dataclass(frozen=True, slots=True)
class Listening:
    """What each descriptor that comes with the reply is, in their order. IPv4 before IPv6, which a host may lack."""

    kinds: list[ListenerKind]


@dataclass(frozen=True, slots=True)
class Working:
    """The worker has closed itself in. The server's end of its control socket comes with the reply."""

    pid: int  # in the spawner's pid namespace
    uid: int  # as the spawner's user namespace counts


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was left behind; of a box and a kind there is one at most. `what` and `why`: words for people."""

    debris: DebrisKind
    box: str  # "": of none
    what: str
    why: str
    bytes: int
    ours: bool  # proven to be this installation's and nobody's any more: Clear takes it away


@dataclass(frozen=True, slots=True)
class LeftBehind:
    found: list[Finding]  # those of 40 boxes at most
    boxes: list[str]  # of this page that have a record, whatever is with them
    more: bool
    after: str  # of the next page
    ids: dict[str, int]  # given, held (by boxes), free (to be used again), spent (never again), left


@dataclass(frozen=True, slots=True)
class Cleared:
    gone: bool  # by this; False: it was not there any more
