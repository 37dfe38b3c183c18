"""Who there is and what box they have, as the store keeps it: the part of `kernel.ports` that changes by declared acts.

Every method raises only errors of `kernel.errors`; each protocol lists the particular ones. All times are aware UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from ringfence.host.kernel.boxes import Box, BoxKind, Desired, Limits, Observed, Rest
from ringfence.host.kernel.ids import BoxId, TenantId, TokenId, UserId
from ringfence.host.kernel.people import Scope, Tenant, Token, User, UserKind


class Tenants(Protocol):
    """Conflict: the name exists. NotFound."""

    async def add(self, name: str) -> Tenant: ...
    async def get(self, name: str) -> Tenant: ...
    async def gone(self, name: str) -> Tenant:
        """The removed one that had that name last."""

    async def all(self) -> list[Tenant]: ...
    async def remove(self, name: str) -> None:
        """Conflict while it has users."""


class Users(Protocol):
    """Conflict: the name exists in the tenant. NotFound: tenant, user or owner."""

    async def add(self, tenant: str, name: str, kind: UserKind, owner: str | None) -> User: ...
    async def get(self, tenant: str, name: str) -> User: ...
    async def by_id(self, user: UserId) -> User: ...
    async def gone(self, tenant: str, name: str) -> User: ...
    async def all(self, tenant: str) -> list[User]: ...
    async def remove(self, user: UserId) -> None:
        """Tombstones the user and revokes its tokens in one transaction."""


class Tokens(Protocol):
    """NotFound."""

    async def add(
        self, user: UserId, secret_hash: str, scopes: frozenset[Scope], note: str, expires_at: datetime | None
    ) -> Token: ...
    async def find(self, secret_hash: str) -> tuple[Token, User]:
        """Also expired ones: the caller decides by its clock. NotFound: unknown or revoked."""

    async def get(self, token: TokenId) -> tuple[Token, User]:
        """As `find`, for one that was found before. Not a use of it."""

    async def all(self, user: UserId) -> list[Token]: ...
    async def remove(self, token: TokenId) -> None: ...
    async def note_uses(self) -> None:
        """Puts on disk when tokens were found last. With each hello of the kernel: `find` writes nothing."""


class Boxes(Protocol):
    """NotFound."""

    async def home_of(self, user: User, driver: str, limits: Limits) -> Box:
        """The user's home box; its row is made on first use (unique on (tenant, user) where kind = home)."""

    async def add(self, user: User, kind: BoxKind, driver: str, limits: Limits) -> Box: ...
    async def get(self, box: BoxId) -> Box: ...
    async def all(self, tenant: TenantId | None = None) -> list[Box]: ...
    async def update(
        self,
        box: BoxId,
        *,
        desired: Desired | None = None,
        observed: Observed | None = None,
        uid: int | None = None,
        identity: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        started: bool = False,
        active: bool = False,
        rest: Rest | None = None,
        made_of: Mapping[str, Any] | None = None,
        image: str | None = None,
        image_wanted: str | None = None,
        image_bound: str | None = None,
    ) -> Box:
        """Sets what is not None. `started`: generation + 1 and started_at; `active`: last_active_at.
        observed other than running clears the identity, and a pause; `rested_at` is set when it comes to rest in another
        way than before."""

    async def hold(self, box: BoxId) -> None:
        """Runs of its user wait from now on until it is paused and resumed, or comes to rest in another way."""

    async def quarantine(self, box: BoxId, why: str | None) -> Box:
        """None: released. Of one that is in quarantine, another reason. Runs of its user wait meanwhile."""

    async def begin(self, box: BoxId, verb: str, seconds: float) -> Box:
        """The verb is under way, for so long at most, unless `end` comes before. Conflict: another one is."""

    async def end(self, box: BoxId, verb: str) -> None:
        """Idempotent; nothing when another verb is under way."""

    async def new_tree(self, box: BoxId) -> int:
        """Whoever has put another tree in the place of the box's (reset, an older copy) says so, before the box may start
        again: how many live runs are left to the redrive table as ones whose tree has changed, now or when their lane comes
        to them. Who had them is StaleEpoch. A failed one that is tried again by hand goes there too. Callers: reset and the
        restore of a tree."""
