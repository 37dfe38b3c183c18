"""What the kernel may ask of the spawner, and nothing else.

A SOCK_SEQPACKET pair, made by the spawner before it forks the kernel. One packet is one JSON object of at most 64 KiB;
file descriptors travel from the spawner to the kernel only, with the reply that names them. A request is
`{"id": n, "op": name, ...}` with exactly the fields of its class below: no path, no uid, no argument list. The
spawner derives those itself from root-owned state, so a kernel that is somebody else's cannot name what it wants.

What the spawner makes of a packet is in packets.py. Standard library only. The one module of the spawner that host/drivers may import.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, get_args

VERSION = 1
MAX_PACKET = 64 * 1024
BOX_ID = re.compile(r"[a-z2-7]{16}\Z")

# The files wire (behind Files): one request at a time, frames of 4 bytes length (big-endian) + JSON; data in chunks of
# the same form, ended by length 0, or by FILES_ABORT and a JSON frame {"error": {"code", "text"}}. See files_helper.py.
FILES_FRAME = 1 << 20  # most bytes of a JSON frame
FILES_CHUNK = 256 << 10  # most bytes of one chunk of data
FILES_ABORT = 0xFFFFFFFF

BoxKind = Literal["home", "run", "skill", "scratch", "probe"]  # skill: a jail with a narrower view (profile.py)
# What bounds a tree: an ext4 image of its own; the file system's project quota; nothing but being counted.
DiskBy = Literal["image", "quota", "accounting"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a box may use. Sizes in bytes; `cpu_milli` 1000 = one core."""

    memory: int = 1 << 30
    pids: int = 512
    cpu_milli: int = 2000
    nofile: int = 65536  # hard limit; the soft one is 4096
    fsize: int = 8 << 30
    shm: int = 256 << 20
    run: int = 32 << 20  # the /run tmpfs
    disk: int = 8 << 30  # of the tree: home, workspace and tmp together
    inodes: int = 500_000  # files, folders and links in it


# Bounds that the spawner enforces whatever the kernel says: (least, most).
BOUNDS: dict[str, tuple[int, int]] = {
    "memory": (96 << 20, 1 << 50),
    "pids": (32, 65536),
    "cpu_milli": (50, 1_024_000),
    "nofile": (256, 1 << 20),
    "fsize": (1 << 20, 1 << 50),
    "shm": (1 << 20, 1 << 45),
    "run": (1 << 20, 1 << 40),
    "disk": (32 << 20, 1 << 43),
    "inodes": (1024, 1 << 31),
}


@dataclass(frozen=True, slots=True)
class Greet:
    """First request. Another version is refused (S05)."""

    op: ClassVar[str] = "greet"
    version: int


@dataclass(frozen=True, slots=True)
class Provision:
    """Makes tree and ids of a box; of the limits disk and inodes count. Idempotent."""

    op: ClassVar[str] = "provision"
    box: str
    kind: BoxKind
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Start:
    """Starts the box's PID 1. A running box is answered with its identity (`already`: true)."""

    op: ClassVar[str] = "start"
    box: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Stop:
    """Kills every process of the box, waits until none is left, empties /tmp. Idempotent."""

    op: ClassVar[str] = "stop"
    box: str


@dataclass(frozen=True, slots=True)
class Freeze:
    """Stops every process of a running box where it is, whatever it does; answered once all stand still. Idempotent."""

    op: ClassVar[str] = "freeze"
    box: str


@dataclass(frozen=True, slots=True)
class Thaw:
    """Lets a frozen box go on. Idempotent."""

    op: ClassVar[str] = "thaw"
    box: str


@dataclass(frozen=True, slots=True)
class Observe:
    op: ClassVar[str] = "observe"
    box: str


@dataclass(frozen=True, slots=True)
class SetLimits:
    """New limits: disk and, for a running box, memory, pids and CPU at once; the rest at its next start. Refused: a disk
    image that would shrink, get another number of inodes or grow beyond its reach or its volume's size. Busy: it can grow
    in a stopped box only, on this host, or something still has its files."""

    op: ClassVar[str] = "set_limits"
    box: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Files:
    """A connected stream socket to the box's files helper comes with the reply."""

    op: ClassVar[str] = "files"
    box: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Stops the box and deletes its tree. Its ids stay spent."""

    op: ClassVar[str] = "remove"
    box: str


@dataclass(frozen=True, slots=True)
class ListBoxes:
    """A page of this installation's boxes, in the order of their ids: those after `after` ("": from the first)."""

    op: ClassVar[str] = "list"
    after: str = ""


Request = Greet | Provision | Start | Stop | Freeze | Thaw | Observe | SetLimits | Files | Remove | ListBoxes
REQUESTS: dict[str, type] = {c.op: c for c in get_args(Request)}


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
    # Of these what is not in force, as boxes of before use more: name -> wanted and now, -1: no limit at all.
    limits_unmet: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Provisioned:
    uid: int
    ids: int  # how many ids from uid on are this box's
    created: bool


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


def encode_request(number: int, request: Request) -> bytes:
    return json.dumps({"id": number, "op": request.op, **asdict(request)}).encode()
