"""What the proxy asks of the parts around it: the server at the other end of the control socket, and the TLS side.

Each is given at the start; nothing here opens anything. The proxy must never reach the server by another way than `Kernel`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringfence.host.kernel.outward.ports import HoldAnswer
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret


class Withheld(Exception):
    """The server gives no secret, no record or no gateway. `why` is for people and holds no value of anything."""

    def __init__(self, why: str, *, configured: bool = True, unknown: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.configured = configured  # False: there is no such thing here, ever
        self.unknown = unknown  # the server knows no such key of this command


class DialFailed(Exception):
    """An upstream could not be had: what `upstream.UpstreamError` is too. `reason`: resolve_failed, address_denied,
    connect_failed, tls_failed, timeout, proxy_failed or too_many."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class NoAuthority(Exception):
    """No leaf certificate at all: the server could not read the user's CA."""


class Exhausted(Exception):
    """No more leaf certificates for now: what `minting.TooMany` is too."""


@dataclass(frozen=True, slots=True)
class Intent:
    """A write that is about to leave. `credential`, `binding`: the first of those it carries, or ""."""

    invocation: str
    credential: str
    binding: str
    host: str
    port: int
    method: str
    path: str  # canonical, without the query


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `status` 0: nothing was answered, `error` says why. Bytes are of bodies."""

    status: int
    error: str
    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests alike, counted. `verdict`: allow | deny | ask; `reason`: a refusal's code or the rule's id."""

    host: str
    port: int
    verdict: str
    reason: str
    invocation: str
    method: str
    requests: int
    up: int
    down: int


class Kernel(Protocol):
    """The server. A call that waits ends with Withheld when the server has gone."""

    async def secret(self, credential: str, binding: str, invocation: str, host: str, method: str, path: str) -> Secret:
        """For this one request; whoever implements it may keep the value until it is revoked. Withheld."""

    async def another(
        self, credential: str, binding: str, invocation: str, host: str, method: str, path: str, old: Secret
    ) -> Secret | None:
        """In place of `old`, an access token that the server has just answered with 401; None: there is no other."""

    async def intent(self, intent: Intent) -> str:
        """Recorded for good when it returns: the row's id. Withheld: nothing may be sent."""

    def outcome(self, row: str, outcome: Outcome) -> None:
        """Never waits, never raises."""

    async def hold(self, invocation: str, rule: EgressRule, query: str = "") -> HoldAnswer:
        """`query`: names of the request's parameters, of which the rule says nothing; for whoever answers."""

    async def gateway(self, invocation: str, digest: str) -> socket.socket:
        """A connected stream to the model gateway, which speaks HTTP/1.1 and knows whose it is. Withheld."""

    def traffic(self, items: Sequence[Traffic], dropped: int) -> None:
        """Never waits, never raises."""

    def finding(self, kind: str, invocation: str, details: Mapping[str, str]) -> None:
        """Never waits, never raises; no value of a secret or placeholder among the details."""


class Minting(Protocol):
    def context(self, host: str, *, denied: bool = False) -> ssl.SSLContext:
        """With a leaf for exactly this name. `denied`: for a refusal alone. Exhausted, NoAuthority."""


class Dialling(Protocol):
    async def connect(
        self, host: str, port: int, tls: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolved once, classified, verified for the name; or one that was kept. DialFailed."""

    def keep(self, writer: asyncio.StreamWriter) -> None:
        """Gives one back whose exchange is over, with nothing of it still to come. Any other is aborted by its user."""


class Naming(Protocol):
    def name_of(self, address: str) -> str | None:
        """Of an address that the synthetic resolver gave out."""


class Greeting(Protocol):
    """What a ClientHello says. `name`: of SNI, canonical, None without one; `ech`: something in it is hidden."""

    @property
    def name(self) -> str | None: ...
    @property
    def ech(self) -> bool: ...
    @property
    def alpn(self) -> tuple[str, ...]: ...


class Peeking(Protocol):
    async def __call__(self, sock: socket.socket, seconds: float) -> Greeting:
        """Without taking a byte. ValueError or TimeoutError or ConnectionError: there is none."""
