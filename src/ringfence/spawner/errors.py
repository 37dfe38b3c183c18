"""What goes wrong in the spawner, cut by whose fault it is. Must never carry a path that a box could not know.

SpawnerError            code, message, remedy: becomes the error object of a reply
├── NotFound            no such box
├── Refused             the request may not be served, now or ever
├── Busy                too much at once; try again
├── NoSpace             the disk is full
├── Unavailable         the host lacks something; the remedy says what to install or set
└── Failed              it was tried and did not work
StartRefused            the spawner itself may not come up (exit status 5)
"""

from __future__ import annotations

import errno


class SpawnerError(Exception):
    """`code` is one of protocol.encode_error's; `remedy` is a command to run, or empty."""

    code = "failed"

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


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
    return Failed(text)
