"""The world outside of a worker, on loopback: a CA with good and bad leaves, TLS servers, a nameserver that counts."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import cast

import dns.flags
import dns.message
import dns.rdatatype
import dns.rrset
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ringfence.host.egress.configuration import Bounds, Configuration, Pin
from ringfence.host.egress.minting import Minter
from ringfence.host.egress.resolver import Resolver
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.upstream import Dialler
from ringfence.host.kernel.outward.secret import Secret

NOW = datetime.now(UTC)
LOOPBACK = "127.0.0.1"
Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class Ca:
    """As a user's CA is made: P-256, pathlen 0, a subject key identifier. `days`: it still lives."""

    def __init__(self, name: str, days: float = 365) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        self.certificate = (
            self._builder(self.name, self.key, NOW + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.secret = Secret(pem_of(self.key))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, until: datetime) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - timedelta(days=30))
            .not_valid_after(until)
        )

    def leaf(self, directory: Path, *names: str, until: datetime | None = None) -> ssl.SSLContext:
        """A server's, for all these names; a second one, `until`: expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [
            x509.IPAddress(ip_address(name)) if name[0].isdigit() or ":" in name else x509.DNSName(name)
            for name in names
        ]
        identity = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        leaf = (
            self._builder(x509.Name([]), key, until or NOW + timedelta(days=30))
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=True)
            .add_extension(identity, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        path = directory / f"{x509.random_serial_number():x}.pem"
        path.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + pem_of(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def trusting(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.pem)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        return context

    def minter(self, bounds: Bounds | None = None, clock: Callable[[], float] = lambda: 0.0) -> Minter:
        return Minter(self.pem, self.secret, bounds or Bounds(), lambda: NOW, clock)


def configuration(ca: Ca, roots: str, **fields: object) -> Configuration:
    values: dict[str, object] = {
        "user": "usr_1",
        "rules": (),
        "bindings": (),
        "ca_certificate": ca.pem,
        "ca_key": ca.secret,
        "roots": roots,
        "nameservers": (),
    }
    return Configuration(**{**values, **fields})  # type: ignore[arg-type]


def pin(host: str, to: int, port: int = 443, address: str = LOOPBACK) -> Pin:
    return Pin(host, port, address, to)


def dialler(roots: str, **fields: object) -> Dialler:
    """With the resolvers that `nameservers` names; no IPv6 questions."""
    made = configuration(Ca("nobody"), roots, **fields)
    resolver = Resolver(made.nameservers, asyncio.get_running_loop().time, v6=lambda: False, seconds=0.3)
    return Dialler(made, resolver, Trust().context(roots))


@dataclass
class Line:
    """A server of lines: says back what it is told. `seen`: names of SNI, `greeting`: said first."""

    connections: int = 0
    lines: list[bytes] = field(default_factory=list)
    seen: list[str | None] = field(default_factory=list)
    protocols: list[str | None] = field(default_factory=list)
    greeting: bytes = b""
    port: int = 0
    ended: int = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        session = writer.get_extra_info("ssl_object")
        self.protocols.append(session.selected_alpn_protocol() if session else None)
        try:
            writer.write(self.greeting)
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
        finally:
            self.ended += 1


@asynccontextmanager
async def serving(connected: Connected, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """On a port of loopback; at the end nobody is connected any more."""
    live: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        live[writer] = task
        try:
            await connected(reader, writer)
        except (OSError, EOFError):
            return
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)
            live.pop(writer, None)

    server = await asyncio.start_server(run, LOOPBACK, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in list(live):
            writer.transport.abort()
        await asyncio.gather(*live.values())
        await server.wait_closed()
        await asyncio.sleep(0.01)  # what aborts says so to the loop's next turn


@asynccontextmanager
async def line(context: ssl.SSLContext | None, greeting: bytes = b"") -> AsyncIterator[Line]:
    made = Line(greeting=greeting)
    if context is not None:
        context.sni_callback = lambda session, name, _: made.seen.append(name)
        context.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(made.connected, context) as made.port:
        yield made


Records = Callable[[str, str], Iterable[str]]


class NameServer:
    """Authoritative for everything, by a function of (name, type) that gives lines `TTL TYPE DATA` or `NAME TTL TYPE DATA`;
    `asked` counts. `change`: what is done to an answer, or None to swallow it."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.asked: list[tuple[str, str]] = []
        self.by_tcp: list[str] = []
        self.ids: list[int] = []
        self.ports: list[int] = []
        self.change: Callable[[dns.message.Message], list[bytes]] = lambda answer: [answer.to_wire(max_size=65535)]
        self.truncates = False
        self.port = 0

    def answers(self, wire: bytes, port: int, *, tcp: bool) -> list[bytes]:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind))
        self.ids.append(query.id)
        self.ports.append(port)
        if tcp:
            self.by_tcp.append(name)
        answer = dns.message.make_response(query, recursion_available=True)
        if self.truncates and not tcp:
            answer.flags |= dns.flags.TC
            return [answer.to_wire()]
        for record in self.records(name, kind):
            words = record.split()
            owner = name if words[0].isdigit() else words.pop(0)
            rrset = dns.rrset.from_text(owner.rstrip(".") + ".", int(words[0]), "IN", words[1], " ".join(words[2:]))
            answer.answer.append(rrset)
        return self.change(answer)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # by duck: asyncio's is no subclass of it

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        for answer in self._server.answers(data, addr[1], tcp=False):
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def nameserver(records: Records) -> AsyncIterator[NameServer]:
    made = NameServer(records)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack("!H", await reader.readexactly(2))
        for answer in made.answers(await reader.readexactly(size), 0, tcp=True):
            writer.write(struct.pack("!H", len(answer)) + answer)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async with serving(connected) as made.port:
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Datagrams(made), local_addr=(LOOPBACK, made.port)
        )
        try:
            yield made
        finally:
            transport.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """(the box's end, blocking; ours, non-blocking) of a TCP connection on loopback."""
    with socket.create_server((LOOPBACK, 0)) as server:
        box = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    ours.setblocking(False)
    return box, ours


def client_hello(name: str | None, *protocols: str, context: ssl.SSLContext | None = None) -> bytes:
    """What OpenSSL says first."""
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake of one side")
