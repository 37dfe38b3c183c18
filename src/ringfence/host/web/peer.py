"""Who is at the other end of a unix socket, by the kernel's word. Never trusts a byte that the peer sent.

`SO_PEERCRED` and `SO_PEERGROUPS` give the credentials of the process that called connect() (man 7 unix), so a socket
that was handed on later still names the one who opened it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.web.patience import PatientProtocol

SO_PEERGROUPS = 59  # asm-generic/socket.h; not in the socket module of 3.11
_UCRED = struct.Struct("3i")  # pid, uid, gid
KEEPALIVE_SECONDS = 60  # a TCP peer that vanished is noticed after 60 s + 4 probes of 15 s: two minutes


@dataclass(frozen=True, slots=True)
class Peer:
    """`groups`: the supplementary ones and the effective one."""

    uid: int
    gid: int
    pid: int
    groups: frozenset[int]


@dataclass(frozen=True, slots=True)
class Admission:
    """Who is an operator on the operator socket: root, the server's own account, members of `groups`."""

    uids: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    groups: frozenset[int] = frozenset()

    def admits(self, peer: Peer) -> bool:
        return peer.uid in self.uids or not self.groups.isdisjoint(peer.groups)


def peer_of(sock: Any) -> Peer:
    """`sock`: a connected unix socket, or asyncio's view of one."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(uid, gid, pid, frozenset({gid, *_groups(sock)}))


def _groups(sock: Any) -> list[int]:
    """Supplementary groups. Python asks for 1024 bytes at most, which is 256 groups; a peer with more of them, or a
    kernel before 4.13, is known by its effective group alone: that admits fewer, never more."""
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    except OSError:
        return []
    return [gid for (gid,) in struct.iter_unpack("I", raw)]


class IdentifyingProtocol(PatientProtocol):
    """uvicorn's h11 protocol that puts the peer into `scope["state"]["peer"]`, also for WebSockets: an upgrade
    hands `app_state` on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        sock: Any = transport.get_extra_info("socket")
        if sock is not None and sock.family == socket.AF_UNIX:
            self.app_state = {**self.app_state, "peer": peer_of(sock)}
        elif sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        super().connection_made(transport)
