"""System calls that the standard library has no function for. Bare `_ctypes`: the `ctypes` module costs 3 ms more.

Must never allocate threads or import more: the command spawner runs it between clone and exec.
"""

import _ctypes
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _SimpleCData: Any
    _CFuncPtr: Any
    _Array: Any
else:
    _SimpleCData, _CFuncPtr, _Array = _ctypes._SimpleCData, _ctypes.CFuncPtr, _ctypes.Array

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_PARENT = 0x8000
SIGCHLD = 17
NUMBERS = {  # Landlock's are the same everywhere
    "x86_64": (56, 157, 112, 1, 59, 231, 9, 10),
    "aarch64": (220, 167, 157, 64, 221, 94, 222, 226),
}
CLONE, PRCTL, SETSID, WRITE, EXECVE, EXIT_GROUP, MMAP, MPROTECT = NUMBERS[posix.uname().machine]
LANDLOCK_CREATE, LANDLOCK_RULE, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_VERSION = 1  # flag of create: answer the ABI version
ABI_SCOPES = 6  # from here on a domain can keep signals and abstract sockets in
ABI_REFER = 2  # below, any domain forbids renames between folders
SCOPE_ABSTRACT_AND_SIGNAL = 3
FS_MAKE_BLOCK, FS_REFER = 1 << 11, 1 << 13
RULE_PATH_BENEATH = 1


class _Long(_SimpleCData):  # type: ignore[misc]
    _type_ = "l"


class _Char(_SimpleCData):  # type: ignore[misc]
    _type_ = "c"


class _Buffer(_Array):  # type: ignore[misc]
    _type_ = _Char
    _length_ = 24


class _Syscall(_CFuncPtr):  # type: ignore[misc]
    _flags_ = 1 | 4 | 8  # C calling convention, keep the interpreter lock, keep errno
    _restype_ = _Long
    _argtypes_ = (_Long,) * 7


_program: "Any" = None  # dlopen(NULL): what is loaded already, the C library among it
_syscall = _Syscall(_ctypes.dlsym(_ctypes.dlopen(_program, 2), "syscall"))


def call(number: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    """OSError on failure."""
    result: int = _syscall(number, a, b, c, d, 0, 0)
    if result < 0:
        code: int = _ctypes.get_errno()
        raise OSError(code, posix.strerror(code))
    return result


def prctl(option: int, value: int) -> None:
    call(PRCTL, option, value)


def landlock_abi() -> int:
    """The version that this kernel offers and we can use; 0: none (ABI 1 would forbid renames between folders)."""
    try:
        abi = call(LANDLOCK_CREATE, 0, 0, LANDLOCK_VERSION)
    except OSError:
        return 0
    return abi if abi >= ABI_REFER else 0


def confine(abi: int) -> None:
    """Puts this process and all that it will start into a Landlock domain of its own: nothing outside can be traced,
    read through /proc or have its descriptors taken, and from ABI 6 on no signal and no abstract socket leads out.
    No file is forbidden. OSError when the kernel refuses."""
    if abi == 0:
        return
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if abi >= ABI_SCOPES:
        ruleset = _ruleset((0, 0, SCOPE_ABSTRACT_AND_SIGNAL))
    else:  # a ruleset must handle something: block devices, which nobody in a box can make anyway
        ruleset = _ruleset((FS_MAKE_BLOCK | FS_REFER,))
        _allow_everywhere(ruleset)
    call(LANDLOCK_RESTRICT, ruleset, 0)
    posix.close(ruleset)


def _ruleset(words: tuple[int, ...]) -> int:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    attributes = _Buffer.from_buffer_copy(data.ljust(24, b"\0"))
    return call(LANDLOCK_CREATE, _ctypes.addressof(attributes), len(data), 0)


def _allow_everywhere(ruleset: int) -> None:
    root = posix.open("/", posix.O_PATH | posix.O_CLOEXEC)
    data = (FS_MAKE_BLOCK | FS_REFER).to_bytes(8, "little") + root.to_bytes(4, "little")
    rule = _Buffer.from_buffer_copy(data.ljust(24, b"\0"))
    call(LANDLOCK_RULE, ruleset, RULE_PATH_BENEATH, _ctypes.addressof(rule), 0)
    posix.close(root)
