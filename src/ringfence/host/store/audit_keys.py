"""The keys that sign the audit, read from the vault's folder. Blocking. Must never write there, nor say a key aloud."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ringfence.host.kernel.audit import Keys
from ringfence.host.kernel.errors import Unavailable

KEY_BYTES = 32
_MINE = "audit.key"
_OTHER = re.compile(r"audit\.key\.[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Signer:
    """What makes this process's chain its own."""

    worker: str = ""  # id of the process, and of its chain; empty: one is made with the first row
    keys: Keys = field(default_factory=Keys)
    witnesses: Path | None = None  # folder outside the database; None: nothing is kept there


def vault_signer(vault: Path, worker: str) -> Signer:
    """With the key `audit.key` of the folder; `audit.key.*` are those of other hosts or of before. Unavailable: the key is
    not there, is no key, or others can read it."""
    mine = _read(vault / _MINE)
    names = sorted(name for name in os.listdir(vault) if _OTHER.fullmatch(name))
    return Signer(worker, Keys(mine, tuple(_read(vault / name) for name in names)), vault / "audit")


def _read(path: Path) -> bytes:
    remedy = "restore it from a backup; without it ringfence audit verify cannot tell a forgery"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            mode = os.fstat(fd).st_mode
            key = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise Unavailable(f"the key of the audit cannot be read: {path}: {error.strerror}", remedy=remedy) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Unavailable(f"others can read the key of the audit: {path}", remedy=f"chmod 600 {path}")
    if len(key) != KEY_BYTES:
        raise Unavailable(f"{path} is not a key of {KEY_BYTES} bytes", remedy=remedy)
    return key
