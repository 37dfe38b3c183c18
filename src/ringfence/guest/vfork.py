"""A program for PID 1's child without a copy of the memory of whoever starts it: clone(CLONE_VM | CLONE_VFORK).

The child shares our memory until exec, so it must run nothing of the interpreter: it carries out a list of system calls
that was written before, and while it does so we stand still. On x86-64 that is 80 bytes of machine code; on any other
machine, and where memory may not be made executable, a plain clone carries out the same list in Python, 0.3 ms slower.
The list is built of numbers and addresses of ours alone.

    list     setsid; be a subreaper; say `STARTED`; exec; and when one of them failed: say `REFUSED`; exit
"""

import posix

from ringfence.guest.syscalls import (
    CLONE,
    CLONE_PARENT,
    EXECVE,
    EXIT_GROUP,
    MMAP,
    MPROTECT,
    PR_SET_CHILD_SUBREAPER,
    PRCTL,
    SETSID,
    SIGCHLD,
    WRITE,
    _Array,
    _CFuncPtr,
    _Char,
    _Long,
    call,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from struct import pack
    from typing import Any, NoReturn
else:
    from _struct import pack  # `struct` without its wrapper

STARTED, REFUSED = 1, 2  # words of a child: (kind, number of the job, its pid or the negated errno of exec)
WORDS = 24  # bytes of such a message
ARENA = 8 * 1024 * 1024
"""Reserved, not used: a command in a frame of 1 MiB needs 3.5 MiB when it is all empty arguments (9 bytes for 3)."""
CONTROL = 8192  # the list, and a path of at most 4096 bytes behind it
_LIST = 320  # bytes of it
_FLAGS = 0x100 | 0x4000 | CLONE_PARENT | 0x01000000 | SIGCHLD  # VM, VFORK, and CHILD_SETTID: its pid into its own words
_READ_WRITE, _READ_EXECUTE = 1 | 2, 1 | 4
_PRIVATE = 2 | 0x20 | 0x4000  # MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
_CODE = {
    # in: rdi = the list. Neither side touches the stack between clone and the return of the parent.
    "x86_64": bytes.fromhex(
        "4989f8"  # mov r8, rdi
        "4d8b4808"  # mov r9, [r8+8]         where it goes on after a failure
        "4d8b5010"  # mov r10, [r8+16]       where the kernel writes the child's pid
        "498b38"  # mov rdi, [r8]          flags
        "31f631d2b8380000000f05"  # clone(flags, 0, 0, r10)
        "4885c07401c3"  # the parent, or an error: return it
        "4983c018"  # add r8, 24
        "498b00498b7808498b7010498b5018"  # 2: rax, rdi, rsi, rdx = one entry
        "4983c0200f05"  # add r8, 32; syscall
        "4885c07806"  # failed: to 3
        "498940e0ebe0"  # its result into the entry; to 2
        "498901"  # 3: mov [r9], rax          the error
        "4d8d41104d8b4908ebd3"  # r8 = r9 + 16; r9 = [r9+8]; to 2
    ),
}


class _Control(_Array):  # type: ignore[misc]
    _type_ = _Char
    _length_ = CONTROL


class _Image(_Array):  # type: ignore[misc]
    _type_ = _Char
    _length_ = ARENA - CONTROL


class _Run(_CFuncPtr):  # type: ignore[misc]
    _flags_ = 1 | 4  # C calling convention, keep the interpreter lock
    _restype_ = _Long
    _argtypes_ = (_Long,)


def reserve() -> int:
    """The address of an arena. PID 1 makes it: a fork keeps it where it is, so PID 1 can write addresses in it."""
    return call(MMAP, 0, ARENA, _READ_WRITE, _PRIVATE)


class Starter:
    """Of one arena, in the process that starts programs. `fd`: where children say their words."""

    __slots__ = ("_at", "_control", "_fd", "_run", "image")

    def __init__(self, arena: int, fd: int) -> None:
        self._at = arena
        self._fd = fd
        self._control: Any = _Control.from_address(arena)
        self.image: Any = _Image.from_address(arena + CONTROL)
        self._run: Any = _executable()

    def start(self, number: int, argv: int, env: int, program: "int | bytes") -> tuple[int, bool]:
        """Addresses of NULL-terminated arrays; `program`: an address, or a path of less than 4096 bytes. (pid or the
        negated errno of clone, has it said its word?)"""
        at = self._at
        path, where = (program + b"\0", at + _LIST) if isinstance(program, bytes) else (b"", program)
        # Offsets: head 0, entries 24, words STARTED 152, words REFUSED 176 of which the errno at 192 begins the first
        # block for failures, and the second one, for when that fails as well, is at 272.
        words = (
            *(_FLAGS, at + 192, at + 168),
            *(SETSID, 0, 0, 0),
            *(PRCTL, PR_SET_CHILD_SUBREAPER, 1, 0),
            *(WRITE, self._fd, at + 152, WORDS),
            *(EXECVE, where, argv, env),
            *(STARTED, number, 0),
            *(REFUSED, number, 0, at + 272),
            *(WRITE, self._fd, at + 176, WORDS),
            *(EXIT_GROUP, 127, 0, 0),
            *(0, at + 272),
            *(EXIT_GROUP, 127, 0, 0),
        )
        self._control.raw = pack("<40q", *words) + path
        pid: int = self._run(at) if self._run is not None else self._fork()
        return pid, self._word(88) == WORDS  # the result of the third entry

    def _word(self, offset: int) -> int:
        return int.from_bytes(memoryview(self._control)[offset : offset + 8], "little", signed=True)

    def _fork(self) -> int:
        """Without machine code. The memory is a copy, so that a pipe tells whether the word was said."""
        heard, told = posix.pipe2(posix.O_CLOEXEC)
        try:
            pid = call(CLONE, CLONE_PARENT | SIGCHLD)
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            self._carry_out(told)
        posix.close(told)
        if posix.read(heard, 1):
            _Long.from_address(self._at + 88).value = WORDS
            posix.read(heard, 1)  # ends when it is a program, or dead
        posix.close(heard)
        return pid

    def _carry_out(self, told: int) -> "NoReturn":
        """What the machine code does, in Python."""
        try:
            _Long.from_address(self._at + 168).value = posix.getpid()
            for offset in (24, 56, 88, 120):
                call(*(self._word(offset + i) for i in (0, 8, 16, 24)))
                if offset == 88:
                    posix.write(told, b".")
        except OSError as error:
            _Long.from_address(self._at + 192).value = -(error.errno or 1)
            posix.write(self._fd, bytes(memoryview(self._control)[176:200]))
        finally:
            posix._exit(127)


def _executable() -> "Any":
    """The machine code as a function of one address, None where there is none or where it may not run."""
    code = _CODE.get(posix.uname().machine)
    if code is None:
        return None
    try:
        page = call(MMAP, 0, 4096, _READ_WRITE, _PRIVATE)
        _Control.from_address(page).raw = code
        call(MPROTECT, page, 4096, _READ_EXECUTE)
    except OSError:
        return None
    return _Run(page)


def image(arena: int, argv: list[bytes], env: dict[bytes, bytes]) -> tuple[bytes, int, int, int]:
    """(bytes for `Starter.image`, address of the arguments' array, of the environment's, of the first argument) of a
    command. The first word of the bytes is their length: what follows them is the caller's. ValueError: too large."""
    texts = [*argv, *(name + b"=" + value for name, value in env.items())]
    base = arena + CONTROL
    at = base + 8 * (len(texts) + 3)
    pointers = []
    for number, text in enumerate(texts):
        if number == len(argv):
            pointers.append(0)
        pointers.append(at)
        at += len(text) + 1
    if not env:
        pointers.append(0)
    data = pack(f"<{len(pointers) + 2}q", at - base, *pointers, 0) + b"\0".join(texts) + b"\0"
    if len(data) > ARENA - CONTROL - 64 * 1024:  # room for what the caller adds
        raise ValueError(f"a command of {len(data)} bytes")
    return data, base + 8, base + 8 * (len(argv) + 2), pointers[0]


def said(kind: int, number: int, value: int) -> bytes:
    """The message of these words."""
    return pack("<3q", kind, number, value)
