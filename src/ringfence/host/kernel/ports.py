"""What the engine needs of the world, named by guarantee. Implemented outside (store, drivers, broker, models, app).

Every method raises only errors of `kernel.errors`; each protocol lists the particular ones. All times are aware UTC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.boxes import BoxKind, Limits
from ringfence.host.kernel.boxes import Sight as Sight
from ringfence.host.kernel.effects import EffectRow
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.ids import BoxId, RunId, TenantId, ThreadId, TurnId, UserId
from ringfence.host.kernel.images import HOST
from ringfence.host.kernel.journal import Blobs, Steps
from ringfence.host.kernel.kernels import Kernels
from ringfence.host.kernel.ledger import Effects, Gates
from ringfence.host.kernel.life.copies import Snapshots, Trees
from ringfence.host.kernel.life.debris import References, Seen
from ringfence.host.kernel.life.exporting import Exporting
from ringfence.host.kernel.life.logs import Said
from ringfence.host.kernel.life.usage import Usage
from ringfence.host.kernel.models.ports import Model as Model
from ringfence.host.kernel.models.ports import ModelFor as ModelFor
from ringfence.host.kernel.models.ports import ModelReply as ModelReply
from ringfence.host.kernel.models.ports import ModelUsage
from ringfence.host.kernel.onward import Onward
from ringfence.host.kernel.outward.ports import Credentials, EgressRules, Invocations
from ringfence.host.kernel.outward.renewals import Renewals
from ringfence.host.kernel.outward.rolls import Rolls
from ringfence.host.kernel.reads import Reads
from ringfence.host.kernel.registry import Boxes, Tenants, Tokens, Users
from ringfence.host.kernel.retention import Log, Reserve, Retention
from ringfence.host.kernel.runs import Abandoned, Run, RunState
from ringfence.host.kernel.threads import Attachment, Event, EventKind, Message, Summary, Thread, Turn

# --- the world -------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    def now(self) -> datetime:
        """Aware UTC; for what people read. Leases use the store's clock."""

    def monotonic(self) -> float:
        """Seconds; for durations."""


class Ids(Protocol):
    def new(self, prefix: str) -> str:
        """`prefix_` + 20 base32 characters, sortable by time."""

    def box(self) -> BoxId: ...

    def secret(self) -> str:
        """256 random bits in base32 (52 characters)."""


# --- durable facts ---------------------------------------------------------------------------------------------------
# An acknowledged write is on disk. Removed rows are tombstoned: their names may be used again, their ids never.


class Threads(Protocol):
    """Conflict: the name exists. NotFound."""

    async def add(self, tenant: TenantId, name: str, members: Sequence[UserId], parallel: bool) -> Thread: ...
    async def get(self, tenant: TenantId, name: str) -> Thread: ...
    async def by_id(self, thread: ThreadId) -> Thread: ...
    async def of_member(self, user: UserId) -> list[Thread]: ...
    async def of_tenant(self, tenant: TenantId) -> list[Thread]: ...
    async def set_member(self, thread: ThreadId, user: UserId, member: bool) -> Thread: ...
    async def messages(self, thread: ThreadId, before: int | None, limit: int) -> list[Message]:
        """Oldest first; the newest `limit` below the cursor `before`."""

    async def summary(self, thread: ThreadId, actor: UserId) -> Summary | None: ...
    async def set_summary(self, run: RunId, epoch: int, cursor: int, text: str) -> Summary:
        """Of the run's thread, for the run's actor; the newest cursor stays. StaleEpoch. Conflict: the cursor is not one
        of a message before the turn's own. TooLarge: above MAX_SUMMARY_BYTES."""

    async def break_glass(self, thread: ThreadId, via: str, reason: str, seconds: float) -> datetime:
        """Opens the thread's text to the operator who came by `via`, with its event for the members, in one
        transaction. Returns when it closes again, by the store's wall clock."""

    async def glass(self, thread: ThreadId, via: str) -> bool:
        """Whether that operator has it open now."""


@dataclass(frozen=True, slots=True)
class Accepted:
    turn: Turn
    run: Run
    message: Message
    repeated: bool  # the idempotency key had been used with the same body
    steered: bool = False  # the message joined a turn of the same actor that was under way


class Turns(Protocol):
    """NotFound."""

    async def accept(
        self,
        thread: ThreadId,
        actor: UserId,
        text: str,
        mode: Literal["queue", "steer", "reject"],
        key: str | None,
        attachments: Sequence[Attachment] = (),
    ) -> Accepted:
        """Message, turn, queued run and their events in one transaction. Same key and body of the actor: the same
        turn. KeyReused: other body. LaneBusy: mode reject and the lane has a live turn. LaneFull: MAX_WAITING wait.

        Mode steer: when the lane has a live run of the same actor (running before parked before queued, then the
        oldest) whose cancellation was not asked for, the message becomes one more of that run's turn. Otherwise it is
        queued like any other: it never reaches a run of somebody else."""

    async def repeat(
        self, thread: ThreadId, actor: UserId, text: str, mode: str, key: str, paths: Sequence[str]
    ) -> Accepted | None:
        """What `accept` would answer to a key that was used before; None for a new one. KeyReused."""

    async def get(self, turn: TurnId) -> Turn: ...
    async def said(self, turn: TurnId, after: int = 0) -> list[Message]:
        """What people said to the turn behind the cursor, oldest first: its own message, then the steers."""


class Runs(Protocol):
    """StaleEpoch: a write by an epoch that is not the run's. NotFound."""

    async def get(self, run: RunId) -> Run: ...
    async def all(self, tenant: TenantId, limit: int) -> list[Run]: ...
    async def claim(self, worker: str, limit: int, token_hash: Callable[[RunId], str], each: int = 0) -> list[Run]:
        """Queued runs whose actor's home is on this installation, or nowhere yet, and whose lane has no live run, user by
        user in turn (kernel.fairness), of each the oldest first, and none of who has `each` at work (0: no such limit): now
        running, epoch + 1, attempts + 1, leased to `worker` for LEASE_SECONDS of the store's clock. At most one live run in a
        lane: a unique index says so."""

    async def offered(self, seconds: float) -> bool:
        """Waits until another kernel process on the database may have queued a run that `claim` gives here; False after
        `seconds`. A hint that may be missing: whoever claims looks by itself too. Unavailable: the store is closed."""

    async def heartbeat(self, worker: str) -> dict[RunId, float]:
        """Renews every lease of `worker` and adds the time since the last renewal to what each run has worked; the runs
        that it still holds, with the seconds that each has worked."""

    async def adopt(self, run: RunId, worker: str, epoch: int) -> Run:
        """A running run whose lease is another worker's, by a kernel that found its loop alive: epoch + 1, no attempt
        counted. StaleEpoch when `epoch` is no longer the run's."""

    async def expired(self, worker: str) -> list[Run]:
        """Running runs of this installation whose lease is over, or whose worker is not `worker`: an installation has one
        kernel process at a time."""

    async def abandoned(self) -> list[Abandoned]:
        """Running runs whose lease is over, and whose actor's home is on another installation that has not been heard of
        for GONE_SECONDS. `cancel` ends them from here; nothing else does."""

    async def assign(self, run: RunId, epoch: int, box: BoxId, guest_digest: str) -> None: ...
    async def requeue(self, run: RunId, epoch: int, reason: str) -> Run:
        """Back to the queue from its checkpoint; the next attempt starts not before a back-off of
        2 ** attempts * 0.5 s."""

    async def hold(self, run: RunId, epoch: int, reason: str) -> Run:
        """Back to the queue because its box or user must wait, not because it broke down: no attempt counted."""

    async def end(
        self, run: RunId, epoch: int, state: RunState, reason: str, reply: str | None, seen: int | None = None
    ) -> Run:
        """A final state, with turn, reply message and events in one transaction; the run's blobs go, unless it failed
        and may be redriven. A run that is already final with the same state and reply is answered as it is (finishing
        twice is one finish); Conflict otherwise. Steered: people said more to the turn behind the cursor `seen`."""

    async def reopen(self, run: RunId) -> Run:
        """A failed run back into the queue with its journal, its attempts and working time counted anew. Conflict: it
        is not `redrivable`. The caller has authorised it."""

    async def cancel(self, run: RunId, judge: Callable[[EffectRow, Gate, datetime], str] | None = None) -> Run:
        """Sets cancel_requested; a waiting run is cancelled at once, and one at work on an installation that is gone (see
        `abandoned`): epoch + 1, its effects in doubt `unknown`. `judge`: "" or why an answer about an effect in
        doubt says nothing of it: what people said by then is how it ends; without a judge nobody is heard."""


class Events(Protocol):
    async def after(self, thread: ThreadId, cursor: int, limit: int) -> list[Event]:
        """Oldest first."""

    async def append(
        self,
        thread: ThreadId,
        kind: EventKind,
        body: Mapping[str, Any],
        *,
        actor: UserId | None = None,
        turn: TurnId | None = None,
        run: RunId | None = None,
    ) -> Event: ...
    async def changed(self, thread: ThreadId, cursor: int, seconds: float) -> bool:
        """Waits until the thread has an event after `cursor`; False after `seconds`."""


class Store(Protocol):
    """One durable store."""

    @property
    def tenants(self) -> Tenants: ...
    @property
    def users(self) -> Users: ...
    @property
    def tokens(self) -> Tokens: ...
    @property
    def boxes(self) -> Boxes: ...
    @property
    def threads(self) -> Threads: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def runs(self) -> Runs: ...
    @property
    def steps(self) -> Steps: ...
    @property
    def blobs(self) -> Blobs: ...
    @property
    def gates(self) -> Gates: ...
    @property
    def effects(self) -> Effects: ...
    @property
    def events(self) -> Events: ...
    @property
    def credentials(self) -> Credentials: ...
    @property
    def renewals(self) -> Renewals: ...
    @property
    def egress_rules(self) -> EgressRules: ...
    @property
    def rolls(self) -> Rolls: ...
    @property
    def invocations(self) -> Invocations: ...
    @property
    def references(self) -> References: ...
    @property
    def model_usage(self) -> ModelUsage: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def exporting(self) -> Exporting: ...
    @property
    def snapshots(self) -> Snapshots: ...
    @property
    def reads(self) -> Reads: ...
    @property
    def audit(self) -> Audit: ...
    @property
    def kernels(self) -> Kernels: ...
    @property
    def retention(self) -> Retention: ...
    @property
    def reserve(self) -> Reserve: ...
    @property
    def log(self) -> Log: ...
    @property
    def onward(self) -> Onward:
        """What expires is measured by. Kernels on one database server hear the server's clock in it too."""

    @property
    def shared(self) -> bool:
        """Whether kernels of other installations may work on it too: their boxes are in no reach of ours."""

    async def health(self) -> dict[str, Any]:
        """`{"ok": bool, "schema": str, "size_bytes": int, "commit_ms": float}`; never raises."""

    async def close(self) -> None: ...


# --- boxes -----------------------------------------------------------------------------------------------------------


class Driver(Trees, Protocol):
    """Makes boxes on a substrate. Unavailable (with the remedy) when isolation is missing, or what was made of a box is, as with a
    volume that is not mounted: nothing is made in its place; DiskFull; Failed."""

    @property
    def name(self) -> str: ...
    async def facts(self) -> dict[str, Any]:
        """What this host enforces: mode, cgroups, weak (list of ids), bwrap, guest_digest, boot_id, installation."""

    async def provision(self, box: BoxId, kind: BoxKind, limits: Limits | None = None) -> int:
        """Tree, of the limits' disk and inodes, and ids; returns the uid. Idempotent."""

    async def start(self, box: BoxId, limits: Limits, image: str = HOST) -> dict[str, Any]:
        """The identity of its PID 1. A running box is answered as it is. `image`: id. Unavailable: it is not on this host."""

    async def find_image(self, name: str) -> str:
        """The id that a name, or an id, stands for now. NotFound."""

    async def stop(self, box: BoxId) -> None:
        """NotFound: never provisioned, or what was made of it is missing."""

    async def freeze(self, box: BoxId) -> None:
        """Every process of a running box stands still when it returns, and answers nothing. Idempotent. Refused: the box
        does not run. Unavailable: this host cannot freeze."""

    async def thaw(self, box: BoxId) -> None:
        """Lets a frozen box go on. Idempotent. Refused: the box does not run."""

    async def observe(self, box: BoxId) -> Sight: ...
    async def set_limits(self, box: BoxId, limits: Limits) -> None: ...
    async def remove(self, box: BoxId) -> None: ...
    async def running(self) -> list[BoxId]: ...
    async def said(self) -> list[Said]:
        """What boxes' PID 1 have written to stderr since this was asked last."""

    async def debris(self) -> Seen:
        """What was left behind on this host by this installation, and which boxes there are. Changes nothing."""

    async def clear(self, box: BoxId | None, kind: str) -> bool:
        """Takes one thing away that `debris` told as ours, proven anew; of no box: None. False: it was not there any more.
        Refused: it is not ours. Conflict: in use. Failed: it stays."""

    async def jails(self) -> list[BoxId]:
        """Boxes of kind skill, running or not."""

    async def dial(self, box: BoxId, identity: Mapping[str, Any]) -> int:
        """A connected stream socket (fd, owned by the caller) whose peer is proven to be that PID 1 and no other.
        BoxLost when it is gone, is another process, or does not listen within 5 s."""

    def files(self, box: BoxId) -> AbstractAsyncContextManager[BoxFiles]: ...


@dataclass(frozen=True, slots=True)
class FileInfo:
    name: bytes  # last component, raw bytes
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int  # permission bits
    mtime_ns: int
    target: bytes | None  # of a symlink


class BoxFiles(Protocol):
    """Files of one box, nothing followed out of it. Paths are bytes: relative to HOME unless below /home/user or
    /workspace. NotFound; Refused (leads out, no regular file); Conflict (is a directory, not empty); DiskFull;
    TooLarge."""

    async def stat(self, path: bytes) -> FileInfo: ...
    async def list(self, path: bytes, after: bytes | None, limit: int) -> list[FileInfo]:
        """Sorted by name; `after` pages on."""

    def get(self, path: bytes) -> AsyncIterator[bytes]: ...
    def fetch(self, path: bytes) -> AbstractAsyncContextManager[tuple[FileInfo, AsyncIterator[bytes]]]:
        """The opened file (links followed, so not what `stat` says of the name) and exactly its size in bytes."""

    async def put(self, path: bytes, data: AsyncIterator[bytes], mode: int) -> FileInfo:
        """Atomic: all of it under the name, or nothing. Missing folders are made (0755)."""

    async def remove(self, path: bytes, recursive: bool) -> None: ...
    async def usage(self) -> tuple[int, int]:
        """(bytes by blocks, inodes) of the whole tree."""

    def cut(self) -> None:
        """What is under way, and whatever is asked after it, is Unavailable. Nothing waits for whoever takes no more."""


# --- the wire --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandSpec:
    argv: Sequence[bytes]
    env: Mapping[str, bytes]  # exactly this
    cwd: str
    stdin: Literal["null", "pipe"]
    output: Literal["stream", "keep"]
    timeout: float | None  # seconds
    grace: float = 2.0


@dataclass(frozen=True, slots=True)
class Kept:
    head: bytes
    tail: bytes
    total: int
    dropped: int


Reason = Literal["exit", "timeout", "oom", "disk_full", "killed", "spawn_failed", "box_lost"]
"""How a command came to its end. disk_full: it failed, or its box was stopped, and the box's disk is full."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exactly one for each command."""

    code: int | None
    signal: int | None
    reason: Reason
    message: str
    left: Sequence[int]
    duration_ms: int
    stdout: Kept | None = None
    stderr: Kept | None = None
    memory_limit_bytes: int | None = None  # with reason oom: of the box's commands together
    memory_peak_bytes: int | None = None
    disk_limit_bytes: int | None = None  # with reason disk_full: of the box's tree
    disk_used_bytes: int | None = None
    timeout_seconds: float | None = None  # with reason timeout: what it had


class Command(Protocol):
    """A running command, or one that has ended. BoxLost is never raised: it is an outcome."""

    @property
    def pid(self) -> int: ...
    @property
    def attached(self) -> bool: ...
    def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        """Chunks in the order of each stream, with back-pressure; ends when the command has. Once only."""

    async def write(self, data: bytes) -> None:
        """To its stdin, with back-pressure. Silently nothing once it has ended or closed it."""

    async def close_stdin(self) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def stop(self, grace: float) -> None: ...
    def on_end(self, call: Callable[[], None]) -> None:
        """Called once, before anybody is told of the outcome; at once if it has ended."""

    async def outcome(self) -> Outcome: ...
    async def release(self) -> None:
        """The outcome is safe elsewhere: the guest may forget it. Idempotent."""


class LoopHost(Protocol):
    """What the broker calls with what loops ask. Implemented by the engine. Its errors become the reply's `err`."""

    async def ask(self, box: BoxId, run: RunId, method: str, params: Any) -> Any: ...
    async def loop_ended(self, box: BoxId, run: RunId, code: int | None, signal: int | None) -> None: ...
    async def link_lost(self, box: BoxId) -> None:
        """The box's wire ended and was not replaced by a newer one. Returns when it is known whether there is another:
        commands that no newer wire carries on are box_lost then."""


@dataclass(frozen=True, slots=True)
class GuestHello:
    digest: str
    guest: str
    landlock: int
    runs: Mapping[RunId, str]  # run -> token
    commands: Mapping[str, Literal["running", "ended"]]  # by key
    orphans: Sequence[int]


class Link(Protocol):
    """The wire to one running box. BoxLost from every method once it has ended."""

    @property
    def hello(self) -> GuestHello: ...
    @property
    def alive(self) -> bool: ...
    async def spawn(self, key: str, spec: CommandSpec) -> Command: ...
    async def start_run(self, start: Mapping[str, Any]) -> int:
        """Fields of wire.messages.RunStart; returns the loop's pid in the box."""

    async def cancel_run(self, run: RunId, grace: float) -> None: ...
    async def steer_run(self, run: RunId, message: Mapping[str, Any]) -> None:
        """`message`: fields of wire.messages.ThreadMessage."""

    async def wind_down(self, run: RunId, seconds: int) -> None: ...
    def paused(self) -> None:
        """The box is about to stand still: until `resumed` it need neither read nor answer."""

    async def resumed(self, pause: str, seconds: float) -> None:
        """The box stood still for so long, until now: PID 1's timers do not count it. `pause`: which one; said anew, it is
        not counted twice. Returns when the guest has heard; it is written at once, for a guest that does not read yet."""

    async def close(self) -> None: ...


class Broker(Protocol):
    """Attaches to boxes. BoxLost."""

    async def attach(self, box: BoxId, sock_fd: int, host: LoopHost) -> Link:
        """Takes the socket over; hello within 5 s."""
