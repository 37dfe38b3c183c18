"""The JSON of credentials, their bindings and the vault. No answer here has a field for a value."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from ringfence.host.web.shapes import Request, Text

Short = Annotated[Text, Field(max_length=300)]
LongText = Annotated[Text, Field(max_length=2000)]
Port = Annotated[int, Field(ge=1, le=65535)]


class NewBinding(Request):
    """A recipe, or a host with a header, a scheme or a parameter of the query; neither: Authorization: Bearer."""

    recipe: Short = ""
    host: Short = Field(default="", description="a name, *.NAME or **.NAME; of a recipe: instead of the service's own")
    header: Short = ""
    scheme: Literal["raw", "bearer", "token", "basic_password", "basic_user"] | None = None
    query: Short = Field(default="", description="a parameter's name: a URL ends up in logs, so only when asked for")
    ports: list[Port] = Field(default_factory=lambda: [443], max_length=16)
    methods: list[Short] = Field(default_factory=list, max_length=32)
    paths: list[LongText] = Field(default_factory=list, max_length=64)
    environment: Annotated[list[Short], Field(max_length=16)] | None = Field(
        default=None, description="variables that hold the placeholder; null: the recipe's"
    )
    use: Literal["placeholder", "inject", "mounted"] = "placeholder"
    shape: Short = Field(default="", description="what the placeholder looks like; empty: the recipe's")
    uses: Annotated[int, Field(ge=1)] | None = Field(default=None, description="of one placeholder")
    ranges: bool = Field(
        default=False,
        description="parts of answers may be asked for; the masking of the value in answers is then no wall",
    )


Oauth = Annotated[
    bool,
    Field(
        description="the value is JSON, {token_url, client_id, refresh_token} and if there are such client_secret, scope, "
        "client_auth (body, basic): what stands in for it is exchanged for the access token that is got for it"
    ),
]


class NewSecret(Request):
    """A value is taken from a body alone, and is in no answer."""

    value_b64: str = Field(max_length=88_000, repr=False, description="64 KiB at most")
    shared: bool | None = Field(default=None, description="null: as it was, or the user's own")
    oauth: Oauth = False
    binding: NewBinding | None = None


class NewTenantSecret(Request):
    value_b64: str = Field(max_length=88_000, repr=False, description="64 KiB at most")
    user: Short = Field(default="", description="whom it is bound for at once")
    oauth: Oauth = False
    binding: NewBinding | None = None


class PositionShape(BaseModel):
    header: str
    scheme: str
    query: str


class BindingShape(BaseModel):
    id: str
    host: str
    ports: list[int]
    methods: list[str]
    paths: list[str]
    positions: list[PositionShape]
    use: str = Field(description="placeholder; inject: any process of the box spends it; mounted: in clear in the box")
    environment: list[str]
    shape: str
    uses: int | None
    recipe: str
    ranges: bool


class RenewalShape(BaseModel):
    """Of an access token."""

    state: Literal["asking", "failing", "refused"] = Field(description="refused: its owner has to sign in anew")
    why: str
    again_at: datetime | None = Field(description="it is not asked for before; null: not at all")


class SecretShape(BaseModel):
    id: str
    name: str
    scope: str = Field(description="user, tenant, shared")
    user: str | None = Field(description="whose; null: the tenant's")
    version: int
    kind: str
    created_at: datetime
    updated_at: datetime
    granted: list[str]
    bindings: list[BindingShape] = Field(description="of the user who is asked about")
    reach: list[BindingShape] = Field(
        description="of the tenant's and of a shared one: where its owner lets others bind it; without ids"
    )
    renewal: RenewalShape | None = Field(
        default=None, description="of a grant, when the last try to get an access token failed or one is under way"
    )


class SecretList(BaseModel):
    secrets: list[SecretShape]


class BindingList(BaseModel):
    bindings: list[BindingShape]


class Revoked(BaseModel):
    revoked: str = Field(description="id; no worker has the value any more")


class Unbound(BaseModel):
    unbound: list[str]


class AlteredShape(BaseModel):
    of: str = Field(description="rules:, bindings: or grants:, and whose: ids of a user, a tenant or a credential")
    why: str
    odd: list[str] = Field(description="rows that are there and do not count")
    lost: list[str] = Field(description="rows that are gone, or not as they were sealed")


class VaultShape(BaseModel):
    sealed: str = Field(description="why nothing can be read or written; empty: it is open")
    remedy: str = ""
    key: str = Field(description="id of the key that wraps")
    old: list[str]
    unreadable: int = Field(description="versions that no key here wrapped")
    restored: int = Field(
        description="generation of the store, which says that it was put back, and this host knows nothing of it; 0: it agrees"
    )
    altered: list[AlteredShape] = Field(
        description="what the database says of bindings, rules and grants and nobody sealed"
    )


class Restored(BaseModel):
    generation: int = Field(description="of the store, which this host agrees to now")


class Rotated(BaseModel):
    rewrapped: int
    resigned: int = Field(description="rolls of bindings, rules and grants, signed by the present key")
    left: int = Field(description="wrapped or signed by a key that is not here; rolls that were altered")
    damaged: list[str] = Field(description="ids of credentials that do not open: altered, or moved")
