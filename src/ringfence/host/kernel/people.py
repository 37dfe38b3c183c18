"""Tenants, users, tokens and actors."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from ringfence.host.kernel.ids import TenantId, TokenId, UserId


class UserKind(StrEnum):
    PERSON = "person"
    AGENT = "agent"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Tenant:
    """An organisation."""

    id: TenantId
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class User:
    """A trust boundary in a tenant: own box, credentials, policy."""

    id: UserId
    tenant: TenantId
    tenant_name: str
    name: str
    kind: UserKind
    owner: UserId | None  # a person; set exactly when kind is not person
    disabled: bool
    created_at: datetime
    held: str = ""  # why none of its runs is claimed now: quarantined, box_paused

    @property
    def held_back(self) -> str:
        """Why nothing may run for it; "": it may."""
        return "user_disabled" if self.disabled else self.held


class Scope(StrEnum):
    """What a token may do. `operator` is everything an operator may, for every user."""

    USER = "user"
    READ = "read"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Token:
    """An API token. The secret is shown once; only its SHA-256 is kept."""

    id: TokenId
    user: UserId
    scopes: frozenset[Scope]
    note: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who causes something. Comes from the authenticated transport, never from text.

    `user` is None for an operator who acts for nobody. `via` says how he came: `socket:<uid>` or `token:<token id>`;
    with `impersonated`, an operator acts as `user`, which is recorded.
    """

    user: User | None
    operator: bool
    via: str
    impersonated: bool = False
    scopes: frozenset[Scope] = frozenset({Scope.USER})  # of the token; a token with `read` alone changes nothing
    expires_at: datetime | None = None  # of the token: what is made with it lives no longer
    seal: bytes = field(default=b"", repr=False, compare=False)  # the engine's, over all the above and the credential
