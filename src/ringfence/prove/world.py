"""The world outside of prove's boxes: a TLS server and a nameserver on loopback that keep whatever arrives.

The server is as careless as one can be: it answers to every name, reflects what it is told, and takes each request. The
nameserver leads every name to this host. Must never listen anywhere but on loopback.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.minting import Minter
from ringfence.host.kernel.ids import UserId
from ringfence.host.vault import certificate
from ringfence.prove.receiving import Answering, at_work

# Pinned to the server. What is allowed where says outward_stage.py; nobody allows DENIED.
API, OTHER, DENIED = "api.prove.test", "other.prove.test", "denied.prove.test"
LOOKALIKES = ("evilapi.prove.test", "api.prove.test.denied.test", "api-prove.test")
INSIDE = "inside.prove.test"  # allowed, and pinned nowhere: the nameserver leads it to this host's loopback
MINE = "/mine"  # below it the credential is bound
LOOPBACK = "127.0.0.1"
WAIT_SECONDS = 120.0
_CA = "outside.pem"
_SPECIAL = (
    '%/+"~z'  # written otherwise in a URL, in a form and in JSON, so that those spellings are others than the value
)
# A model that nobody asks: with one, each command has a key for the gateway.
MODEL_KEY = "model-key"
_MODEL = f'''[[model_upstream]]
alias = "outside"
provider = "openai"
base_url = "https://{API}/v1"
model = "none"
key = "{MODEL_KEY}"
'''


@dataclass(frozen=True, slots=True)
class Arrival:
    host: str  # by SNI
    line: str
    head: str
    body: bytes  # its first 64 KiB

    def holds(self, text: bytes) -> bool:
        return text in f"{self.line}\n{self.head}".encode() or text in self.body


class World:
    """`asked`: names that the nameserver was asked for. Safe to read while it serves."""

    def __init__(self, folder: Path) -> None:
        self.arrivals: list[Arrival] = []
        self.asked: list[str] = []
        self.port = self.dns_port = 0
        self.ca = folder / _CA
        self._secrets: dict[str, bytes] = {}
        self._late: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        authority = certificate.make(UserId("prove"), datetime.now(UTC))  # noqa: TID251  a certificate's, for real clients
        self.pem = authority.certificate
        self.ca.write_text(self.pem)
        self.ca.chmod(0o644)
        self._minter = Minter(self.pem, authority.key, Bounds(), lambda: datetime.now(UTC), time.monotonic)  # noqa: TID251

    def secret(self, user: str) -> bytes:
        """The value of that user's credential: in the vault and here, nowhere else."""
        with self._lock:
            return self._secrets.setdefault(user, f"outside-{secrets.token_hex(20)}{_SPECIAL}".encode())

    def late(self, path: str) -> threading.Event:
        """What the answer to that path waits for."""
        with self._lock:
            return self._late.setdefault(path, threading.Event())

    def at(self, host: str) -> list[Arrival]:
        return [each for each in list(self.arrivals) if each.host == host]

    def context(self, host: str) -> ssl.SSLContext:
        with self._lock:
            return self._minter.context(host)

    def settings(self) -> str:
        """The table of ringfence.toml that leads boxes here."""
        pins = ", ".join(f'"{host}={LOOPBACK}:{self.port}"' for host in (API, OTHER, DENIED, *LOOKALIKES))
        servers = f'nameservers = ["{LOOPBACK}:{self.dns_port}"]'
        return f'[egress]\npins = [{pins}]\n{servers}\nroot_ca = "{self.ca}"\n{_MODEL}'


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    made = World(folder)
    server = _Server((LOOPBACK, 0), _Handler)
    server.world = made
    made.port = server.server_port
    with at_work(server), _nameserver(made):
        yield made


def direct(world: World, host: str, raw: bytes) -> bytes:
    """The same server asked by nobody's box: what there is to see without a worker in between."""
    context = ssl.create_default_context(cadata=world.pem)
    with (
        socket.create_connection((LOOPBACK, world.port), 10) as wire,
        context.wrap_socket(wire, server_hostname=host) as secured,
    ):
        secured.sendall(raw)
        answer = b""
        while piece := secured.recv(65536):
            answer += piece
        return answer


# --- the server -------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    world: World
    daemon_threads = True

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: one that says nothing holds up nobody."""
        request.settimeout(WAIT_SECONDS)
        base = self.world.context(API)
        names: list[str] = []

        def chosen(session: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            names.append(name or "")
            session.context = self.world.context(name or API)

        with contextlib.suppress(OSError, ValueError):
            context = _fresh(base, chosen)
            with context.wrap_socket(request, server_side=True) as secured:
                _Handler(secured, (names[-1] if names else "", client_address[1]), self)


def _fresh(base: ssl.SSLContext, chosen: Any) -> ssl.SSLContext:
    """A context of this connection's own: the callback is its."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.sni_callback = chosen
    made.set_alpn_protocols(["http/1.1"])
    return made


class _Handler(Answering):
    server: _Server
    protocol_version = "HTTP/1.1"

    def _any(self) -> None:
        length = self.headers.get("Content-Length", "0")
        body = self._body(int(length)) if length.isdigit() else b""
        arrival = Arrival(str(self.client_address[0]), self.requestline, str(self.headers), body)
        self.server.world.arrivals.append(arrival)
        path = self.path.partition("?")[0]
        if "/late" in path:
            self.server.world.late(path).wait(WAIT_SECONDS)
        self._answer(path)

    do_GET = do_POST = do_PUT = do_HEAD = do_TRACE = do_CONNECT = _any

    def _body(self, length: int) -> bytes:
        kept = b""
        while length > 0:
            piece = self.rfile.read(min(length, 65536))
            if not piece:
                break
            kept, length = kept or piece, length - len(piece)
        return kept

    def _answer(self, path: str) -> None:
        reflected = self.headers.get("Authorization", "").partition(" ")[2] if path.endswith("/echo") else ""
        data = "\n".join(_forms(reflected)).encode() if reflected else b"hello"
        moved = path.endswith("/moved")
        self.send_response(302 if moved else 200)
        self.send_header("X-Prove", "arrived")
        self.send_header("Content-Length", str(len(data)))
        if moved:
            self.send_header("Location", f"https://{OTHER}/taken")
        if reflected:
            self.send_header("X-Seen", reflected)
        self.end_headers()
        self.wfile.write(data)


def _forms(text: str) -> list[str]:
    """As servers reflect: in errors, debug pages, logs that they show."""
    raw = text.encode()
    spread = [base64.b64encode(b"x" * n + raw).decode() for n in range(3)]
    return [text, json.dumps({"token": text}), raw.hex(), raw.hex().upper(), quote(text), quote(text, safe=""), *spread]


# --- the nameserver ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _nameserver(world: World) -> Iterator[None]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.bind((LOOPBACK, 0))
        wire.settimeout(0.2)
        world.dns_port = wire.getsockname()[1]
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError, ValueError, IndexError):
                    data, whose = wire.recvfrom(2048)
                    wire.sendto(_answer(world, data), whose)

        thread = threading.Thread(target=serve, daemon=True, name="prove-nameserver")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _answer(world: World, data: bytes) -> bytes:
    """RFC 1035: the question again, and for A the address of loopback."""
    labels, at = [], 12
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode("ascii", "replace"))
        at += size + 1
    world.asked.append(".".join(labels))
    question = data[12 : at + 5]
    is_address = struct.unpack("!H", data[at + 1 : at + 3])[0] == 1
    head = data[:2] + struct.pack("!5H", 0x8180, 1, int(is_address), 0, 0)
    record = b"\xc0\x0c" + struct.pack("!2HIH", 1, 1, 1, 4) + socket.inet_aton(LOOPBACK)
    return head + question + (record if is_address else b"")
