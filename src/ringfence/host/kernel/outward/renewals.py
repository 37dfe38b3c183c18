"""What renewing access tokens asks of the store and of the network. Errors: kernel.errors. Wall times are the store's
clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.secret import Secret


class Turn(StrEnum):
    MINE = "mine"  # whoever asked renews it, and nobody else meanwhile
    BUSY = "busy"  # somebody does
    LATER = "later"  # it failed, and is not tried again before `again_at`
    REFUSED = "refused"  # the refresh token of this version is worth nothing
    OVERTAKEN = "overtaken"  # there is another version by now


@dataclass(frozen=True, slots=True)
class Renewal:
    """How it stands with renewing one version of a credential."""

    credential: str
    version: int
    turn: Turn
    why: str = ""  # of the last failure
    again_at: datetime | None = None
    failures: int = 0  # in a row
    cut: bool = False  # a question was sent, and what came of it is not known: a rotated refresh token may be lost


class Renewals(Protocol):
    """Rows of the store: one kernel of all that share it renews a credential, and what failed is known to each."""

    async def take(self, credential: str, version: int, holder: str, seconds: float) -> Renewal:
        """MINE: for so many seconds, or until a next version is stored or `failed` is said. NotFound: revoked."""

    async def failed(
        self, credential: str, version: int, holder: str, why: str, wait: float | None, *, cut: bool
    ) -> None:
        """Of whose turn it is; anybody else's word is passed over. `wait`: seconds; None: for good. `version`: the one
        that is stored by now."""

    async def standing(self, credentials: Collection[str]) -> Mapping[str, Renewal]:
        """Of those whose last try failed, or is under way; for screens."""


@dataclass(frozen=True, slots=True)
class TokenReply:
    status: int
    body: bytes = field(repr=False)
    retry_after: float | None = None  # seconds, as the service says (RFC 9110 10.2.3)


class TokenEndpoint(Protocol):
    async def ask(
        self, whose: tuple[TenantId, UserId | None], url: str, headers: Sequence[tuple[bytes, bytes]], body: Secret
    ) -> TokenReply:
        """One POST, to the address of the grant alone: nothing is sent twice and no redirect followed. Refused: a rule
        denies the host. Unavailable: there is no answer that could be read; its detail `sent`: whether the question may
        have arrived. Neither has anything of what was said."""
