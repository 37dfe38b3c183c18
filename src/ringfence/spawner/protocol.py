"""What the kernel may ask of the spawner, and nothing else.

A SOCK_SEQPACKET pair, made by the spawner before it forks the kernel. One packet is one JSON object of at most 64 KiB;
file descriptors travel from the spawner to the kernel only, with the reply that names them. A request is
`{"id": n, "op": name, ...}` with exactly the fields of its class below: no path, no uid, no argument list. The
spawner derives those itself from root-owned state, so a kernel that is somebody else's cannot name what it wants.

What the spawner makes of a packet is in packets.py, its replies are in replies.py. Standard library only. The one module of
the spawner that host/drivers may import.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal, get_args

from ringfence.spawner.asks_debris import Clear as Clear
from ringfence.spawner.asks_debris import Debris as Debris
from ringfence.spawner.asks_words import Heard as Heard
from ringfence.spawner.asks_words import Said as Said
from ringfence.spawner.asks_words import Words as Words
from ringfence.spawner.bounds import BOUNDS as BOUNDS
from ringfence.spawner.bounds import Limits as Limits
from ringfence.spawner.replies import Cleared as Cleared
from ringfence.spawner.replies import DebrisKind as DebrisKind
from ringfence.spawner.replies import DiskBy as DiskBy
from ringfence.spawner.replies import Finding as Finding
from ringfence.spawner.replies import FoundImage as FoundImage
from ringfence.spawner.replies import Greeting as Greeting
from ringfence.spawner.replies import Identity as Identity
from ringfence.spawner.replies import LeftBehind as LeftBehind
from ringfence.spawner.replies import Listed as Listed
from ringfence.spawner.replies import ListenerKind as ListenerKind
from ringfence.spawner.replies import Listening as Listening
from ringfence.spawner.replies import Observed as Observed
from ringfence.spawner.replies import Provisioned as Provisioned
from ringfence.spawner.replies import Repaired as Repaired
from ringfence.spawner.replies import Started as Started
from ringfence.spawner.replies import Working as Working
from ringfence.spawner.requests_trees import Pack as Pack
from ringfence.spawner.requests_trees import Repair as Repair
from ringfence.spawner.requests_trees import Reset as Reset
from ringfence.spawner.requests_trees import Settle as Settle
from ringfence.spawner.requests_trees import Unpack as Unpack

VERSION = 1
MAX_PACKET = 64 * 1024
BOX_ID = re.compile(r"[a-z2-7]{16}\Z")
HOST_IMAGE = "host"  # the host's own /usr
IMAGE_ID = re.compile(r"tree:[0-9a-f]{32}\Z")
IMAGE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
# Of an explicit proxy. From 1024 on a box could bind them itself; 53 and 1022 are the fixed set's; below 100 are names
# that tools know (http, ssh).
PROXY_PORTS = (100, 1021)
MAX_CERTIFICATE = 4096  # bytes of PEM; one of a P-256 CA has some 700

# The files wire (behind Files): one request at a time, frames of 4 bytes length (big-endian) + JSON; data in chunks of
# the same form, ended by length 0, or by FILES_ABORT and a JSON frame {"error": {"code", "text"}}. See files_helper.py.
FILES_FRAME = 1 << 20  # most bytes of a JSON frame
FILES_CHUNK = 256 << 10  # most bytes of one chunk of data
FILES_ABORT = 0xFFFFFFFF

BoxKind = Literal["home", "run", "skill", "scratch", "probe"]  # skill: a jail with a narrower view (profile.py)


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
    """Starts the box's PID 1. A running box is answered with its identity (`already`: true). `image`: an id, or `host`.
    Unavailable: there is no such image on this host."""

    op: ClassVar[str] = "start"
    box: str
    limits: Limits
    image: str = "host"


@dataclass(frozen=True, slots=True)
class FindImage:
    """Which image a name, or an id, stands for now. NotFound."""

    op: ClassVar[str] = "find_image"
    image: str


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


@dataclass(frozen=True, slots=True)
class Listen:
    """Opens sockets in the network of a running home and hands them over; the spawner keeps none. `port`: the explicit
    proxy of one invocation, on 127.0.0.1; or 0, the fixed set: transparent TCP 1022, DNS UDP and TCP 53, on both
    loopbacks. Busy: somebody, a worker of before perhaps, still has that port."""

    op: ClassVar[str] = "listen"
    box: str
    port: int


@dataclass(frozen=True, slots=True)
class Worker:
    """Forks the egress worker of a running home. One that is left is ended first. Unavailable: there is no template now."""

    op: ClassVar[str] = "worker"
    box: str


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Kills the box's worker and waits until it is gone. Idempotent. Stop, Freeze and Remove do the same first."""

    op: ClassVar[str] = "end_worker"
    box: str


@dataclass(frozen=True, slots=True)
class Trust:
    """The certificate, PEM, of the CA that the box trusts besides the host's roots, from its next start on."""

    op: ClassVar[str] = "trust"
    box: str
    certificate: str


Request = (
    Greet
    | Provision
    | Start
    | FindImage
    | Stop
    | Freeze
    | Thaw
    | Observe
    | SetLimits
    | Files
    | Remove
    | ListBoxes
    | Listen
    | Worker
    | EndWorker
    | Trust
    | Debris
    | Clear
    | Pack
    | Unpack
    | Settle
    | Reset
    | Repair
    | Said
)
REQUESTS: dict[str, type] = {c.op: c for c in get_args(Request)}


def encode_request(number: int, request: Request) -> bytes:
    return json.dumps({"id": number, "op": request.op, **asdict(request)}).encode()
