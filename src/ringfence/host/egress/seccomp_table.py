"""The system calls that a worker may make, as one table: what an asyncio server on handed-in sockets needs, and no more.

Default deny, EPERM. Numbers: x86_64 from arch/x86/entry/syscalls/syscall_64.tbl, aarch64 from
include/uapi/asm-generic/unistd.h; None where that machine has no such call. It must stay data.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import termios
from dataclasses import dataclass

WORD = 0xFFFFFFFF
# fcntl.h of the kernel, x86_64 and aarch64 differ in O_DIRECTORY and O_NOFOLLOW alone, which matter to nobody here.
_NOT_FOR_READING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_PATH
_TYPE = 0xF  # SOCK_TYPE_MASK, linux/net.h: the rest is SOCK_CLOEXEC and SOCK_NONBLOCK
_OF_DESCRIPTORS = (termios.FIONBIO, termios.FIONREAD, termios.FIOCLEX, termios.FIONCLEX)


@dataclass(frozen=True, slots=True)
class Only:
    """The low 32 bits of argument `arg`, masked, are one of `values`. The calls below take ints."""

    arg: int
    values: tuple[int, ...]
    mask: int = WORD


@dataclass(frozen=True, slots=True)
class Call:
    """Allowed when every test holds."""

    name: str
    x86_64: int | None
    aarch64: int | None
    tests: tuple[Only, ...] = ()


_NO_CODE = (Only(2, (0,), mmap.PROT_EXEC),)  # nothing writable is ever made to run
_INTERNET = Only(0, (socket.AF_INET, socket.AF_INET6))
_STREAM_OR_DATAGRAM = Only(1, (socket.SOCK_STREAM, socket.SOCK_DGRAM), _TYPE)

CALLS = (
    # sockets: what a busy worker does most comes first
    Call("epoll_wait", 232, None),
    Call("epoll_pwait", 281, 22),
    Call("epoll_pwait2", 441, 441),
    Call("recvfrom", 45, 207),
    Call("sendto", 44, 206),
    Call("recvmsg", 47, 212),
    Call("sendmsg", 46, 211),
    Call("read", 0, 63),
    Call("write", 1, 64),
    Call("readv", 19, 65),
    Call("writev", 20, 66),
    Call("epoll_ctl", 233, 21),
    Call("epoll_create1", 291, 20),
    Call("poll", 7, None),
    Call("ppoll", 271, 73),
    Call("socket", 41, 198, (_INTERNET, _STREAM_OR_DATAGRAM)),
    # the event loop's own pair, by which a signal wakes it. Streams alone: such a pair stays one, where an end of a pair of
    # datagrams can be connected anew, to any socket of the host that its id may walk to (Landlock has no right for that)
    Call("socketpair", 53, 199, (Only(0, (socket.AF_UNIX,)), Only(1, (socket.SOCK_STREAM,), _TYPE))),
    Call("connect", 42, 203),
    Call("accept", 43, 202),
    Call("accept4", 288, 242),
    Call("shutdown", 48, 210),
    Call("getsockname", 51, 204),
    Call("getpeername", 52, 205),
    Call("setsockopt", 54, 208),
    Call("getsockopt", 55, 209),
    Call("close", 3, 57),
    Call(
        "fcntl", 72, 25, (Only(1, (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_DUPFD_CLOEXEC)),)
    ),
    Call("ioctl", 16, 29, (Only(1, _OF_DESCRIPTORS),)),
    # certificates: the TLS library takes a chain by a path only, that of a memory file. Landlock denies all other opening
    Call("memfd_create", 319, 279),
    Call("openat", 257, 56, (Only(2, (0,), _NOT_FOR_READING),)),
    Call("fstat", 5, 80),
    Call("lseek", 8, 62),
    # memory
    Call("brk", 12, 214),
    Call("mmap", 9, 222, _NO_CODE),
    Call("munmap", 11, 215),
    Call("mremap", 25, 216),
    Call("mprotect", 10, 226, _NO_CODE),
    Call("madvise", 28, 233),
    # time, locks, chance
    Call("clock_gettime", 228, 113),
    Call("clock_getres", 229, 114),
    Call("clock_nanosleep", 230, 115),
    Call("nanosleep", 35, 101),
    Call("gettimeofday", 96, 169),
    Call("time", 201, None),
    Call("futex", 202, 98),
    Call("getrandom", 318, 278),
    Call("sched_yield", 24, 124),
    # itself
    Call("getpid", 39, 172),
    Call("gettid", 186, 178),
    Call("getuid", 102, 174),
    Call("geteuid", 107, 175),
    Call("getgid", 104, 176),
    Call("getegid", 108, 177),
    Call("rt_sigaction", 13, 134),
    Call("rt_sigprocmask", 14, 135),
    Call("rt_sigreturn", 15, 139),
    Call("sigaltstack", 131, 132),
    Call("restart_syscall", 219, 128),
    Call("exit", 60, 93),
    Call("exit_group", 231, 94),
)
