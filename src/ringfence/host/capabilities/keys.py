"""Keys from files: the one that signs gates, and those that sign what is sent. Blocks: for the start of the server and threads.

Must never put a byte of a key into an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from pathlib import Path

from ringfence.host.kernel.errors import Invalid, Unavailable
from ringfence.host.kernel.key_files import MISSING, MOST_READ, missing_remedy, remedy, secret_from

KEY_BYTES = 32


def gate_key(vault: Path) -> bytes:
    """Of the file gate.key in the vault, made at the first start. With a lost one the server asks
    all that is open, and what was answered and not used, anew. Unavailable: it is no key, others can read it, or it cannot be made."""
    path = vault / "gate.key"
    try:
        if not path.exists():
            with contextlib.suppress(FileExistsError):
                _make(path)
        with path.open("rb") as file:
            mode, data = os.fstat(file.fileno()).st_mode, file.read(KEY_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}", remedy=f"ls -ln {vault}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Unavailable(f"others can read the key of gates: {path}", remedy=f"chmod 600 {path}")
    if len(data) != KEY_BYTES:
        raise Unavailable(
            f"{path} is not a key of {KEY_BYTES} bytes", remedy=f"rm {path}; the next start asks open questions anew"
        )
    return data


def _make(path: Path) -> None:
    """Whole under its name, or not there."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_bytes(KEY_BYTES))
        os.fsync(fd)
        os.link(new, path)  # FileExistsError: another process was first, and its key is the key
    finally:
        os.close(fd)
        os.unlink(new)


def secret_of(path: str, what: str) -> bytes:
    """Without white space around it. Empty, and in the log: there is no such file yet. Invalid: more than the server may
    read it, it cannot be read, it is too short or too long."""
    secret, wrong = secret_in(path)
    if wrong == MISSING:
        logging.getLogger("ringfence.capabilities").warning(
            "%s: %s %s; calls wait until it is: %s", what, path, wrong, missing_remedy(path)
        )
    elif wrong:
        raise Invalid(f"{what}: {path} {wrong}", remedy=remedy(path))
    return secret


def secret_in(path: str) -> tuple[bytes, str]:
    """(the secret, what is wrong with the file, as the end of a sentence and without its path; "" when nothing is)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return b"", MISSING
    except OSError as error:
        return b"", f"cannot be read: {error.strerror}"
    try:
        mode = os.fstat(fd).st_mode
        return secret_from(mode, os.read(fd, MOST_READ) if stat.S_ISREG(mode) else b"")
    except OSError as error:
        return b"", f"cannot be read: {error.strerror}"
    finally:
        os.close(fd)
