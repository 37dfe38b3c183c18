"""A secret value from standard input, and from nowhere else: argv is in `ps`, in histories and in logs.

Must never print a byte of it, nor keep it in a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ringfence.client.errors import Invalid

MAX_VALUE = 64 * 1024  # bytes; the server's limit
_HOW = "give it on standard input: ringfence secret set U NAME < FILE, or type it when asked"


def refused(words: Sequence[str] | None) -> None:
    """What stands behind U NAME. Invalid, without a byte of it."""
    if words:
        raise Invalid(
            "usage", "a value is never taken from the command line", f"it is in your history now: change it, and {_HOW}"
        )


def read(what: str, *, whole: bool = False) -> bytes:
    """Typed without echo on a terminal; else standard input to its end, without one newline at the end unless `whole`.
    Invalid: empty, too large, two that differ."""
    if os.isatty(0):
        return _typed(what)
    found = bytearray()
    while chunk := os.read(0, MAX_VALUE):
        found += chunk
        if len(found) > MAX_VALUE + 2:
            break
    value = bytes(found) if whole else bytes(found).removesuffix(b"\n").removesuffix(b"\r")
    return _checked(value)


def _typed(what: str) -> bytes:
    from getpass import getpass

    first = getpass(f"value of {what} (it is not shown): ", stream=sys.stderr)
    if getpass("once more: ", stream=sys.stderr) != first:
        raise Invalid("invalid", "the two are not the same", "try again; nothing was stored")
    return _checked(first.encode("utf-8", "surrogateescape"))


def _checked(value: bytes) -> bytes:
    if not value:
        raise Invalid("invalid", "the value is empty", _HOW)
    if len(value) > MAX_VALUE:
        what = f"the value has more than {MAX_VALUE} bytes"
        raise Invalid("too_large", what, "store what has to be secret alone", {"limit": MAX_VALUE})
    return value
