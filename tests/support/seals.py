"""Seals of rolls for stores of tests: real ones, by a key that each test may have."""

from __future__ import annotations

from pathlib import Path

from ringfence.host.vault.keyring import Keyring
from ringfence.host.vault.keys import Keys
from ringfence.host.vault.rolls import RollSeals

KEY = b"s" * 32


def seals(folder: Path, key: bytes = KEY, *others: bytes, why: str = "") -> RollSeals:
    """What was seen lies in the folder's `vault/seen`. An empty key: the vault is sealed."""
    (folder / "vault").mkdir(mode=0o700, exist_ok=True)
    ring = Keyring(key, others, why)
    return RollSeals(Keys(lambda: ring, ring), folder / "vault" / "seen")
