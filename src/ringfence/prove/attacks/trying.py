"""What every attack program stands on: one attempt, its outcome as a word, and raw system calls.

Travels into boxes with each program, so it imports the standard library only. Must never do harm where no wall stops it:
the same programs run outside boxes as controls.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DONE = "done"  # the first word of an outcome: nothing stopped the attempt
Outcomes = dict[str, str]


@dataclass(frozen=True)
class Place:
    """Where a program finds itself."""

    arguments: list[str] = field(default_factory=list)
    loop: Any = None  # in a hostile loop: its guest.loop.Host, with the socket to PID 1 in `_sock`
    start: dict[str, Any] = field(default_factory=dict)  # there: the fields of run.start


def attempt(work: Callable[[], object]) -> str:
    """`done`, with what `work` returned; else the errno's name, or the exception's words."""
    try:
        value = work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return DONE if value is None else f"{DONE} {value!r}"[:300]


def each(**works: Callable[[], object]) -> Outcomes:
    return {name: attempt(work) for name, work in works.items()}


def forked(work: Callable[[], object]) -> str:
    """`attempt` in a child, for what would change this process. A child that a signal ended says `killed N`."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, attempt(work).encode(errors="replace"))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return f"killed {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said or "silent"


def each_forked(**works: Callable[[], object]) -> Outcomes:
    return {name: forked(work) for name, work in works.items()}


def syscall(number: int, *arguments: Any) -> int:
    """The result. OSError. Numbers are passed as 64-bit words; bytes and ctypes objects as pointers."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def machine() -> str:
    return os.uname().machine


def read(path: str, size: int = 4096) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def open_for_writing(path: str) -> None:
    """Opens, writes nothing: harmless where it works."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
