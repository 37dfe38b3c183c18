"""kernel.outward.rolls.Seals: signs rolls by a key that is made of the vault's, and judges them.

The key of a MAC is HKDF-Expand (RFC 5869 2.3) of the key-encryption key, under a word of its own, so it is in no database and a
kernel that shares one, which has the vault's key, has it too. A roll names the key that it was signed with: rotation signs it
anew. What was seen of editions lies beside what was seen of credentials. Must never say that a roll counts which it cannot judge.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from ringfence.host.kernel.errors import Failed, Unavailable
from ringfence.host.kernel.outward.rolls import Roll, spelled
from ringfence.host.vault.generations import agreed
from ringfence.host.vault.keys import Keys
from ringfence.host.vault.sealing import KEY_BYTES, kek_id
from ringfence.host.vault.seen import Witnesses

_WORD = b"ringfence rolls"


class RollSeals:
    """`folder`: where what was seen lies."""

    def __init__(self, keys: Keys, folder: Path) -> None:
        self._keys, self._folder = keys, folder
        self._witnesses: Witnesses | None = None
        self._editions: dict[
            str, tuple[int, str]
        ] = {}  # the newest that was judged genuine, and the key that signed it
        self._unnoted: set[str] = set()  # whose newest edition could not be written down: each look tries again
        self._one = asyncio.Lock()  # the witnesses are one thread's at a time
        self._log = logging.getLogger("ringfence.vault")

    def sign(self, roll: Roll) -> Roll:
        key = self._keys.mine()
        return replace(roll, kek=kek_id(key), mac=_mac(key, roll))

    def genuine(self, roll: Roll) -> bool:
        if roll.edition < self.least(roll.of) - 1:
            return False
        key = self._keys.ring.by_id(roll.kek)
        return not roll.edition or (key is not None and _right(key, roll))

    def least(self, of: str) -> int:
        return self._editions.get(of, (0, ""))[0] + 1

    def resigned(self, roll: Roll) -> Roll | None:
        key = self._keys.ring.by_id(roll.kek)
        return self.sign(roll) if key is not None and _right(key, roll) else None

    async def judge(self, rolls: Sequence[Roll], generation: int) -> Mapping[str, str]:
        self._keys.mine()
        return {roll.of: await self._judged(roll, generation) for roll in rolls}

    async def _judged(self, roll: Roll, generation: int) -> str:
        if roll.edition:
            key = await self._keys.wanted(roll.kek)
            if key is None:
                return f"it was signed with the key {roll.kek[:16]!a}, which is not in this vault"
            if not _right(key, roll):
                return "its MAC is wrong: it was altered, or another's was put there"
        if (roll.edition, roll.kek) == self._editions.get(roll.of) and roll.of not in self._unnoted:
            return ""
        try:
            async with self._one:
                await asyncio.to_thread(self._witnessed, roll, generation)
        except (Failed, Unavailable) as error:
            return error.message
        self._editions[roll.of] = roll.edition, roll.kek
        return ""

    async def prune(self, present: Collection[str]) -> None:
        def work() -> None:
            there = set(map(witness, present))
            seen = Witnesses(self._folder, 0)
            seen.prune(self._keys.ring.ids, [name for name in seen.names() if name not in there])

        with suppress(OSError):
            async with self._one:
                await asyncio.to_thread(work)

    def _witnessed(self, roll: Roll, generation: int) -> None:
        """Failed: older than what was seen. A full disk keeps nothing from counting: the log has it, and the next look notes it."""
        agreed_to = agreed(
            self._folder, generation
        )  # the store's own word would let its writer make anything older right
        if self._witnesses is None or self._witnesses.generation != agreed_to:
            self._witnesses = Witnesses(self._folder, agreed_to)
        name = witness(roll.of)
        fresh = self._witnesses.check(name, roll.edition) or not self._witnesses.under(name, roll.kek)
        if fresh and roll.edition:
            try:
                self._witnesses.note(name, roll.edition, self._keys.ring.ids)
            except OSError as error:
                if roll.of not in self._unnoted:
                    self._log.error("what was seen of %s cannot be written down: %s", roll.of, error.strerror)
                self._unnoted.add(roll.of)
                return
        self._unnoted.discard(roll.of)


def witness(of: str) -> str:
    """Under which name it is noted what was seen of the roll."""
    return f"roll_{hashlib.sha256(of.encode()).hexdigest()[:32]}"


def _mac(key: bytes, roll: Roll) -> str:
    own = HKDFExpand(hashes.SHA256(), KEY_BYTES, _WORD).derive(key)
    return hmac.digest(own, spelled(roll), "sha256").hex()


def _right(key: bytes, roll: Roll) -> bool:
    return hmac.compare_digest(_mac(key, roll).encode(), roll.mac.encode(errors="replace"))
