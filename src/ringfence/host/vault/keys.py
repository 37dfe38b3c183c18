"""The keys of one server's vault as they are now, shared by what seals values and what signs rolls.

Must never put a byte of a key into a text, nor forget a key that it has had: it may be what saves the values that it wrapped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.vault.keyring import Keyring
from ringfence.host.vault.sealing import kek_id


class Keys:
    """`load` gives them as they lie there; it is called in a thread, at `open_keys` and when a key is missing."""

    def __init__(self, load: Callable[[], Keyring], ring: Keyring) -> None:
        self._load, self.ring = load, ring

    def __repr__(self) -> str:
        return f"Keys(present={self.ring.present or None!r})"

    @property
    def sealed(self) -> str:
        """Why there is none; "" = there is."""
        return "" if self.ring.mine else self.ring.why or "there is no key"

    def mine(self) -> bytes:
        """Unavailable: the vault is sealed."""
        if not self.ring.mine:
            raise Unavailable(f"the vault is sealed: {self.sealed}", remedy=self.ring.remedy)
        return self.ring.mine

    async def wanted(self, identifier: str) -> bytes | None:
        """Of before or of a rotation by another kernel, whose key was put beside ours meanwhile. Unavailable: sealed."""
        self.mine()
        found = self.ring.by_id(identifier)
        if found is None:
            await self.reload()
            found = self.ring.by_id(identifier)
        return found

    async def reload(self) -> None:
        ring = await asyncio.to_thread(self._load)
        if ring.mine:
            had = (self.ring.mine, *self.ring.others)
            lost = (key for key in had if key and ring.by_id(kek_id(key)) is None)
            self.ring = replace(ring, others=(*ring.others, *lost))


async def open_keys(load: Callable[[], Keyring]) -> Keys:
    return Keys(load, await asyncio.to_thread(load))
