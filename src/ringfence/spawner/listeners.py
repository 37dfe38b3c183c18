"""Sockets inside a box's network namespace, opened for the server and handed to it: the spawner keeps none.

Their ports are below 1024, which nothing in the box can bind (it has no capability in the namespace's owner), and the
box's other half of each connection is its own loopback. Which namespace: that of the box's proven PID 1 and of nobody
who got its pid since. Must never leave the spawner itself in a box's network: if the way back fails, the spawner ends.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import socket
from dataclasses import dataclass
from typing import NoReturn

from ringfence.spawner import identity, network, syscalls
from ringfence.spawner.errors import Busy, Refused, SpawnerError, of_os_error
from ringfence.spawner.identity import Identifier, Live
from ringfence.spawner.nft import DNS_PORT, TRANSPARENT_PORT
from ringfence.spawner.protocol import ListenerKind

BACKLOG = 128  # as many connections as one user may have; the worker starts within some 10 ms
GONE = "the box does not run"
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


@dataclass(frozen=True, slots=True)
class Wanted:
    """One socket. Bound to a loopback address: where the packet rules redirect to."""

    kind: ListenerKind
    family: socket.AddressFamily
    port: int

    @property
    def datagram(self) -> bool:
        return self.kind == "dns_udp"

    def open(self) -> socket.socket:
        """Raises OSError."""
        made = socket.socket(self.family, socket.SOCK_DGRAM if self.datagram else socket.SOCK_STREAM)
        try:
            if self.family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if not self.datagram:  # of a datagram socket it would let a second one take the first one's packets
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("::1" if self.family == socket.AF_INET6 else "127.0.0.1", self.port))
            if not self.datagram:
                made.listen(BACKLOG)
            made.setblocking(False)
        except OSError:
            made.close()
            raise
        return made


def wanted(port: int) -> tuple[Wanted, ...]:
    """`port` 0: the fixed set, names and transparent connections, on both loopbacks."""
    if port:
        return (Wanted("proxy", socket.AF_INET, port),)
    fixed: tuple[tuple[ListenerKind, int], ...] = (
        ("transparent", TRANSPARENT_PORT),
        ("dns_udp", DNS_PORT),
        ("dns_tcp", DNS_PORT),
    )
    return tuple(Wanted(kind, family, at) for kind, at in fixed for family in (socket.AF_INET, socket.AF_INET6))


def open_all(
    live: Live, identifier: Identifier, port: int, *, returns: bool
) -> tuple[list[ListenerKind], tuple[int, ...]]:
    """(kinds, descriptors), the caller's. `returns`: as network.make. Refused: the box has ended; Busy: somebody has the
    port; Failed."""
    namespace = _namespace(live, identifier)
    try:
        if not returns:
            return _in_child(namespace, wanted(port))
        opened = _here(namespace, wanted(port))
        return [kind for kind, _ in opened], tuple(made.detach() for _, made in opened)
    except OSError as error:
        raise _of(error, port) from error
    finally:
        os.close(namespace)


def _of(error: OSError, port: int) -> SpawnerError:
    if error.errno == errno.EADDRINUSE:
        return Busy(f"port {port or TRANSPARENT_PORT} of the box is in use", "end its worker first")
    return of_os_error(error, "opening the box's listeners")


def _namespace(live: Live, identifier: Identifier) -> int:
    """Opened by pid, so compared twice: the process is still that very one after it was opened, and the namespace is the
    one that its box was given."""
    try:
        fd = os.open(f"/proc/{live.identity.pid}/ns/net", os.O_RDONLY)
    except FileNotFoundError:
        raise Refused(GONE, "start it first") from None
    pidfd = identifier.open_live(live)
    alive = pidfd is not None and not identity.exited(pidfd)
    if pidfd is not None:
        os.close(pidfd)
    if not alive or os.fstat(fd).st_ino != live.identity.net_ns:
        os.close(fd)
        raise Refused(GONE, "start it first")
    return fd


def _open(what: tuple[Wanted, ...]) -> list[tuple[ListenerKind, socket.socket]]:
    """All, or none and OSError. What of IPv6 this host lacks is left out."""
    opened: list[tuple[ListenerKind, socket.socket]] = []
    try:
        for one in what:
            try:
                opened.append((one.kind, one.open()))
            except OSError as error:
                if one.family != socket.AF_INET6 or error.errno not in _NO_IPV6:
                    raise
    except OSError:
        for _, made in opened:
            made.close()
        raise
    return opened


def _here(namespace: int, what: tuple[Wanted, ...]) -> list[tuple[ListenerKind, socket.socket]]:
    with network.inside(namespace):
        return _open(what)


def _in_child(namespace: int, what: tuple[Wanted, ...]) -> tuple[list[ListenerKind], tuple[int, ...]]:
    """In a user namespace the spawner could not come back to the host's network, which is somebody else's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        _child(namespace, what, theirs)
    theirs.close()
    with ours:
        try:
            said, fds, _, _ = socket.recv_fds(ours, 256, len(what))
        finally:
            os.waitpid(pid, 0)
    kinds: list[ListenerKind] = [one.kind for n, one in enumerate(what) if said[n : n + 1] == b"+"]
    if not fds or len(fds) != len(kinds):
        code = int(said) if said.isdigit() else errno.EIO
        raise OSError(code, os.strerror(code), "listeners")
    return kinds, tuple(fds)


def _child(namespace: int, what: tuple[Wanted, ...], theirs: socket.socket) -> NoReturn:
    """Says one character for each that was wanted (`+`: its descriptor comes along, `-`: not), or the error's number."""
    code = errno.EIO
    try:
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        opened = _open(what)
        said = "".join("+" if (one.kind, one.family) in [(k, s.family) for k, s in opened] else "-" for one in what)
        fds = array.array("i", [made.fileno() for _, made in opened])
        theirs.sendmsg([said.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        code = 0
    except OSError as error:
        code = error.errno or code
    finally:
        with contextlib.suppress(OSError):
            if code:
                theirs.send(str(code).encode())
        os._exit(0)
