"""What a command can know to be wrong before it asks the server: exit code 2 at once, with a remedy for a terminal.

Pure. The server checks all of it again, for those who come another way; its limits are repeated here because a client
command imports nothing of the server.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ringfence.client.errors import Invalid

MODES = ("queue", "steer", "reject")
DRIVERS = ("bubblewrap",)
KINDS = ("person", "agent", "project")
SCOPES = ("user", "read", "operator")
MESSAGE_BYTES = 256 << 10
ATTACHMENTS = 20
KEY_CHARACTERS = 200
REASON_CHARACTERS = (3, 500)
MAX_PAGE = 1000  # of a list
MAX_CURSOR = 10**18 - 1  # 18 digits fit into what a database holds
_AS_FILE = "put it into a file of the box and attach it: ringfence files put U FILE, then say --attach FILE"


def one_of(option: str, given: str, allowed: Sequence[str]) -> str:
    if given not in allowed:
        remedy = " or ".join(f"{option} {each}" for each in allowed)
        raise Invalid("usage", f"{option} {given!r} is none of {', '.join(allowed)}", remedy)
    return given


def driver(given: str | None) -> str | None:
    return None if given is None else one_of("--driver", given, DRIVERS)


def message(text: str) -> str:
    """Text as it came from argv or stdin, where a byte that is no UTF-8 is a surrogate (PEP 383)."""
    if not text.strip():
        raise Invalid("invalid", "the message is empty", "give TEXT, or - and the text on stdin")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        what = f"the message is not UTF-8: {_bad(text[error.start])} after {error.start} characters"
        raise Invalid("invalid", what, f"write it as UTF-8, or {_AS_FILE}") from None
    if "\0" in text:
        where = text.index("\0")
        raise Invalid("invalid", f"the message has a NUL after {where} characters", f"leave it out, or {_AS_FILE}")
    if size > MESSAGE_BYTES:
        what = f"the message has {size} bytes; the limit is {MESSAGE_BYTES}"
        raise Invalid("too_large", what, _AS_FILE, {"size": size, "limit": MESSAGE_BYTES})
    return text


def _bad(surrogate: str) -> str:
    byte = ord(surrogate) - 0xDC00
    return f"byte 0x{byte:02x}" if 0x80 <= byte <= 0xFF else "half of a surrogate pair"


def key(given: str | None) -> str | None:
    if given is not None and not 1 <= len(given) <= KEY_CHARACTERS:
        raise Invalid("usage", f"--key has {len(given)} characters", f"give it 1 to {KEY_CHARACTERS}")
    return given


def attachments(paths: Sequence[str] | None) -> list[str]:
    given = list(paths or ())
    if len(given) > ATTACHMENTS:
        what = f"{len(given)} files are attached; the limit is {ATTACHMENTS}"
        raise Invalid("usage", what, "attach one archive of them, or say it in two messages")
    return given


def reason(given: str) -> str:
    low, high = REASON_CHARACTERS
    if not low <= len(given.strip()) <= high:
        what = f"--reason has {len(given.strip())} characters"
        raise Invalid("usage", what, f"say in {low} to {high} why you read this thread")
    return given


def seconds(option: str, given: float | None) -> float | None:
    if given is not None and not (math.isfinite(given) and given > 0):
        raise Invalid("usage", f"{option} {given} is no time in seconds above 0", f"for example {option} 3600")
    return given
