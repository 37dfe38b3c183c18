"""kernel.outward.ports.Vault: seals, opens and rotates. It holds the keys, and no value longer than a call.

Must never store anything itself but what was seen of versions, and never say a value or a key: not in a log, a repr or an
error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ringfence.host.kernel.errors import Conflict, DiskFull, Failed, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.outward.credentials import Credential, Sealed
from ringfence.host.kernel.outward.ports import Credentials, Rotated
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import check_value
from ringfence.host.vault import sealing
from ringfence.host.vault.keys import Keys
from ringfence.host.vault.seen import Witnesses

PAGE = 100  # versions that rotation has in its hands at once: 64 KiB of ciphertext each at most
START = ("", 0)


@dataclass(slots=True)
class _Counts:
    rewrapped: int = 0
    left: int = 0
    damaged: set[str] = field(default_factory=set)


class SealedVault:
    def __init__(self, keys: Keys, witnesses: Witnesses) -> None:
        self._keys, self._witnesses = keys, witnesses
        self._one = asyncio.Lock()  # the witnesses are one thread's at a time
        self._log = logging.getLogger("ringfence.vault")

    def __repr__(self) -> str:
        return f"SealedVault(key={self._keys.ring.present or None!r})"

    @property
    def sealed(self) -> str:
        return self._keys.sealed

    async def seal(self, credential: Credential, value: Secret) -> Sealed:
        check_value(value)
        return sealing.seal(self._keys.mine(), credential, value)

    async def open(self, credential: Credential, sealed: Sealed) -> Secret:
        key = await self._key(sealed.kek)
        fresh = await self._checked(credential.id, credential.version)
        value = sealing.unseal(key, credential, sealed)
        if fresh:
            await self._note(credential)
        return value

    async def read(self, credentials: Credentials, credential: str) -> tuple[Credential, Secret]:
        found, sealed = await credentials.opening(credential)
        while True:
            try:
                return found, await self.open(found, sealed)
            except Failed:  # a newer one may have been stored, and noted, since it was asked for
                before = found.version
                found, sealed = await credentials.opening(credential)
                if found.version <= before:
                    raise

    async def put(self, credentials: Credentials, draft: Credential, value: Secret) -> Credential:
        await (
            self._keys.reload()
        )  # another kernel may have rotated: nothing is wrapped by the key of before from then on
        sealed = await self.seal(draft, value)
        try:
            await self._witnessed(self._witnesses.check_new, draft.id, draft.version)
        except Failed:
            if await _outrun(credentials, draft):
                raise Conflict(
                    f"{draft.name!r} has another version by now", remedy="look again, then try again"
                ) from None
            raise
        made = await credentials.put(draft, sealed)
        try:
            await self._note(made)
        except RingfenceError as error:  # it is stored; the next `open` notes it
            self._log.error("version %d of %s is not noted: %s", made.version, made.id, error.message)
        return made

    async def revoke(self, credentials: Credentials, credential: str) -> None:
        await credentials.revoke(credential)
        await self._witnessed(self._witnesses.revoked, credential, self._keys.ring.ids)

    async def ended(self, credential: str) -> bool:
        return bool(await self._witnessed(self._witnesses.ended, credential))

    @property
    def generation(self) -> int:
        return self._witnesses.generation

    async def restored(self, generation: int) -> None:
        await self._witnessed(self._witnesses.agree, generation)

    async def look(self, credentials: Credentials) -> Mapping[str, Any]:
        unreadable, after = 0, START
        while page := await credentials.wrapped_otherwise(self._keys.ring.present, after, PAGE):
            unreadable += sum(1 for each in page if self._keys.ring.by_id(each.kek) is None)
            after = page[-1].credential, page[-1].version
        return {
            "sealed": self.sealed,
            "remedy": self._keys.ring.remedy if self.sealed else "",
            "key": self._keys.ring.present,
            "old": self._keys.ring.old,
            "unreadable": unreadable,
        }

    # --- rotation ----------------------------------------------------------------------------------------------------

    async def rotate(self, credentials: Credentials) -> Rotated:
        await self._keys.reload()
        self._keys.mine()
        counts, after = _Counts(), START
        while page := await credentials.wrapped_otherwise(self._keys.ring.present, after, PAGE):
            for each in page:
                await self._rewrap(credentials, each, counts)
            after = page[-1].credential, page[-1].version
        if counts.damaged:
            self._log.error("not what was sealed, and wrapped as they were: %s", ", ".join(sorted(counts.damaged)))
        await self._witnessed(self._witnesses.prune, self._keys.ring.ids)
        return Rotated(counts.rewrapped, counts.left, tuple(sorted(counts.damaged)))

    async def _rewrap(self, credentials: Credentials, sealed: Sealed, counts: _Counts) -> None:
        """One row, in a transaction of its own: whenever this ends, each row is readable by the key that it names."""
        key = self._keys.ring.by_id(sealed.kek)
        if key is None:
            counts.left += 1
            return
        try:
            credential = await credentials.get(sealed.credential)
        except NotFound:
            return  # revoked and gone since
        try:
            new = sealing.rewrap(key, self._keys.mine(), credential, sealed)
        except Failed:  # nobody can open it, so nothing is lost; those behind it are to be wrapped anew all the same
            if await _stands(credentials, sealed):
                counts.damaged.add(sealed.credential)
            return
        # False: the row is another by now. Somebody stored the next version, revoked it, or rotates beside us.
        counts.rewrapped += await credentials.rewrap(new, sealed.kek)

    # --- keys and witnesses ------------------------------------------------------------------------------------------

    async def _key(self, wanted: str) -> bytes:
        """Unavailable."""
        found = await self._keys.wanted(wanted)
        if found is None:
            raise Unavailable(
                f"a stored value was wrapped by the key {wanted[:16]}, which is not in this vault",
                remedy="; or ".join(
                    ("put that key beside the present one, as vault/master.key.NAME", *self._keys.ring.passed)
                ),
            )
        return found

    async def _checked(self, credential: str, version: int) -> bool:
        """As Witnesses.check. What it has in memory is asked here: the way to a thread and back takes longer than all else of `open`."""
        if self._one.locked() or not self._witnesses.remembers(credential):
            return bool(await self._witnessed(self._witnesses.check, credential, version))
        return self._witnesses.check(credential, version)

    async def _note(self, credential: Credential) -> None:
        await self._witnessed(self._witnesses.note, credential.id, credential.version, self._keys.ring.ids)

    async def _witnessed(self, work: Callable[..., Any], *values: Any) -> Any:
        try:
            async with self._one:
                return await asyncio.to_thread(work, *values)
        except OSError as error:
            raise DiskFull(
                f"what was seen of a credential cannot be written down: {error.strerror}",
                remedy="make room on the volume of the state: ringfence status",
            ) from error


async def _stands(credentials: Credentials, sealed: Sealed) -> bool:
    """Whether the row is still what it was when it was looked at, and not another version's, or gone."""
    try:
        _, now = await credentials.opening(sealed.credential)
    except NotFound:
        return False
    return (now.version, now.kek, now.wrapped_key) == (sealed.version, sealed.kek, sealed.wrapped_key)


async def _outrun(credentials: Credentials, draft: Credential) -> bool:
    """Somebody stored that version since it was drafted, and the store says so."""
    try:
        return (await credentials.get(draft.id)).version >= draft.version
    except NotFound:
        return False


def open_vault(keys: Keys, witnesses: Witnesses) -> SealedVault:
    """Sealed, and saying so, when there is no key. A log line says it too."""
    vault = SealedVault(keys, witnesses)
    if vault.sealed:
        logging.getLogger("ringfence.vault").warning("the vault is sealed: %s", vault.sealed)
    return vault
