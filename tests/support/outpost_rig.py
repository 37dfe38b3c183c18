"""A way out with everything around it scripted: a store that is slow at hand, listeners of loopback, a worker that says yes.

What it is about is the order of things: whoever reads first and lands last.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.control import MAX_PACKET, VERSION
from ringfence.host.egress.outpost import Outpost
from ringfence.host.egress.site import Site
from ringfence.host.egress.way_out import Sources, WayOut
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.listeners import Listener
from ringfence.host.kernel.outward.ports import Authority, Invoker, Lent
from ringfence.host.kernel.outward.rolls import Altered
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.store.store import SqlStore

BOX, TENANT, USER = BoxId("b" * 16), TenantId("ten_1"), UserId("usr_1")
BOUND = Binding("bnd_1", "crd_1", "api.test", environment=("TOKEN",), uses=1)


@dataclass
class Rows:
    """The tables that a way out reads. `delays`: how long each next read of the bindings takes after it was made."""

    bound: list[Binding] = field(default_factory=lambda: [BOUND])
    delays: list[float] = field(default_factory=list)
    failing: Exception | None = None
    audited: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    async def bindings(self, user: UserId) -> list[Binding]:
        if self.failing is not None:
            raise self.failing
        seen = list(self.bound)
        await asyncio.sleep(self.delays.pop(0) if self.delays else 0)
        return seen

    async def of(self, tenant: TenantId, user: UserId) -> list[EgressRule]:
        return []

    async def news(self, after: int | None) -> tuple[int, list[str]]:
        return 0, []

    def noticed(self) -> list[Altered]:
        return []

    async def of_box(self, box: BoxId) -> list[tuple[str, Invoker, int]]:
        return []

    async def open(self, identifier: str, who: Invoker, port: int) -> None: ...
    async def close(self, identifiers: Collection[str]) -> None: ...
    async def authority(self, tenant: TenantId, user: UserId) -> Authority:
        return Authority("", Secret(b"key"), datetime.max.replace(tzinfo=UTC))

    async def forget(self, tenant: TenantId, user: UserId) -> None: ...

    async def record(self, actor: object, action: str, subject: str, details: Mapping[str, Any]) -> None:
        self.audited.append((action, details))

    async def release(self, actor: object, wanted: object) -> Secret:
        return Secret(b"value")

    async def lend(self, actor: object, wanted: object) -> Lent:
        return Lent(Secret(b"value"), 1)


@dataclass
class Worker:
    """The far end of a control socket: confirms what it is told, and keeps it."""

    sock: socket.socket
    heard: list[dict[str, Any]] = field(default_factory=list)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await self.say(t="ready", version=VERSION)
        while data := await loop.sock_recv(self.sock, MAX_PACKET):
            said = json.loads(data)
            self.heard.append(said)
            if said["t"] == "configure" and said["part"] + 1 == said["parts"]:
                await self.say(t="done", seq=said["seq"])
            elif said["t"] == "revoke":
                await self.say(t="done", n=said["n"])

    async def say(self, **body: Any) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, json.dumps(body).encode())

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.heard if each["t"] == kind]

    def bound(self) -> list[str]:
        """Ids of the bindings of its newest configuration."""
        return [each["id"] for each in self.configured()["bindings"]]

    def configured(self) -> dict[str, Any]:
        """Its newest configuration."""
        last = self.of("configure")[-1]["seq"]
        text = "".join(each["text"] for each in self.of("configure") if each["seq"] == last)
        found: dict[str, Any] = json.loads(text)
        return found


@dataclass
class Outlets:
    """ports.Outlets."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)  # what `open` waits for
    errors: list[Exception] = field(default_factory=list)  # of the next calls for a worker
    calls: int = 0
    workers: list[Worker] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def listen(self, box: BoxId, port: int) -> list[Listener]:
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        return [Listener("proxy" if port else "transparent", port, sock.detach())]

    async def worker(self, box: BoxId) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        self.workers.append(Worker(theirs))
        self.tasks.append(asyncio.ensure_future(self.workers[-1].run()))
        return ours.detach()

    async def end_worker(self, box: BoxId) -> None:
        await self.gate.wait()

    async def trust(self, box: BoxId, certificate: str) -> None: ...


@dataclass
class Stage:
    way_out: WayOut
    rows: Rows
    outlets: Outlets

    async def open(self, tenant: TenantId = TENANT, user: UserId = USER) -> None:
        self.outlets.gate.set()
        await self.way_out.open(BOX, tenant, user, [])

    @property
    def outpost(self) -> Outpost:
        return self.way_out._outposts[BOX]

    def bound(self) -> Sequence[str]:
        return list(self.outpost.bindings)

    async def ring(self) -> None:
        """Somebody connects, and leaves."""
        [listener] = [each for each in self.outpost.sockets if each.kind == "transparent"]
        with socket.socket(fileno=os.dup(listener.fd)) as sock, socket.create_connection(sock.getsockname()):
            await asyncio.sleep(0.1)

    async def working(self) -> Worker:
        """The worker that a connection calls for, configured."""
        await self.ring()
        async with asyncio.timeout(5):
            while not (self.outpost.worker and self.outlets.workers[-1].of("listen")):
                await asyncio.sleep(0.01)
        return self.outlets.workers[-1]


@asynccontextmanager
async def staged(other: SqlStore | None = None, bounds: Bounds | None = None) -> AsyncIterator[Stage]:
    """`other`: a real store in the place of the scripted one, but for invocations."""
    rows, outlets = Rows(), Outlets()
    scripted = SimpleNamespace(credentials=rows, egress_rules=rows, audit=rows, rolls=rows, shared=False)
    parts = scripted if other is None else other
    store = SimpleNamespace(
        **{name: getattr(parts, name) for name in ("credentials", "egress_rules", "audit", "rolls", "shared")},
        invocations=rows,
    )
    clock = SimpleNamespace(monotonic=time.monotonic, now=lambda: datetime.now(UTC))
    numbers = iter(range(1, 1000))
    ids = SimpleNamespace(new=lambda prefix: f"{prefix}_{next(numbers)}")
    sources = Sources(store, outlets, rows, rows, clock, ids, Site(roots="", bounds=bounds or Bounds()), b"k" * 32)
    stage = Stage(WayOut(sources), rows, outlets)
    try:
        yield stage
    finally:
        for each in outlets.workers:
            each.sock.close()
        for task in outlets.tasks:
            task.cancel()
        await asyncio.gather(*outlets.tasks, return_exceptions=True)
        await stage.way_out.stop()
