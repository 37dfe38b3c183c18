"""kernel.outward.rolls.Seals of a process that has no key of the vault, such as a verb on the database: nothing counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.outward.rolls import Roll


class Unkeyed:
    def sign(self, roll: Roll) -> Roll:
        raise _no_key()

    def genuine(self, roll: Roll) -> bool:
        return False

    def least(self, of: str) -> int:
        return 1

    async def judge(self, rolls: Sequence[Roll], generation: int) -> Mapping[str, str]:
        raise _no_key()

    async def prune(self, present: Collection[str]) -> None:
        """There is nothing that it could have seen."""

    def resigned(self, roll: Roll) -> Roll | None:
        return None


def _no_key() -> Unavailable:
    return Unavailable("this process has no key of the vault", remedy="ask the server: ringfence secret, egress, vault")
