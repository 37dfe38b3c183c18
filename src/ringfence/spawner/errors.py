"""What goes wrong in the spawner, cut by whose fault it is. Must never carry a path that a box could not know.

SpawnerError            code, message, remedy: becomes the error object of a reply
├── NotFound            no such box
├── Refused             the request may not be served, now or ever
├── Busy                too much at once; try again
├── NoSpace             the disk is full
├── Unavailable         the host lacks something; the remedy says what to install or set
└── Failed              it was tried and did not work; NoTree: the box's files are missing
StartRefused            the spawner itself may not come up (exit status 5)
"""

from __future__ import annotations

import errno

MAKE_ROOM = (
    "stop boxes that nobody needs (ringfence box stop U), or write max into cgroup.max.descendants and cgroup.max.depth of "
    "the server's cgroup directory (ringfence-...) and of those above it; `cat /proc/cgroups` counts them"
)
NO_PROCESS_LEFT = (
    "stop boxes that nobody needs (ringfence box stop U), or raise the processes of all boxes together: limits_all.pids in "
    "ringfence.toml, at most sysctl kernel.pid_max and kernel.threads-max"
)

NEW_FILES = (
    "put a copy in their place: ringfence box restore U COPY --no-keep; or begin anew: ringfence box reset U --no-keep"
)
STOP_IT = "its next start has them again: ringfence box stop U"
NO_MEMORY_LEFT = (
    "stop boxes that nobody needs (ringfence box stop U), or raise the memory of all boxes together: limits_all.memory in "
    "ringfence.toml"
)


class SpawnerError(Exception):
    """`code` is one of packets.encode_error's; `remedy` is a command to run, or empty; `of_host`: what is of the host and no
    box's, such as a foreign process, which only an operator is told."""

    code = "failed"

    def __init__(self, message: str, remedy: str = "", of_host: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.of_host = of_host


class NotFound(SpawnerError):
    code = "not_found"


class Refused(SpawnerError):
    code = "refused"


class Busy(SpawnerError):
    code = "busy"


class NoSpace(SpawnerError):
    code = "no_space"


class Unavailable(SpawnerError):
    code = "unavailable"


class Failed(SpawnerError):
    code = "failed"


class NoTree(Failed):
    """All of a box's files are gone: told as what is missing, and not as what went wrong here."""

    code = "unavailable"


class StartRefused(Exception):
    """Start-up ends with exit status 5: first line `message`, second line `remedy`."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


def of_os_error(error: OSError, doing: str) -> SpawnerError:
    """The spawner's error for the operating system's, e.g. ENOSPC while `doing` a thing."""
    text = f"{doing}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(text, "free space on the disk that holds the state directory: df -h; df -i")
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return Refused(f"{text} (a link where none may be)", "ringfence doctor")
    if error.errno == errno.EAGAIN:  # fork(2), of the spawner itself
        return Unavailable(text, NO_PROCESS_LEFT)
    return Failed(text)


def of_cgroup_error(error: OSError) -> SpawnerError:
    """EAGAIN: cgroup.max.descendants or cgroup.max.depth of a directory above (cgroups(7)); ENOSPC: the kernel's ids of
    memory cgroups are spent, 65535 (Linux mm/memcontrol.c). No disk is full then. ENOMEM: a cgroup's own memory is charged to
    the one above it, whose limit is reached."""
    if error.errno == errno.ENOMEM:
        return Unavailable(f"no memory is left for another box: {error.strerror}", NO_MEMORY_LEFT)
    if error.errno not in (errno.EAGAIN, errno.ENOSPC):
        return of_os_error(error, "making the box's cgroups")
    return Unavailable(f"the host's cgroup tree is full: {error.strerror}", MAKE_ROOM)


def out_of_cgroups() -> Unavailable:
    """Of a running box: somebody has moved it out of its cgroups, or removed them. No limit holds, and nothing stands still."""
    return Unavailable("the box is out of its cgroups: somebody has moved it, or removed them", STOP_IT)


def of_limit_error(error: OSError, used: int) -> SpawnerError:
    """EBUSY, on v1: the box uses more memory (`used`, bytes) than the new limit allows, and the kernel cannot take it back."""
    if error.errno == errno.ENOENT:
        return out_of_cgroups()
    if error.errno != errno.EBUSY:
        return of_os_error(error, "setting the box's limits")
    return Busy(
        f"the box uses {used} bytes of memory, which the new limit does not hold; no limit was changed",
        "stop the box first (ringfence box stop U), or ask for more than it uses",
    )
