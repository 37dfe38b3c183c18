"""Rolls: which rows count that say where a credential goes and what may leave a box. Nouns, digests, comparison; pure.

Whoever can write into the database alone could bind a credential to a host of theirs, widen a rule, grant, or put back
what was taken away. So each owner's bindings, each layer's rules and each shared credential's grants have a roll: the
ids of the rows that are in force, each with a digest of what the row says, under one MAC whose key is not in the
database (host/vault/rolls.py). A row counts when the roll names it with that digest. One MAC for a whole list, and not
one for each row, also tells what is missing: a deny that was taken out, a row that was ended and is live again.

Must never let a row count for want of a roll.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringfence.host.kernel.canonical import canonical_json, sha256_json
from ringfence.host.kernel.errors import Failed

RULES, BINDINGS, GRANTS = (
    "rules:",
    "bindings:",
    "grants:",
)  # then: id of user or tenant or ""; of the user; of the credential
CREDENTIAL = "credential:"  # of no roll: in news alone, of one whose value is another by now or is gone
DENIES = "deny "  # before the digest of a rule that denies: what its loss would open


@dataclass(frozen=True, slots=True)
class Roll:
    """`edition`: one more with each change; what was seen of it outside the database tells of an older one that was put
    back."""

    of: str
    edition: int = 0  # 0: there is none
    entries: Mapping[str, str] = field(default_factory=dict)  # by id of a row; "" of grants
    kek: str = ""  # id of the vault's key that its MAC's key is made of
    mac: str = ""  # HMAC-SHA256 of `spelled`, 64 hex digits


@dataclass(frozen=True, slots=True)
class Compared:
    """`odd`: rows that are there and do not count; `lost`: rows that should be there as they were, and are not;
    `closed`: a deny is lost, or the roll itself: nothing that allows may count."""

    counts: frozenset[str]
    odd: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()  # of the lost
    why: str = ""  # the roll itself is none

    @property
    def closed(self) -> bool:
        return bool(self.denies or self.why)

    @property
    def whole(self) -> bool:
        return not (self.odd or self.lost or self.why)


@dataclass(frozen=True, slots=True)
class Altered:
    """What is told of a roll that does not agree with its rows."""

    of: str
    why: str
    odd: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


class Seals(Protocol):
    """What signs rolls, and judges them. Unavailable: the vault is sealed."""

    def sign(self, roll: Roll) -> Roll:
        """The same with `kek` and `mac`. Never waits."""

    def genuine(self, roll: Roll) -> bool:
        """By the keys that are at hand and by what is known to have been seen. Never waits."""

    def least(self, of: str) -> int:
        """The edition after the newest that is known to have been seen."""

    async def judge(self, rolls: Sequence[Roll], generation: int) -> Mapping[str, str]:
        """By `of`: "" or why it does not count. `generation`: of the store, which a restored backup makes higher: it
        may have older editions. What is newer is noted."""

    async def prune(self, present: Collection[str]) -> None:
        """What was seen of rolls that are not among `present`, and that no key here would judge genuine any more, is
        forgotten."""

    def resigned(self, roll: Roll) -> Roll | None:
        """The same by the present key; None: it is not genuine, or the key that signed is not here."""


class Rolls(Protocol):
    """What the store says of its rolls as a whole."""

    async def news(self, after: int | None) -> tuple[int, Sequence[str]]:
        """Whose bindings, rules or grants were changed, or which credential's value was, by whichever kernel, after the
        number that an earlier call gave: as in `Roll.of`, or CREDENTIAL. None: the number alone."""

    async def altered(self) -> Sequence[Altered]:
        """All that does not count, or is not there as it should be. Unavailable: the vault is sealed."""

    def known(self) -> Sequence[Altered]:
        """What was met and has not been found whole since."""

    def noticed(self) -> Sequence[Altered]:
        """What was met since this was asked last, each once for as long as it is the same."""

    async def resign(self) -> Mapping[str, int]:
        """Signs every roll by the vault's present key, each in a transaction of its own: {"resigned", "left"}.
        Resumable. Then forgets what was seen of rolls that nothing could put back any more."""


def spelled(roll: Roll) -> bytes:
    return canonical_json(["roll", roll.of, roll.edition, dict(roll.entries)])


def digest(*said: str) -> str:
    """Of what a row says: its id, its keys, its body as the database has it."""
    return sha256_json(said)


def compare(roll: Roll, rows: Mapping[str, str], why: str) -> Compared:
    """`rows`: digest of what each live row says, by its id, as an entry has it. `why`: as `Seals.judge`."""
    if why:
        return Compared(frozenset(), tuple(sorted(rows)), why=why)
    named = roll.entries
    counts = frozenset(
        name for name, said in rows.items() if name in named and named[name].removeprefix(DENIES) == said
    )
    lost = tuple(sorted(named.keys() - counts))
    return Compared(
        counts,
        tuple(sorted(rows.keys() - counts)),
        lost,
        tuple(name for name in lost if named[name].startswith(DENIES)),
    )


def altered(of: str, found: Compared) -> Altered | None:
    """None: nothing is."""
    if found.whole:
        return None
    return Altered(of, found.why or "rows are not those that were sealed", found.odd, found.lost)


class Broken(Failed):
    """A roll does not count, so nothing can be added to it."""


def broken(of: str) -> Broken:
    kind, _, whose = of.partition(":")
    remedy = {
        "rules": "ringfence egress ls; take each of them away with ringfence egress rm, and add anew what is meant",
        "bindings": "ringfence secret ls U; ringfence secret unbind each, and bind anew what is meant",
        "grants": "ringfence secret rm U NAME, and store it anew",
    }
    return Broken(
        f"{kind} of {whose or 'the installation'} are not those that were sealed: the database was altered or put back",
        remedy=f"{remedy[kind]}; and look who writes to the database",
        roll=of,
    )
