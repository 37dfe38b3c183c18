"""The keys that wrap: the present one, and those of before. Blocks: for the start of the server and threads.

A key that cannot be had is no error here: the vault is sealed then, and says why. Must never put a byte of a key into a
text.
"""

from __future__ import annotations

import json
import os
import re
import stat
from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path

from ringfence.host.vault.sealing import KEY_BYTES, kek_id

MASTER = "master.key"
_OTHER = re.compile(r"master\.key\.[A-Za-z0-9_-]{1,64}")
_MAX_HANDED = 64 * 1024  # 1,000 keys
RESTORE = "restore {} from a backup of the host's vault, then restart the server"


@dataclass(frozen=True, slots=True)
class Keyring:
    mine: bytes = field(default=b"", repr=False)  # empty: none
    others: tuple[bytes, ...] = field(default=(), repr=False)
    why: str = ""  # there is none
    remedy: str = ""
    passed: tuple[str, ...] = ()  # why files of before are none, such as that others can read one

    def by_id(self, wanted: str) -> bytes | None:
        return next((key for key in (self.mine, *self.others) if key and kek_id(key) == wanted), None)

    @property
    def present(self) -> str:
        """Id of the key that wraps; "" = none."""
        return kek_id(self.mine) if self.mine else ""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(sorted({kek_id(key) for key in (self.mine, *self.others) if key}))

    @property
    def old(self) -> list[str]:
        return sorted(kek_id(key) for key in self.others)


def of_folder(vault: Path) -> Keyring:
    """`master.key` of the folder; `master.key.NAME` are those of before. One of those that is no key is passed over,
    and said."""
    mine, why, remedy = _read(vault / MASTER)
    try:
        names = sorted(name for name in os.listdir(vault) if _OTHER.fullmatch(name))
    except OSError:
        names = []
    others = [_read(vault / name) for name in names]
    passed = tuple(f"{why}: {remedy}" for key, why, remedy in others if not key)
    return Keyring(mine, tuple(key for key, _, _ in others if key), why, remedy, passed)


def handed_over(path: Path) -> Keyring:
    """What `serve` read as who started it, from a place that the server's account cannot read, and left in memory for
    it (install/vault_keys.py). The file is gone when this returns."""
    lost = "the server was not handed the key of the vault"
    again = "start the server again: ringfence serve"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            os.unlink(path)
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                return Keyring(why=f"{lost}: others have its file", remedy=again)
            said = json.loads(file.read(_MAX_HANDED))
        keys = [b64decode(each, validate=True) for each in (said["key"], *said["old"])]
        if any(len(key) != KEY_BYTES for key in keys if key):
            return Keyring(why=lost, remedy=again)
        return Keyring(keys[0], tuple(filter(None, keys[1:])), str(said["why"]), str(said["remedy"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Keyring(why=lost, remedy=again)


def _read(path: Path) -> tuple[bytes, str, str]:
    """(the key; why it is none; what to do)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            mode = os.fstat(fd).st_mode
            key = file.read(KEY_BYTES + 1) if stat.S_ISREG(mode) else b""
    except OSError as error:
        return b"", f"the key of the vault cannot be read: {path}: {error.strerror}", RESTORE.format(path)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return b"", f"others can read the key of the vault: {path}", f"chmod 600 {path}, then restart the server"
    if len(key) != KEY_BYTES:
        return b"", f"{path} is not a key of {KEY_BYTES} bytes", RESTORE.format(path)
    return key, "", ""
