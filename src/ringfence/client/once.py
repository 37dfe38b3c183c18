"""A command as one request and one answer, by a connection that is kept: a WebSocket is made for each command, and thrown away.

What it cannot say, a stream can (command.py). Imports nothing that a stream needs.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringfence.client.errors import ApiError, Unavailable

if TYPE_CHECKING:
    from ringfence.client.command import Word

# In base64, with an argv that is as long as it may be (720 KiB), far from the 4 MiB that the request may have.
STDIN_BYTES = 256 << 10


def request(
    argv: Sequence[Word],
    env: Mapping[str, Word],
    cwd: str | None,
    timeout: float | None,
    stdin: object,
) -> dict[str, Any] | None:
    """The body. None: stdin that is long, or is yet to come, or text that is not UTF-8 where the request has no bytes."""
    if stdin is not None and (not isinstance(stdin, bytes) or len(stdin) > STDIN_BYTES):
        return None
    try:
        values = {name: _bytes(value).decode() for name, value in env.items()}
        "".join((*env, cwd or "")).encode()
    except UnicodeError:
        return None
    body: dict[str, Any] = {
        "argv_b64": [b64encode(_bytes(word)).decode("ascii") for word in argv],
        "env": values,
        "cwd": cwd,
        "timeout": timeout,
    }
    return body if stdin is None else {**body, "stdin_b64": b64encode(stdin).decode("ascii")}


def _bytes(word: Word) -> bytes:
    return os.fsencode(word)


def lost() -> ApiError:
    return Unavailable(
        "connection_lost",
        "the connection to the server was lost; the command may still be running in the box",
        "see whether the server runs: ringfence status",
    )
