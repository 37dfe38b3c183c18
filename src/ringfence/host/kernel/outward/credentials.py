"""A stored credential, where it may be used, and its stand-in. Nouns; pure. No value is ever in one of these."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ringfence.host.kernel.ids import TenantId, UserId


class Owner(StrEnum):
    USER = "user"
    TENANT = "tenant"  # every user of the tenant may bind it
    SHARED = "shared"  # granted by its owner to single users of the tenant


class Use(StrEnum):
    """How a value comes to the request. The default is PLACEHOLDER; the others are said wherever the box is shown."""

    PLACEHOLDER = "placeholder"  # the worker exchanges a stand-in that the command holds
    INJECT = "inject"  # no stand-in: any process of the box spends it, just by asking the host
    MOUNTED = "mounted"  # in clear in the environment of commands: architecture.md 9, users' own only


class Scheme(StrEnum):
    """What of a header's value the secret is."""

    RAW = "raw"  # all of it
    BEARER = "bearer"  # after `Bearer `
    TOKEN = "token"  # after `token `
    BASIC_PASSWORD = "basic_password"  # decode, exchange what follows the first colon, encode
    BASIC_USER = "basic_user"  # what comes before it


@dataclass(frozen=True, slots=True)
class Position:
    """A place of a request's head. `header` in lower case. `query`: a parameter's name instead, opt-in only."""

    header: str = "authorization"
    scheme: Scheme = Scheme.BEARER
    query: str = ""


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a credential may be used: all fields must hold. https only, at a verified name; never an IP literal."""

    id: str  # bnd_...
    credential: str  # crd_...
    host: str  # as in a rule, but no bare `*` and no CIDR
    ports: tuple[int, ...] = (443,)
    methods: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    positions: tuple[Position, ...] = (Position(),)
    use: Use = Use.PLACEHOLDER
    environment: tuple[str, ...] = ()  # variables of a command that hold the placeholder (GH_TOKEN)
    shape: str = "generic"  # a key of shapes.SHAPES
    uses: int | None = None  # of one placeholder; None: any number until it expires
    recipe: str = ""  # it came from; for people
    ranges: bool = False  # parts of answers too: who echoes the secret can then be made to give it by halves


@dataclass(frozen=True, slots=True)
class Credential:
    """What is known of a stored secret besides its value. Names: [a-z0-9][a-z0-9._-]{0,63}."""

    id: str  # crd_...
    tenant: TenantId
    owner: Owner
    user: UserId | None  # whose: USER and SHARED
    name: str
    version: int  # from 1, one more with each `secret set`; never goes back
    kind: str  # opaque | oauth_refresh | authority: the user's CA, which no list shows and nothing binds
    created_at: datetime
    updated_at: datetime
    revoked_at: datetime | None = None
    reach: str = (
        ""  # where others may have it sent: reaches.py; JSON as it lies there, sealed with the value. Empty: nowhere
    )


@dataclass(frozen=True, slots=True)
class Sealed:
    """One version as the store has it. `data`: AES-256-GCM of the value under a key of its own; `wrapped_key`: that key
    under the key-encryption key `kek`. AAD of both: canonical JSON of [tenant, owner, user or "", name, id, version,
    kind, reach].
    `mac`: HMAC-SHA256 under a key of this version's own key, kept with the credential and not with the version: it says
    that this version is the newest."""

    credential: str
    version: int
    kek: str  # id of the key that wrapped: 16 hex digits
    wrapped_key: bytes  # nonce (12) + ciphertext and tag
    data: bytes  # nonce (12) + ciphertext and tag
    mac: str  # 64 hex digits
