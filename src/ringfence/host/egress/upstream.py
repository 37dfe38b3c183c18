"""Connections to servers, made for a host that policy has let through: resolved once, every answer judged, the judged address
dialled, the certificate verified for the name that was asked for.

Who calls has decided before: a look-up is the first thing that is seen outside. It must never resolve between judging and
dialling, dial an address that was not judged, take a name for SNI or verification from anywhere but its caller, or go on
without a certificate; there is no switch for that.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ringfence.host.egress import corporate, racing, streams
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.keeping import Held, Keeping, Way
from ringfence.host.egress.needs import DialFailed
from ringfence.host.egress.ours import ours
from ringfence.host.egress.reach import Reach
from ringfence.host.egress.resolver import ResolveFailed, Resolver
from ringfence.host.egress.streams import AHEAD, HIGH_WATER, SmallTls, Streams
from ringfence.host.kernel.outward import addresses, authority

_CONNECT = 10.0  # seconds for all addresses together, the company's proxy included
_HANDSHAKE = 10.0


class UpstreamError(DialFailed):
    """`reason`: resolve_failed | address_denied | connect_failed | tls_failed | timeout | proxy_failed | too_many. Its text
    is for the operator's log: it may name an address, never anything that was sent."""


class Dialler:
    """One for each configuration. `context`: a client's that asks for a certificate and the name (trust.py). Invalid,
    ValueError: a pin or an inside range is not well-formed."""

    def __init__(self, configuration: Configuration, resolver: Resolver, context: ssl.SSLContext) -> None:
        self._answers = configuration.bounds.answers
        self._proxy = configuration.upstream_proxy
        self._reach = Reach(configuration)
        self._resolver = resolver
        self._context = context
        self._keeping = Keeping(configuration.bounds.upstream_each)

    async def connect(self, host: str, port: int, tls: bool = True) -> Streams:
        """To a canonical host, an address only as a literal of its own; a kept connection if there is one. UpstreamError."""
        way = Way(host, port, tls)
        try:
            held = await self._keeping.place(way)
        except TimeoutError:
            raise UpstreamError("too_many", f"the connections to {host} are all in use") from None
        if held is None:
            held = await self._made(way)
        return held.reader, held.writer

    def keep(self, writer: asyncio.StreamWriter) -> None:
        """Gives back what `connect` gave: its exchange is over, nothing of it is still to come, and nothing about it belongs
        to who used it. Everybody else aborts the transport."""
        protocol = writer.transport.get_protocol()
        if isinstance(protocol, _Ending) and protocol.held is not None and protocol.of is self._keeping:
            self._keeping.keep(protocol.held)
        else:  # ended, or made by another configuration: what that one let through is over
            streams.abort(writer)

    def close(self) -> None:
        """Another configuration is in force: idle connections end, those in use when they are given back."""
        self._keeping.close()

    def open(self, host: str) -> int:
        return self._keeping.open(host)

    # --- a new one -----------------------------------------------------------------------------------------------

    async def _made(self, way: Way) -> Held:
        place = _Place(self._keeping, way.host)
        try:
            sock = await self._socket(way.host, way.port)
            return await self._opened(sock, way, place)
        except BaseException:
            place.leave()
            raise

    async def _socket(self, host: str, port: int) -> socket.socket:
        """Connected to the host, or to it through the company's proxy."""
        try:
            async with asyncio.timeout(_CONNECT):
                pinned = self._reach.pinned(host, port)
                if pinned is not None:
                    return await self._dial(host, (pinned[0],), pinned[1])
                if self._proxy is not None:
                    return await self._through(self._proxy, host, port)
                found = await self._found(host)
                self._judge(host, found)
                self._not_ours(host, found)
                return await self._dial(host, found, port)
        except TimeoutError:
            raise UpstreamError("timeout", f"{host} did not take a connection in {_CONNECT:g} s") from None

    async def _found(self, host: str) -> tuple[str, ...]:
        if authority.literal(host) is not None:
            return (host,)
        try:
            return (await self._resolver.resolve(host))[: self._answers]
        except ResolveFailed as error:
            raise UpstreamError("resolve_failed", f"{host}: {error}") from None

    def _judge(self, host: str, found: tuple[str, ...]) -> None:
        why = self._reach.refused(host, found)
        if why is not None:
            raise UpstreamError("address_denied", f"{host} leads to {', '.join(found)}: {why}")

    def _not_ours(self, host: str, found: tuple[str, ...]) -> None:
        """The list in the configuration is of when it was made."""
        if any(ours(address) for address in found):
            raise UpstreamError("address_denied", f"{host} leads to an address of this host")

    async def _dial(self, host: str, found: tuple[str, ...], port: int) -> socket.socket:
        if any(addresses.metadata(address) for address in found):  # whatever a pin or the company's proxy says
            raise UpstreamError("address_denied", f"{host} leads to a metadata service")
        try:
            return await racing.connected(found, port)
        except TimeoutError:
            raise
        except OSError as error:
            raise UpstreamError("connect_failed", f"{host}: {error.strerror or 'no connection'}") from None

    async def _through(self, proxy: tuple[str, int], host: str, port: int) -> socket.socket:
        """Names are the proxy's to resolve: hosts behind one often cannot. An address is judged here as ever."""
        if authority.literal(host) is not None:
            self._judge(host, (host,))
        sock = await self._dial(proxy[0], await self._found(proxy[0]), proxy[1])
        try:
            await corporate.tunnel(sock, host, port)
        except TimeoutError:
            sock.close()
            raise
        except (corporate.ProxyFailed, OSError) as error:
            sock.close()
            raise UpstreamError("proxy_failed", f"{host}: {error}") from None
        except BaseException:
            sock.close()
            raise
        return sock

    # --- streams -------------------------------------------------------------------------------------------------

    async def _opened(self, sock: socket.socket, way: Way, place: _Place) -> Held:
        loop = asyncio.get_running_loop()
        reader = _Whole(limit=AHEAD)
        protocol = _Ending(reader, place, self._keeping)
        if way.tls:
            waiter = loop.create_future()
            tls = reader.tls = _Tls(
                loop, protocol, self._context, waiter, server_hostname=way.host, ssl_shutdown_timeout=_HANDSHAKE
            )
            async with _verified(way.host):
                raw, _ = await loop.create_connection(lambda: tls, sock=sock)
                try:
                    async with asyncio.timeout(_HANDSHAKE):
                        await waiter
                except BaseException:
                    raw.abort()
                    raise
        else:
            await loop.create_connection(lambda: protocol, sock=sock)
        if protocol.transport is None:
            raise UpstreamError("connect_failed", f"{way.host} closed the connection")
        protocol.transport.set_write_buffer_limits(high=HIGH_WATER)
        writer = asyncio.StreamWriter(protocol.transport, protocol, reader, loop)
        held = protocol.held = Held(way, reader, writer)
        return held


class _Tls(SmallTls):
    """Remembers whether the server ended by a close_notify, at which asyncio begins its shutdown."""

    notified = False

    def _start_shutdown(self) -> None:
        self.notified = True
        super()._start_shutdown()


class _Whole(asyncio.StreamReader):
    """Of a TLS connection ends only where the server said so (RFC 8446 6.1): an end that somebody on the way made is an error
    to whoever comes to it, as it is to curl. asyncio takes one for the other."""

    tls: _Tls | None = None

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        if not data and n and self.tls is not None and not self.tls.notified:
            raise ConnectionResetError("the connection was cut")
        return data


class _Place:
    """Given back once, whichever way a connection ends."""

    def __init__(self, keeping: Keeping, host: str) -> None:
        self._keeping = keeping
        self._host = host
        self._left = False

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self._keeping.leave(self._host)


class _Ending(asyncio.StreamReaderProtocol):
    def __init__(self, reader: asyncio.StreamReader, place: _Place, of: Keeping) -> None:
        super().__init__(reader)
        self.of = of
        self._place = place
        self.transport: asyncio.Transport | None = None
        self.held: Held | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.held = None
        self._place.leave()
        super().connection_lost(exc)


@asynccontextmanager
async def _verified(host: str) -> AsyncIterator[None]:
    """A handshake: what fails in it is TLS that failed."""
    try:
        yield
    except TimeoutError:
        raise UpstreamError("timeout", f"{host} did not finish its handshake in {_HANDSHAKE:g} s") from None
    except ssl.SSLCertVerificationError as error:
        raise UpstreamError("tls_failed", f"{host}: {error.verify_message}") from None
    except OSError as error:
        raise UpstreamError("tls_failed", f"{host}: {getattr(error, 'reason', '') or 'the handshake ended'}") from None
