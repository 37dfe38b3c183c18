"""Group D: sockets and what processes share by name."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, each, read

IPC_CREAT, IPC_EXCL, IPC_RMID = 0o1000, 0o2000, 0
SECONDS = 2.0


def _to(family: int, address: Any) -> Callable[[], None]:
    def connect() -> None:
        with socket.socket(family, socket.SOCK_STREAM) as wire:
            wire.settimeout(SECONDS)
            wire.connect(address)

    return connect


def _answer_of(family: int, address: Any) -> Callable[[], None]:
    """Over TCP it counts who answers: a box's own worker takes every connection, and says what it refuses."""

    def ask() -> None:
        with socket.socket(family, socket.SOCK_STREAM) as wire:
            wire.settimeout(SECONDS)
            wire.connect(address)
            wire.sendall(b"GET / HTTP/1.0\r\n\r\n")
            said = wire.recv(65536)
        if not said:
            raise ConnectionResetError(errno.ECONNRESET, "closed without a word")
        for line in said.split(b"\r\n"):
            if line.lower().startswith(b"x-egress-reason:"):
                raise PermissionError(line.partition(b":")[2].strip().decode(errors="replace"))

    return ask


def connecting(place: Place) -> Outcomes:
    """Arguments: `@name` an abstract socket, `/path` one in the file system, `host:port` over TCP, where an answer counts."""
    found: Outcomes = {}
    for word in place.arguments:
        if word.startswith("@"):
            work = _to(socket.AF_UNIX, "\0" + word[1:])
        elif word.startswith("/"):
            work = _to(socket.AF_UNIX, word)
        else:
            host, _, port = word.rpartition(":")
            work = _answer_of(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port)))
        found[word] = attempt(work)
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def sysv_make(place: Place) -> Outcomes:
    """Shared memory, a queue and a semaphore with the key, for anybody."""
    key, flags = int(place.arguments[0]), IPC_CREAT | 0o666
    libc = _libc()
    return each(
        shm=lambda: _checked(libc.shmget(key, 4096, flags)),
        msg=lambda: _checked(libc.msgget(key, flags)),
        sem=lambda: _checked(libc.semget(key, 1, flags)),
    )


def sysv_find(place: Place) -> Outcomes:
    key, libc = int(place.arguments[0]), _libc()
    return each(
        shm=lambda: _checked(libc.shmget(key, 0, 0)),
        msg=lambda: _checked(libc.msgget(key, 0)),
        sem=lambda: _checked(libc.semget(key, 0, 0)),
    )


def sysv_remove(place: Place) -> Outcomes:
    key, libc = int(place.arguments[0]), _libc()
    return each(
        shm=lambda: _checked(libc.shmctl(_checked(libc.shmget(key, 0, 0)), IPC_RMID, None)),
        msg=lambda: _checked(libc.msgctl(_checked(libc.msgget(key, 0)), IPC_RMID, None)),
        sem=lambda: _checked(libc.semctl(_checked(libc.semget(key, 0, 0)), 0, IPC_RMID)),
    )


def posix_make(place: Place) -> Outcomes:
    name = place.arguments[0]
    return each(
        memory=lambda: os.close(os.open(f"/dev/shm/{name}", os.O_RDWR | os.O_CREAT, 0o666)),
        queue=lambda: _checked(_libc().mq_open(f"/{name}".encode(), os.O_RDWR | os.O_CREAT, 0o666, None)),
    )


def posix_find(place: Place) -> Outcomes:
    name = place.arguments[0]
    return each(
        memory=lambda: read(f"/dev/shm/{name}") and None,
        queue=lambda: _checked(_libc().mq_open(f"/{name}".encode(), os.O_RDONLY)),
    )


def posix_remove(place: Place) -> Outcomes:
    name = place.arguments[0]
    return each(
        memory=lambda: os.unlink(f"/dev/shm/{name}"), queue=lambda: _checked(_libc().mq_unlink(f"/{name}".encode()))
    )


def vsock(_place: Place) -> Outcomes:
    def bind() -> None:
        with socket.socket(40, socket.SOCK_STREAM) as wire:
            wire.bind((0xFFFFFFFF, 0xFFFFFFFF))

    return each(socket=lambda: socket.socket(40, socket.SOCK_STREAM).close(), bind=bind)


def families(_place: Place) -> Outcomes:
    """Socket families and netlink protocols that no program of a box needs."""

    def made(family: int, kind: int, protocol: int = 0) -> Callable[[], None]:
        return lambda: socket.socket(family, kind, protocol).close()

    kinds = {
        "ALG": (38, 5), "PACKET": (17, 3, 768), "XDP": (44, 3), "TIPC": (30, 5), "BLUETOOTH": (31, 3), "CAN": (29, 3, 1),
        "KEY": (15, 3, 2), "RDS": (21, 5), "raw ICMP": (2, 3, 1), "raw IPv6": (10, 3, 58), "old packet": (2, 10, 768),
        "netfilter": (16, 3, 12), "audit": (16, 3, 9), "xfrm": (16, 3, 6), "connector": (16, 3, 11),
        "uevent": (16, 3, 15), "generic": (16, 3, 16), "sock_diag": (16, 3, 4),
    }  # fmt: skip
    return {name: attempt(made(*arguments)) for name, arguments in kinds.items()}


def interfaces(_place: Place) -> Outcomes:
    """Done: any interface but the loopback."""
    lines = read("/proc/net/dev", 1 << 16).decode().splitlines()[2:]
    names = [line.split(":")[0].strip() for line in lines]
    return {name: "its own" if name == "lo" else "done" for name in names}


def low_ports(_place: Place) -> Outcomes:
    """The ports of the way out: who binds one first would answer in its place."""

    def bind(kind: int, port: int) -> Callable[[], None]:
        def work() -> None:
            with socket.socket(socket.AF_INET, kind) as wire:
                wire.bind(("127.0.0.1", port))

        return work

    udp = {f"udp {port}": attempt(bind(socket.SOCK_DGRAM, port)) for port in (53, 2)}
    return udp | {f"tcp {port}": attempt(bind(socket.SOCK_STREAM, port)) for port in (53, 3, 80, 1023)}


class _WithDescriptors:
    """A socket that adds descriptors to everything that is sent."""

    def __init__(self, inner: Any, fds: list[int]) -> None:
        self._inner, self._fds = inner, fds

    def sendall(self, data: bytes) -> None:
        rights = array.array("i", self._fds).tobytes()
        sent = self._inner.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self._inner.sendall(data[sent:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def pushing(place: Place) -> Outcomes:
    """In a hostile loop: every further frame carries 200 descriptors. What they became is counted outside."""
    place.loop._sock = _WithDescriptors(place.loop._sock, [os.open("/dev/null", os.O_RDONLY) for _ in range(200)])
    return {"pushed": "sent"}


def taking(_place: Place) -> Outcomes:
    """A reader who is careless: recvmsg with room for descriptors has them installed."""

    def work() -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs, contextlib.ExitStack() as opened:
            fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]
            for fd in fds:
                opened.callback(os.close, fd)
            socket.send_fds(ours, [b"x"], fds)
            _, received, _, _ = socket.recv_fds(theirs, 1, 100)
            for fd in received:
                opened.callback(os.close, fd)
            return f"{len(received)} installed"

    return {"recvmsg": attempt(work)}


ATTACKS = {
    "connecting": connecting,
    "sysv_make": sysv_make,
    "sysv_find": sysv_find,
    "sysv_remove": sysv_remove,
    "posix_make": posix_make,
    "posix_find": posix_find,
    "posix_remove": posix_remove,
    "vsock": vsock,
    "families": families,
    "interfaces": interfaces,
    "low_ports": low_ports,
    "pushing": pushing,
    "taking": taking,
}
