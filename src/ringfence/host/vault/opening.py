"""The vault of one server: keys from where its settings say, and what was seen of versions, in its state. For the start.

Must never fail for want of a key: the server starts with a sealed vault then, which says why.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from ringfence.host.kernel.ports import Store
from ringfence.host.kernel.settings import Settings
from ringfence.host.vault.generations import agree, agreed
from ringfence.host.vault.keyring import Keyring, handed_over, of_folder
from ringfence.host.vault.keys import Keys, open_keys
from ringfence.host.vault.rolls import RollSeals
from ringfence.host.vault.seen import Witnesses
from ringfence.host.vault.vault import SealedVault, open_vault

SEEN = "seen"  # below the vault's folder


async def keys_of(settings: Settings) -> Keys:
    """Before the store is opened, which signs its rolls by them."""
    first: list[Keyring] = []

    def load() -> Keyring:
        """What was handed over is there once."""
        if not settings.handed:
            return of_folder(_folder(settings))
        if not first:
            first.append(handed_over(Path(settings.handed)))
        return first[0]

    return await open_keys(load)


def seals_of(settings: Settings, keys: Keys) -> RollSeals:
    return RollSeals(keys, _folder(settings) / SEEN)


async def vault_of(settings: Settings, keys: Keys, store: Store) -> SealedVault:
    seen = _folder(settings) / SEEN
    generation = await asyncio.to_thread(agreed, seen, await store.kernels.generation())
    return open_vault(keys, Witnesses(seen, generation))


async def restored(settings: Settings, generation: int) -> None:
    """This host has put the store back: what is older in it is right. OSError."""
    await asyncio.to_thread(agree, _folder(settings) / SEEN, generation)


def _folder(settings: Settings) -> Path:
    return Path(settings.home) / "vault"
