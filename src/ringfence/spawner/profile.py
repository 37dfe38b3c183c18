"""What a box sees, as a list of small operations in the order of hardening.md 5.3 step 5. Pure: data first, effect last.

Two rules that the order keeps: nothing is mounted or made below a mount that the user can write, and the user's trees
are the last file system operations (CVE-2026-87766). Must never contain a path that came from a request or a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ringfence.spawner import etc_files
from ringfence.spawner.protocol import BoxKind

SOURCE = "/source"  # in the launcher's root: where every source was bound by descriptor
IMAGE = f"{SOURCE}/usr"
GUEST = "/opt/ringfence"
PATH = f"{etc_files.HOME}/.local/bin:{GUEST}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Operation(Protocol):
    """One step of bubblewrap's."""

    def arguments(self) -> list[str]: ...
    def describe(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Flag:
    """An option with its values, e.g. a namespace."""

    words: tuple[str, ...]
    why: str

    def arguments(self) -> list[str]:
        return list(self.words)

    def describe(self) -> str:
        return f"{' '.join(self.words)}: {self.why}"


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    value: str

    def arguments(self) -> list[str]:
        return ["--setenv", self.name, self.value]

    def describe(self) -> str:
        return f"environment {self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class Bind:
    source: str
    target: str
    writable: bool = False

    def arguments(self) -> list[str]:
        return ["--bind" if self.writable else "--ro-bind", self.source, self.target]

    def describe(self) -> str:
        return f"{self.target} {'writable' if self.writable else 'read-only'}"


@dataclass(frozen=True, slots=True)
class Link:
    value: str
    target: str

    def arguments(self) -> list[str]:
        return ["--symlink", self.value, self.target]

    def describe(self) -> str:
        return f"{self.target} -> {self.value}"


@dataclass(frozen=True, slots=True)
class Directory:
    target: str

    def arguments(self) -> list[str]:
        return ["--dir", self.target]

    def describe(self) -> str:
        return f"{self.target} made, empty"


@dataclass(frozen=True, slots=True)
class Tmpfs:
    target: str
    size: int
    mode: str

    def arguments(self) -> list[str]:
        return ["--perms", self.mode, "--size", str(self.size), "--tmpfs", self.target]

    def describe(self) -> str:
        return f"{self.target} tmpfs, {self.size} bytes, mode {self.mode}"


@dataclass(frozen=True, slots=True)
class ReadOnly:
    target: str

    def arguments(self) -> list[str]:
        return ["--remount-ro", self.target]

    def describe(self) -> str:
        return f"{self.target} read-only from here on"


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Numbers of the inherited descriptors that bubblewrap itself uses (and closes)."""

    seccomp: int
    info: int
    block: int


_NAMESPACES = (
    Flag(("--unshare-user",), "own ids; never the -try form"),
    Flag(("--unshare-pid",), "sees its own processes only"),
    Flag(("--as-pid-1",), "the guest itself is PID 1: nobody inside can kill or trace it"),
    Flag(("--unshare-ipc",), "own System V and POSIX queues"),
    Flag(("--unshare-uts",), "own host name"),
    Flag(("--unshare-cgroup",), "its cgroup looks like the root"),
    Flag(("--uid", str(etc_files.UID)), "inside"),
    Flag(("--gid", str(etc_files.GID)), "inside"),
    Flag(("--hostname", etc_files.HOSTNAME), "tells nothing"),
    Flag(("--cap-drop", "ALL"), "also where the caller is uid 0 of a one-id namespace"),
    Flag(("--clearenv",), "bubblewrap's own is empty too"),
)
ENVIRONMENT = (
    Variable("PATH", PATH),
    Variable("HOME", etc_files.HOME),
    Variable("USER", etc_files.USER),
    Variable("LANG", "C.UTF-8"),
    Variable("SHELL", "/bin/bash"),
    Variable("PYTHONSAFEPATH", "1"),
)
TREES = (
    Bind(f"{SOURCE}/home", etc_files.HOME, writable=True),
    Bind(f"{SOURCE}/workspace", "/workspace", writable=True),
    Bind(f"{SOURCE}/tmp", "/tmp", writable=True),
)


@dataclass(frozen=True, slots=True)
class View:
    """What one kind of box sees and another does not. Ids, namespaces, filter, limits are the same for all."""

    environment: tuple[Variable, ...]
    run: bool  # whether there is a /run
    trees: tuple[Bind, ...]  # what it can write
    routes: bool  # whether its network has routes, all of which end at the way out's ports; else a loopback alone


WHOLE = View(ENVIRONMENT, True, TREES, True)
# A skill's jail has no HOME, the user's or another: nothing of hers is bound, and HOME is what a stop empties.
_JAIL_VARIABLES = {"PATH": PATH.partition(":")[2], "HOME": "/tmp"}
NARROW = View(
    tuple(replace(each, value=_JAIL_VARIABLES.get(each.name, each.value)) for each in ENVIRONMENT),
    False,
    TREES[1:],
    False,
)


def view(kind: BoxKind) -> View:
    return NARROW if kind == "skill" else WHOLE


def plan(
    links: Sequence[tuple[str, str]], shm: int, run: int, fds: Descriptors, seen: View = WHOLE, usr: str = "/usr"
) -> list[Operation]:
    """Every operation of a box in order. `links`: (value, name) of the links of a merged /usr, e.g. usr/bin, bin. `usr`: where in
    the launcher's root it is: the host's, or IMAGE."""
    return [
        *_NAMESPACES,
        *seen.environment,
        Bind(usr, "/usr"),
        *(Link(value, f"/{name}") for value, name in links),
        Bind(f"{SOURCE}/etc", "/etc"),
        Directory("/opt"),
        Bind(f"{SOURCE}/guest", GUEST),
        Flag(("--proc", "/proc"), "fresh, of its pid namespace"),
        Flag(("--dev", "/dev"), "null zero full random urandom tty, own ptys"),
        Tmpfs("/dev/shm", shm, "1777"),
        *((Tmpfs("/run", run, "0755"),) if seen.run else ()),
        *(Directory(tree.target) for tree in seen.trees),
        ReadOnly("/dev"),
        ReadOnly("/"),
        Flag(("--new-session",), "no controlling terminal of the host's"),
        Flag(("--seccomp", str(fds.seccomp)), "the strict filter"),
        Flag(("--info-fd", str(fds.info)), "tells the spawner who PID 1 is"),
        Flag(("--block-fd", str(fds.block)), "closed when every mount is done: the spawner sees the end"),
        *seen.trees,
        Flag(("--chdir", "/workspace"), "where it starts"),
    ]


def arguments(operations: Sequence[Operation]) -> bytes:
    """For `--args`: each argument ended by NUL, in no process's command line."""
    return b"".join(word.encode() + b"\0" for operation in operations for word in operation.arguments())


def guest_command(python: str, listen: int, cmds: Sequence[int], digest: str) -> list[str]:
    """PID 1's argument list. `cmds`: cgroup.procs descriptors of the leaf for commands; none is `-`."""
    numbers = ",".join(str(fd) for fd in cmds) or "-"
    return [python, "-I", "-S", f"{GUEST}/init.pyc", str(listen), numbers, digest]
