"""What the web needs of the engine, named where it is used. Implemented by host/engine; app.py joins the two.

Every method takes the Actor first, authorises by itself and raises only errors of `kernel.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from ringfence.host.kernel.audit import Lane
from ringfence.host.kernel.audit_check import Report
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.life.backups import Wish
from ringfence.host.kernel.life.debris import Report as Swept
from ringfence.host.kernel.people import Actor, Tenant, Token, User
from ringfence.host.kernel.ports import Accepted, Command, FileInfo
from ringfence.host.kernel.runs import Run, Step
from ringfence.host.kernel.threads import Message, Thread, Turn
from ringfence.host.web.ports_copies import Copies
from ringfence.host.web.ports_life import BoxKeeper, LifeVerbs, LogReader
from ringfence.host.web.ports_outward import EgressKeeper, EgressLog, Holds, Secrets, VaultKeeper
from ringfence.host.web.ports_usage import Exports, UsageReports


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command. `timeout` in seconds; `output` keep: the outcome carries head and tail of both streams."""

    argv: Sequence[bytes]
    env: Mapping[str, bytes]
    cwd: str | None
    timeout: float | None
    stdin: Literal["null", "pipe"]
    output: Literal["stream", "keep"]


class RunView(Protocol):
    """A run; `steps` as far as the actor may see them."""

    @property
    def run(self) -> Run: ...
    @property
    def user(self) -> str: ...
    @property
    def thread(self) -> str: ...
    @property
    def steps(self) -> Sequence[Step]: ...
    @property
    def detail(self) -> str: ...
    @property
    def models(self) -> Mapping[str, Any] | None: ...


class People(Protocol):
    def presents(self, *, token: str | None = None, uid: int | None = None) -> None:
        """What the connection showed: a token ("": none), or on the operator socket its peer. Told before all else."""

    async def authenticate(self, secret: str) -> Actor: ...
    def operator(self, uid: int, gid: int, pid: int) -> Actor: ...
    def presence(self, actor: Actor) -> Presence: ...
    async def act_as(self, actor: Actor, tenant: str, user: str) -> Actor: ...
    async def tenant_add(self, actor: Actor, name: str) -> Tenant: ...
    async def tenants(self, actor: Actor) -> list[Tenant]: ...
    async def tenant_remove(self, actor: Actor, name: str) -> None: ...
    async def user_add(
        self, actor: Actor, tenant: str, name: str, kind: str = "person", owner: str | None = None
    ) -> User: ...
    async def users(self, actor: Actor, tenant: str) -> list[User]: ...
    async def user(self, actor: Actor, tenant: str, name: str) -> User: ...
    async def models_used(self, user: User) -> Mapping[str, Any] | None: ...
    async def user_remove(self, actor: Actor, tenant: str, name: str, purge: bool = False) -> None: ...
    async def token_add(
        self, actor: Actor, tenant: str, user: str, scopes: list[str], note: str, ttl_seconds: float | None
    ) -> tuple[Token, str]: ...
    async def tokens(self, actor: Actor, tenant: str, user: str) -> list[Token]: ...
    async def token_remove(self, actor: Actor, tenant: str, user: str, token_id: str) -> None: ...


class Presence(Protocol):
    """Until when the actor may speak over a connection that stays open: their token may be revoked or expire, they may be
    disabled or removed."""

    def check(self) -> None:
        """Unauthenticated, once it is over. Costs nothing."""

    async def over(self) -> None:
        """Returns when `check` raises. Looks from time to time while it waits."""

    def close(self) -> None: ...


class Commands(Protocol):
    async def run(self, actor: Actor, tenant: str, user: str, request: Any) -> Command:
        """`request` has the fields of ExecRequest: the engine reads them and asks for no particular class."""


class Files(Protocol):
    """Paths are bytes."""

    async def stat(self, actor: Actor, tenant: str, user: str, path: bytes) -> FileInfo: ...
    async def list(
        self, actor: Actor, tenant: str, user: str, path: bytes, after: bytes | None, limit: int
    ) -> list[FileInfo]: ...
    def get(
        self, actor: Actor, tenant: str, user: str, path: bytes
    ) -> AbstractAsyncContextManager[tuple[FileInfo, AsyncIterator[bytes]]]: ...
    async def put(
        self, actor: Actor, tenant: str, user: str, path: bytes, data: AsyncIterator[bytes], mode: int
    ) -> FileInfo: ...
    async def remove(self, actor: Actor, tenant: str, user: str, path: bytes, recursive: bool) -> None: ...


class Threads(Protocol):
    async def add(self, actor: Actor, tenant: str, name: str, members: list[str], parallel: bool) -> Thread: ...
    async def show(self, actor: Actor, tenant: str, name: str) -> tuple[Thread, list[str]]: ...
    async def set_member(self, actor: Actor, tenant: str, name: str, user: str, member: bool) -> Thread: ...
    async def say(
        self,
        actor: Actor,
        tenant: str,
        thread: str,
        text: str,
        mode: str,
        key: str | None,
        attachments: Sequence[str] = (),
    ) -> Accepted: ...
    async def break_glass(self, actor: Actor, tenant: str, thread: str, reason: str) -> datetime: ...
    async def watch(self, actor: Actor, tenant: str, thread: str) -> Watch: ...
    async def messages(
        self, actor: Actor, tenant: str, thread: str, before: int | None, limit: int
    ) -> list[Message]: ...
    async def events(self, actor: Actor, tenant: str, thread: str, after: int, limit: int) -> list[dict[str, Any]]: ...
    async def turn(self, actor: Actor, turn_id: str) -> Turn: ...
    async def list(self, actor: Actor, tenant: str) -> list[Thread]: ...


class Watch(Protocol):
    """What happens to the actor's own runs in a thread as it happens: {"kind": "delta", "run", "turn", "call", "text"}
    and {"kind": "progress", "run", "turn", "text"}. Nothing of it is kept; a reader that is slow misses some."""

    def take(self) -> Sequence[Mapping[str, Any]]:
        """What has come since the last time."""

    async def wait(self) -> None:
        """Returns when there is something to take."""

    async def news(self, after: int, seconds: float) -> bool:
        """Until the thread has a durable event behind the cursor; False after `seconds`. Only that: `Threads.events` says
        which, and whether the actor may still know."""

    def close(self) -> None: ...


class GateRow(Protocol):
    """A gate in a list, without its call and as far as the actor may see it."""

    @property
    def gate(self) -> Gate: ...
    @property
    def tenant(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def answerer(self) -> str: ...
    @property
    def answered_by(self) -> str | None: ...
    @property
    def thread(self) -> str: ...
    @property
    def equal(self) -> int: ...
    @property
    def answers(self) -> Sequence[str]: ...
    @property
    def means(self) -> str: ...


class GateView(GateRow, Protocol):
    """`call` is None for who may not see it."""

    @property
    def call(self) -> str | None: ...
    @property
    def odd(self) -> Sequence[str]: ...


class Gates(Protocol):
    async def ls(
        self, actor: Actor, tenant: str, states: Collection[str], run: str | None, limit: int
    ) -> Sequence[GateRow]: ...
    async def show(self, actor: Actor, gate_id: str) -> GateView: ...
    async def answer(self, actor: Actor, gate_id: str, said: str, key: str | None) -> GateView: ...


class Runs(Protocol):
    async def list(self, actor: Actor, tenant: str, limit: int) -> Sequence[RunView]: ...
    async def show(self, actor: Actor, run_id: str) -> RunView: ...
    async def cancel(self, actor: Actor, run_id: str) -> Run: ...
    async def redrive(self, actor: Actor, run_id: str) -> Run: ...


class Audits(Protocol):
    """Operators only."""

    async def list(
        self, actor: Actor, lanes: Collection[Lane], since: datetime | None, before: str | None, limit: int
    ) -> list[dict[str, Any]]: ...
    async def traffic(self, actor: Actor, limit: int) -> dict[str, Any]: ...
    async def verify(self, actor: Actor) -> Report: ...


class Health(Protocol):
    async def ping(self) -> dict[str, Any]: ...
    async def status(self, actor: Actor) -> dict[str, Any]: ...


class Backups(Protocol):
    async def create(self, actor: Actor, wish: Wish) -> AsyncGenerator[bytes, None]: ...


class DebrisKeeper(Protocol):
    async def sweep(self, actor: Actor, *, dry_run: bool, boxes: Collection[str] = ()) -> Swept: ...


class Engine(Protocol):
    @property
    def people(self) -> People: ...
    @property
    def boxes(self) -> BoxKeeper: ...
    @property
    def life(self) -> LifeVerbs: ...
    @property
    def copies(self) -> Copies: ...
    @property
    def commands(self) -> Commands: ...
    @property
    def files(self) -> Files: ...
    @property
    def threads(self) -> Threads: ...
    @property
    def gates(self) -> Gates: ...
    @property
    def holds(self) -> Holds: ...
    @property
    def runs(self) -> Runs: ...
    @property
    def audits(self) -> Audits: ...
    @property
    def secrets(self) -> Secrets: ...
    @property
    def vault(self) -> VaultKeeper: ...
    @property
    def egress(self) -> EgressKeeper: ...
    @property
    def egress_log(self) -> EgressLog: ...
    @property
    def logs(self) -> LogReader: ...
    @property
    def usage(self) -> UsageReports: ...
    @property
    def exports(self) -> Exports: ...
    @property
    def backups(self) -> Backups: ...
    @property
    def debris(self) -> DebrisKeeper: ...
    @property
    def health(self) -> Health: ...


class WebSettings(Protocol):
    """The part of kernel/settings.py that the web reads."""

    @property
    def socket(self) -> str:
        """Path of the operator socket."""

    @property
    def listen(self) -> tuple[str, int] | None: ...
    @property
    def domain(self) -> str:
        """A name beside loopback that the TCP server answers to; "" for none."""

    @property
    def mode(self) -> str: ...
