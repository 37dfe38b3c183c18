"""A box's network namespace: its own loopback, every other address local, every connection redirected or refused.

Nothing of ours listens in it; until an egress worker holds the listeners, each connection is refused at once. Must never
leave the spawner itself in a box's namespace: if the way back fails, the spawner ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NoReturn

from ringfence.spawner import netlink, nft, syscalls

_LO = 1  # interface index of lo in every network namespace
_NEWLINK, _NEWROUTE = 16, 24
_TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _SCOPE_UNIVERSE, _TYPE_LOCAL = 255, 3, 254, 0, 2
_OUTPUT_INTERFACE = 4  # RTA_OIF


def _link_up() -> bytes:
    # ifinfomsg: family, padding, type, index, flags IFF_UP, change mask IFF_UP
    return netlink.message(_NEWLINK, netlink.REQUEST | netlink.ACK, 1, struct.pack("=BBHiII", 0, 0, 0, _LO, 1, 1))


def _local_default(family: int, scope: int, sequence: int) -> bytes:
    """`ip route add local default dev lo`: every address is this machine's."""
    flags = netlink.REQUEST | netlink.ACK | netlink.CREATE | netlink.EXCL
    # rtmsg: family, destination and source lengths, tos, table, protocol, scope, type, flags
    body = struct.pack("=8BI", family, 0, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, scope, _TYPE_LOCAL, 0)
    return netlink.message(
        _NEWROUTE, flags, sequence, body + netlink.attribute(_OUTPUT_INTERFACE, struct.pack("=I", _LO))
    )


def _configure(rules: bool) -> None:
    """In the new namespace. Rules first: no route to anything exists before they do."""
    if rules:
        data, count = nft.batch()
        netlink.exchange(netlink.NETLINK_NETFILTER, data, count)
    netlink.exchange(netlink.NETLINK_ROUTE, _link_up(), 1)
    if not rules:
        return
    netlink.exchange(netlink.NETLINK_ROUTE, _local_default(2, _SCOPE_HOST, 2), 1)
    with contextlib.suppress(OSError):  # a host without IPv6 has nothing to route
        netlink.exchange(netlink.NETLINK_ROUTE, _local_default(10, _SCOPE_UNIVERSE, 3), 1)


def make(*, rules: bool, returns: bool) -> int:
    """A descriptor of a new, configured network namespace. `rules` False (no nf_tables): loopback alone, no route, so
    every other address is unreachable. `returns`: the caller may enter its own namespace again (root may; in a user
    namespace the host's network is somebody else's, and a child does the work). Raises OSError; the caller's namespace
    is unchanged either way."""
    return _make_here(rules) if returns else _make_in_child(rules)


def _make_here(rules: bool) -> int:
    with _back_again():
        syscalls.unshare(syscalls.CLONE_NEWNET)
        _configure(rules)
        return os.open("/proc/self/ns/net", os.O_RDONLY)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
    """The caller is in that network namespace meanwhile: root only (see `make`). Raises OSError."""
    with _back_again():
        syscalls.setns(namespace, syscalls.CLONE_NEWNET)
        yield


@contextlib.contextmanager
def _back_again() -> Iterator[None]:
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        yield
    finally:
        _return(own)
        os.close(own)


def _return(own: int) -> None:
    try:
        syscalls.setns(own, syscalls.CLONE_NEWNET)
    except OSError:
        os._exit(70)  # EX_SOFTWARE: a spawner in a box's network must not go on


def _make_in_child(rules: bool) -> int:
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _child(rules, ours, theirs)
    theirs.close()
    with ours:
        answer = ours.recv(16)
        try:
            if answer != b"0":
                code = int(answer or errno.EIO)
                raise OSError(code, os.strerror(code), "network namespace")
            return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        finally:
            ours.shutdown(socket.SHUT_WR)
            os.waitpid(pid, 0)


def _child(rules: bool, ours: socket.socket, theirs: socket.socket) -> NoReturn:
    """Says 0 or the error's number, and stays until the parent has opened the namespace."""
    code = errno.EIO
    try:
        ours.close()
        syscalls.unshare(syscalls.CLONE_NEWNET)
        _configure(rules)
        code = 0
    except OSError as error:
        code = error.errno or code
    finally:
        theirs.send(str(code).encode())
        theirs.recv(1)
        os._exit(0)


def rules_work(*, returns: bool) -> bool:
    """Whether this host can redirect (nf_tables with nat, reject and redir)."""
    try:
        os.close(make(rules=True, returns=returns))
    except OSError:
        return False
    return True
