"""The HTTP side of the way out as it runs, on loopback: real listeners, a real TLS upstream, a kernel port that records.

The dialler is the real one, with pins to the upstreams' ports; certificates are verified for the name.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ringfence.host.egress import streams
from ringfence.host.egress.configuration import Bounds, Configuration, Pin
from ringfence.host.egress.counting import Counting
from ringfence.host.egress.hello import peek
from ringfence.host.egress.judging import Policy
from ringfence.host.egress.limits import Flow
from ringfence.host.egress.needs import Intent, Outcome, Traffic, Withheld
from ringfence.host.egress.resolver import Resolver
from ringfence.host.egress.serving import Serving
from ringfence.host.egress.tickets import Ticket, Tickets
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.upstream import Dialler, UpstreamError
from ringfence.host.egress.works import Desk, Works
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.ports import HoldAnswer
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.shapes import SHAPES
from tests.support.egress_tls import Authority
from tests.support.egress_upstream import Upstream

INVOCATION = "inv_1"
EXPLICIT, TRANSPARENT = 101, 1022
SECRET = b"s3cret/Value+9876543210"


def placeholder(seed: int = 1, shape: str = "github") -> str:
    return placeholders.make(SHAPES[shape], bytes([seed]) * 17)


def rule(host: str = "api.test", answer: Verdict = Verdict.ALLOW, **fields: Any) -> EgressRule:
    return EgressRule(f"rul_{host}_{answer}", answer, host, **fields)


def binding(host: str = "api.test", **fields: Any) -> Binding:
    return Binding(fields.pop("id", "bnd_1"), fields.pop("credential", "crd_1"), host, **fields)


@dataclass
class FakeKernel:
    """The server's end. `secrets`: by credential; Withheld when it is not among them."""

    secrets: dict[str, bytes] = field(default_factory=lambda: {"crd_1": SECRET})
    renewed: dict[str, bytes] = field(default_factory=dict)  # access tokens in place of those that were refused
    asked: list[tuple[str, ...]] = field(default_factory=list)
    intents: list[Intent] = field(default_factory=list)
    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    holds: list[EgressRule] = field(default_factory=list)
    named: list[str] = field(default_factory=list)  # names of parameters, of each hold
    hold_answer: HoldAnswer = "allow"
    recording: bool = True
    counted: list[Traffic] = field(default_factory=list)
    findings: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    gateways: list[tuple[str, str]] = field(default_factory=list)
    gateway_port: int = 0
    order: list[str] = field(default_factory=list)

    async def secret(self, credential: str, binding: str, invocation: str, host: str, method: str, path: str) -> Secret:
        self.order.append("secret")
        self.asked.append((credential, binding, invocation, host, method, path))
        if credential not in self.secrets:
            raise Withheld("the vault is sealed")
        return Secret(self.secrets[credential])

    async def another(
        self, credential: str, binding: str, invocation: str, host: str, method: str, path: str, old: Secret
    ) -> Secret | None:
        self.order.append("another")
        value = self.renewed.get(credential)
        return Secret(value) if value is not None and Secret(value) != old else None

    async def intent(self, intent: Intent) -> str:
        self.order.append("intent")
        if not self.recording:
            raise Withheld("there is no room for the record")
        self.intents.append(intent)
        return f"row_{len(self.intents)}"

    def outcome(self, row: str, outcome: Outcome) -> None:
        self.outcomes.append((row, outcome))

    async def hold(self, invocation: str, rule: EgressRule, query: str = "") -> HoldAnswer:
        self.order.append("hold")
        self.holds.append(rule)
        self.named.append(query)
        return self.hold_answer

    async def gateway(self, invocation: str, digest: str) -> socket.socket:
        self.gateways.append((invocation, digest))
        if not self.gateway_port:
            raise Withheld("there is no model gateway", configured=False)
        return socket.create_connection(("127.0.0.1", self.gateway_port))

    def traffic(self, items: Sequence[Traffic], dropped: int) -> None:
        self.counted += items

    def finding(self, kind: str, invocation: str, details: Mapping[str, str]) -> None:
        self.findings.append((kind, invocation, details))


class SeenDialler:
    """The real one, seen: `look_ups` are what it was asked for, `failing` a reason to fail with instead."""

    def __init__(self, order: list[str]) -> None:
        self.order = order
        self.look_ups: list[tuple[str, int]] = []
        self.failing = ""
        self.table: dict[tuple[str, int], int] = {}
        self.trust: Authority | None = None
        self._real: Dialler | None = None

    def use(self, configuration: Configuration) -> None:
        assert self.trust is not None
        resolver = Resolver((), asyncio.get_running_loop().time)
        self._real = Dialler(configuration, resolver, Trust().context(self.trust.pem))

    def pins(self) -> tuple[Pin, ...]:
        return tuple(Pin(host, port, "127.0.0.1", to) for (host, port), to in self.table.items())

    async def connect(
        self, host: str, port: int, tls: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.order.append("dial")
        self.look_ups.append((host, port))
        if self.failing:
            raise UpstreamError(self.failing)
        assert self._real is not None
        return await self._real.connect(host, port, tls)

    def keep(self, writer: asyncio.StreamWriter) -> None:
        assert self._real is not None
        self._real.keep(writer)

    def close(self) -> None:
        if self._real is not None:
            self._real.close()


@dataclass
class Names:
    table: dict[str, str] = field(default_factory=dict)

    def name_of(self, address: str) -> str | None:
        return self.table.get(address)


@dataclass
class Rig:
    directory: Path
    user_ca: Authority
    upstream_ca: Authority
    upstream: Upstream
    plain: Upstream
    kernel: FakeKernel
    dialler: SeenDialler
    desk: Desk
    serving: Serving
    names: Names
    ports: dict[int, int]
    configuration: Configuration
    destination: tuple[str, int] = ("198.18.0.1", 443)
    clock: float = 1000.0
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    def configure(self, **fields: Any) -> None:
        self.configuration = replace(self.configuration, pins=self.dialler.pins(), **fields)
        self.dialler.use(self.configuration)
        policy = Policy(self.configuration)
        self.serving.install(Works(self.configuration, policy, self.user_ca, self.dialler, self.names, peek))

    def ticket(
        self, text: str, *, uses: int | None = None, expires: float = 5000.0, invocation: str = INVOCATION
    ) -> None:
        item = Ticket(placeholders.digest(text), "crd_1", "bnd_1", expires, uses)
        self.desk.tickets.replace(invocation, [item])

    @property
    def port(self) -> int:
        return self.ports[EXPLICIT]

    # --- raw clients ---------------------------------------------------------------------------------------------

    async def raw(self, data: bytes, port: int = EXPLICIT) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
        self.clients.append(writer)
        writer.write(data)
        return reader, writer

    async def tunnel(
        self, host: str = "api.test", port: int = 443, *, sni: str | None = None, tls: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Through CONNECT and, but for `tls` False, a handshake with the user's CA. ConnectionError: refused."""
        reader, writer = await self.raw(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        said = await reader.readuntil(b"\r\n\r\n")
        if not said.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(said.decode() + (await reader.read()).decode())
        if tls:
            await self.greet(writer, sni or host, check=sni is None)
        return reader, writer

    async def greet(self, writer: asyncio.StreamWriter, name: str, *, check: bool = True) -> None:
        context = self.user_ca.trusting()
        context.check_hostname = check
        await writer.start_tls(context, server_hostname=name)

    async def asked(self, request: bytes, host: str = "api.test", port: int = 443) -> Reply:
        """One request inside a fresh tunnel."""
        reader, writer = await self.tunnel(host, port)
        try:
            writer.write(request)
            return await reply(reader)
        finally:
            streams.abort(writer)


@dataclass(frozen=True)
class Reply:
    status: int
    head: bytes
    body: bytes

    @property
    def reason(self) -> str:
        lines = [
            line for line in self.head.decode("latin-1").split("\r\n") if line.lower().startswith("x-egress-reason:")
        ]
        return lines[0].partition(":")[2].strip() if lines else ""

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


async def reply(reader: asyncio.StreamReader, *, seconds: float = 10.0) -> Reply:
    """One response with Content-Length or chunked, whole; ConnectionError: none came."""
    async with asyncio.timeout(seconds):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"the connection ended: {error.partial!r}") from None
        lower = head.lower()
        body = b""
        if b"transfer-encoding: chunked" in lower:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readuntil(b"\r\n")
        elif b"content-length: " in lower:
            body = await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))
        return Reply(int(head.split(b" ")[1]), head, body)


def request(
    method: str = "GET", path: str = "/", *fields: str, host: str = "api.test", body: bytes | None = None
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *fields]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


@asynccontextmanager
async def rig(directory: Path, *, bounds: Bounds | None = None, **fields: Any) -> AsyncIterator[Rig]:
    """`fields`: of the configuration; rules default to api.test, allowed whole."""
    user_ca, upstream_ca = Authority(directory, "user"), Authority(directory, "upstream")
    upstream, plain = Upstream(), Upstream()
    serving_context = upstream_ca.context("api.test")
    await upstream.start(serving_context)
    await plain.start(None)
    kernel = FakeKernel()
    table = {("api.test", 443): upstream.port, ("api.test", 80): plain.port, ("git.test", 443): upstream.port}
    dialler = SeenDialler(kernel.order)
    dialler.table, dialler.trust = table, upstream_ca
    limits = bounds or Bounds()
    configuration = Configuration(
        user="usr_1",
        rules=fields.pop("rules", (rule(),)),
        bindings=fields.pop("bindings", (binding(),)),
        ca_certificate=user_ca.pem,
        ca_key=Secret(b""),
        roots=upstream_ca.pem,
        nameservers=(),
        bounds=limits,
        **fields,
    )
    names = Names({"198.18.0.1": "api.test"})
    loop = asyncio.get_running_loop()
    made: list[Rig] = []
    desk = Desk(kernel, Tickets(lambda: made[0].clock), Flow(limits, loop.time), Counting(), limits)
    serving = Serving(desk, destination=lambda _: made[0].destination)
    made.append(
        Rig(directory, user_ca, upstream_ca, upstream, plain, kernel, dialler, desk, serving, names, {}, configuration)
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(serving.run())
            await asyncio.sleep(0)
            made[0].configure()
            for port in (EXPLICIT, TRANSPARENT):
                _listen(made[0], port)
            try:
                yield made[0]
            finally:
                for writer in made[0].clients:
                    streams.abort(writer)
                await serving.end(0.2)
    finally:
        dialler.close()
        await upstream.stop()
        await plain.stop()


def _listen(one: Rig, port: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    one.ports[port] = listener.getsockname()[1]
    invocation = INVOCATION if port == EXPLICIT else ""
    one.serving.listen(port, listener, invocation=invocation, transparent=port == TRANSPARENT)
