"""What the kernel may ask of the spawner, and nothing else.

A SOCK_SEQPACKET pair, made by the spawner before it forks the kernel. One packet is one JSON object of at most 64 KiB;
file descriptors travel from the spawner to the kernel only, with the reply that names them. A request is
`{"id": n, "op": name, ...}` with exactly the fields of its class below: no path, no uid, no argument list. The
spawner derives those itself from root-owned state, so a kernel that is somebody else's cannot name what it wants.

Standard library only. The one module of the spawner that host/drivers may import.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

VERSION = 1
MAX_PACKET = 64 * 1024
BOX_ID = re.compile(r"[a-z2-7]{16}\Z")

# The files wire (behind Files): one request at a time, frames of 4 bytes length (big-endian) + JSON; data in chunks of
# the same form, ended by length 0, or by FILES_ABORT and a JSON frame {"error": {"code", "text"}}. See files_helper.py.
FILES_FRAME = 1 << 20  # most bytes of a JSON frame
FILES_CHUNK = 256 << 10  # most bytes of one chunk of data
FILES_ABORT = 0xFFFFFFFF

BoxKind = Literal["home", "run", "scratch", "probe"]


class BadRequest(ValueError):
    """A packet that is no request of this protocol."""


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


# Bounds that the spawner enforces whatever the kernel says: (least, most).
BOUNDS: dict[str, tuple[int, int]] = {
    "memory": (96 << 20, 1 << 50),
    "pids": (32, 65536),
    "cpu_milli": (50, 1_024_000),
    "nofile": (256, 1 << 20),
    "fsize": (1 << 20, 1 << 50),
    "shm": (1 << 20, 1 << 45),
    "run": (1 << 20, 1 << 40),
}


@dataclass(frozen=True, slots=True)
class Greet:
    """First request. Another version is refused (S05)."""

    op: ClassVar[str] = "greet"
    version: int


@dataclass(frozen=True, slots=True)
class Provision:
    """Makes tree and ids of a box. Idempotent."""

    op: ClassVar[str] = "provision"
    box: str
    kind: BoxKind


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
class Observe:
    op: ClassVar[str] = "observe"
    box: str


@dataclass(frozen=True, slots=True)
class SetLimits:
    """New limits for a running box: memory, pids and CPU at once, the rest at its next start."""

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


Request = Greet | Provision | Start | Stop | Observe | SetLimits | Files | Remove | ListBoxes
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


@dataclass(frozen=True, slots=True)
class Listed:
    boxes: list[str]  # 500 at most: a page with all of them running has some 21 KiB
    running: list[str]
    more: bool


def _limits(value: object) -> Limits:
    names = {f.name for f in fields(Limits)}
    if not isinstance(value, dict) or set(value) != names:
        raise BadRequest(f"limits must have exactly {sorted(names)}")
    for name, number in value.items():
        low, high = BOUNDS[name]
        if type(number) is not int or not low <= number <= high:
            raise BadRequest(f"limit {name} must be a whole number from {low} to {high}, not {number!r}")
    return Limits(**value)


def parse_request(packet: bytes) -> tuple[int, Request]:
    """(request id, request). Raises BadRequest; never anything else, whatever the bytes."""
    if len(packet) > MAX_PACKET:
        raise BadRequest("packet too large")
    try:
        raw = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise BadRequest("packet is not JSON") from error
    if not isinstance(raw, dict):
        raise BadRequest("packet is not an object")
    number, op = raw.pop("id", None), raw.pop("op", None)
    if type(number) is not int or not 0 <= number < 1 << 53:
        raise BadRequest("id must be a whole number")
    kind = REQUESTS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise BadRequest(f"no operation {str(op)[:40]!r}")
    wanted = {f.name for f in fields(kind)}
    if set(raw) != wanted:
        raise BadRequest(f"{op} takes exactly {sorted(wanted)}")
    if "box" in raw and not (isinstance(raw["box"], str) and BOX_ID.match(raw["box"])):
        raise BadRequest("box must be 16 characters of a-z2-7")
    if "after" in raw and not (raw["after"] == "" or (isinstance(raw["after"], str) and BOX_ID.match(raw["after"]))):
        raise BadRequest("after must be a box id or empty")
    if "kind" in raw and raw["kind"] not in ("home", "run", "scratch", "probe"):
        raise BadRequest("no such kind of box")
    if "version" in raw and type(raw["version"]) is not int:
        raise BadRequest("version must be a whole number")
    if "limits" in raw:
        raw["limits"] = _limits(raw["limits"])
    request: Request = kind(**raw)
    return number, request


def encode_request(number: int, request: Request) -> bytes:
    return json.dumps({"id": number, "op": request.op, **asdict(request)}).encode()


def encode_reply(number: int, reply: Any) -> bytes:
    return json.dumps({"id": number, "ok": asdict(reply) if reply is not None else {}}).encode()


def encode_error(number: int, code: str, message: str, remedy: str = "") -> bytes:
    """Codes: bad_request, not_found, refused, busy, no_space, unavailable, failed."""
    return json.dumps({"id": number, "error": {"code": code, "message": message, "remedy": remedy}}).encode()
