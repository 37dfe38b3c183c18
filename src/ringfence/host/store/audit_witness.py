"""What was seen of the chains, kept outside the database: a file for each chain, in a folder of the vault.

A database that was put back to an older state is whole in itself; only what was seen elsewhere tells. A file holds the
newest head that its process wrote, with a MAC. It goes when another chain has closed that one, as the files of later chains
cover it then. Must never replace a witness that disagrees with the store.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.kernel.audit import Head, Keys, same, witness_mac
from ringfence.host.kernel.audit_check import Named
from ringfence.host.store.audit_keys import Signer

_NAME = re.compile(r"[a-z0-9_]{1,64}\.json")
_MAX_BYTES = 4096  # one is about 300


@dataclass(frozen=True, slots=True)
class Witness:
    chain: str
    generation: int
    seq: int
    hash: str
    mac: str

    @property
    def named(self) -> Named:
        return Named(self.chain, self.seq, self.hash, "the witness in the vault")


def keeper(signer: Signer) -> Witnesses | None:
    """None: nothing is kept outside the database, for want of a folder or of a key."""
    return Witnesses(signer.witnesses, signer.keys) if signer.witnesses is not None and signer.keys.mine else None


class Witnesses:
    """Blocking: to be called in a thread. OSError."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self._folder = folder
        self._keys = keys

    def all(self) -> list[Witness]:
        """Those that the key made. Others say nothing: whoever writes to the vault could as well take them away."""
        if not self._folder.is_dir():
            return []
        names = sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        found = [self._read(self._folder / name) for name in names]
        return [witness for witness in found if witness is not None]

    def keep(self, head: Head) -> None:
        """On disk when it returns; whole or as it was."""
        mac = witness_mac(self._keys.mine, head.chain, head.generation, head.seq, head.hash)
        text = {"chain": head.chain, "generation": head.generation, "seq": head.seq, "hash": head.hash, "mac": mac}
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{head.chain}.json"
        fresh = path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(json.dumps(text))
            file.flush()
            os.fsync(fd)
        fresh.replace(path)
        self._settle()

    def drop(self, chain: str) -> None:
        (self._folder / f"{chain}.json").unlink(missing_ok=True)

    def _settle(self) -> None:
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _read(self, path: Path) -> Witness | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                said = json.loads(file.read(_MAX_BYTES))
            witness = Witness(said["chain"], int(said["generation"]), int(said["seq"]), said["hash"], said["mac"])
            right = witness_mac(self._keys.mine, witness.chain, witness.generation, witness.seq, witness.hash)
            return witness if same(witness.mac, right) else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
