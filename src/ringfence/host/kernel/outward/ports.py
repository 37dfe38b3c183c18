"""What the engine asks of vault, store and egress. Errors: kernel.errors. Wall times are the store's clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from ringfence.host.kernel.ids import BoxId, RunId, TenantId, UserId
from ringfence.host.kernel.outward.credentials import Binding, Credential, Owner, Sealed
from ringfence.host.kernel.outward.listeners import Listener
from ringfence.host.kernel.outward.rules import EgressRule
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.people import Actor


class Credentials(Protocol):
    """Rows of the store. No value in clear is ever an argument. NotFound: also of a user or tenant that is removed.

    One name is one live credential of a user (own and shared together), and of a tenant. A user may have one of the
    same name as the tenant: his own is meant then. Two that are shared with him under one name are a Conflict of
    `grant`."""

    async def put(self, draft: Credential, sealed: Sealed) -> Credential:
        """A new credential (version 1) or the next version of a live one: Conflict unless `sealed.version` is one more
        than what is stored. The sealed value of the version before is deleted in the same transaction. Conflict also:
        the name is taken, or MAX_CREDENTIALS are there. With another reach, what others bound beyond it ends."""

    async def get(self, credential: str) -> Credential:
        """Also a revoked one."""

    async def named(self, tenant: TenantId, owner: Owner, user: UserId | None, name: str) -> Credential:
        """A live one; never a CA."""

    async def authority(self, tenant: TenantId, user: UserId) -> Credential:
        """The live CA of a user."""

    async def ended(self, tenant: TenantId, user: UserId | None, name: str = "") -> list[Credential]:
        """Those that are revoked, of a user (who may be removed) or with None the tenant's own, the newest first. A
        name: of that name, and no CA."""

    async def visible(self, user: UserId) -> list[Credential]:
        """What the user may bind: own, then the tenant's, then what was granted. Revoked ones are not among them."""

    async def all(self, tenant: TenantId) -> list[Credential]:
        """Live ones, by name."""

    async def opening(self, credential: str) -> tuple[Credential, Sealed]:
        """It and its newest version, of one moment. NotFound: it is revoked."""

    async def revoke(self, credential: str) -> None:
        """For good: the name may be used again, the id and its versions not. Its sealed values are deleted, its grants
        and bindings end. Idempotent."""

    async def grant(self, credential: str, user: UserId, *, granted: bool) -> None:
        """Of a shared one, to a user of the same tenant. Taken back, the user's bindings of it end. Idempotent. To
        grant may be Unavailable (the vault is sealed) or Broken."""

    async def grants(self, credential: str) -> list[UserId]: ...
    async def wrapped_otherwise(self, kek: str, after: tuple[str, int], limit: int) -> list[Sealed]:
        """Versions that another key than `kek` wrapped, in the order of (credential, version), without `data`."""

    async def rewrap(self, sealed: Sealed, before: str) -> bool:
        """Exchanges `wrapped_key` and `kek` of that version if it is still wrapped by `before`."""

    async def bind(self, user: UserId, binding: Binding) -> Binding:
        """Of one that is visible to the user. With an empty id it is given one. Conflict: the same binding is there, or
        MAX_BINDINGS are. Refused: mounted, and not the user's own; or beyond the reach of another's (reaches.py).
        Unavailable: the vault is sealed. Broken."""

    async def unbind(self, user: UserId, binding: str) -> None: ...
    async def bindings(self, user: UserId, *, shown: bool = False) -> list[Binding]:
        """Of live credentials that the user may still use: those that count (rolls.py), and none while the vault is
        sealed. `shown`: for people, whatever is stored."""

    async def loosely_bound(self, users: Collection[UserId]) -> set[UserId]:
        """Those who have bindings that are no placeholders, whether they count or not: whom `bindings` is worth asking of."""

    async def usable(self, user: UserId, credential: str, binding: str) -> bool:
        """Whether it is live, the user may use it still, and that binding of the user is one of it and in force.
        `binding` "": whatever the user has bound."""

    async def bound_by(self, credential: str) -> list[UserId]: ...


class EgressRules(Protocol):
    async def add(self, layer: tuple[TenantId | None, UserId | None], rule: EgressRule) -> EgressRule:
        """`add_all` of one."""

    async def add_all(
        self, layer: tuple[TenantId | None, UserId | None], more: Sequence[EgressRule]
    ) -> list[EgressRule]:
        """All of them or none. (None, None): the installation's; (tenant, None): the tenant's; (tenant, user): the
        user's. With an empty id it is given one; its layer is what `layer` says. Conflict: one of them is there, or the
        layer would have more than MAX_RULES, MAX_RULE_PATHS or MAX_RULE_BYTES. NotFound. Unavailable: the vault is
        sealed. Broken: the layer's roll does not count."""

    async def remove(self, rule: str) -> EgressRule:
        """Also one that is lost. Unavailable: it denies, and the vault is sealed."""

    async def of(self, tenant: TenantId, user: UserId, *, shown: bool = False) -> list[EgressRule]:
        """Of all three layers, oldest first: those that count (rolls.py). In the place of a deny that is lost, or while
        nothing can be judged, one that denies all. `shown`: for people, also those that do not count, which their notes
        say."""

    async def of_layer(self, layer: tuple[TenantId | None, UserId | None]) -> list[EgressRule]:
        """Of that place alone (as of `add_all`), oldest first; for people, as `shown`."""

    async def all(self, tenant: TenantId | None) -> list[tuple[TenantId | None, UserId | None, EgressRule]]:
        """Of the tenant and its users; None: every rule. Oldest first; for people, as `shown`."""


@dataclass(frozen=True, slots=True)
class Invoker:
    """Who a command is for: the unit of attribution."""

    tenant: TenantId
    user: UserId
    box: BoxId
    key: str  # the command's own
    run: RunId | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Invocation:
    """One command's way out. `environment`: what it is given besides its own: proxy, CA files, placeholders."""

    id: str  # inv_...
    who: Invoker
    port: int
    environment: Mapping[str, str] = field(repr=False)


class Invocations(Protocol):
    """Rows of the store, so that a command that outlives the server keeps its port and its attribution."""

    async def open(self, id: str, who: Invoker, port: int) -> None:
        """Conflict: the port is taken by another live one of the box. NotFound: no such box of that user."""

    async def close(self, ids: Sequence[str]) -> None: ...
    async def of_box(self, box: BoxId) -> list[tuple[str, Invoker, int]]:
        """Live ones."""


@dataclass(frozen=True, slots=True)
class Rotated:
    """Of versions. `left`: wrapped by a key that is not here."""

    rewrapped: int
    left: int
    damaged: tuple[str, ...] = ()  # ids of credentials whose key should open them and does not: altered, or moved


class Vault(Protocol):
    """Unavailable with a remedy: sealed, there is no key, or not the one that wrapped this."""

    @property
    def sealed(self) -> str:
        """Why nothing can be read or written; "" = it is open."""

    async def seal(self, credential: Credential, value: Secret) -> Sealed:
        """As `credential.version`. TooLarge, Invalid: the value."""

    async def open(self, credential: Credential, sealed: Sealed) -> Secret:
        """Failed: the row is not what was sealed (altered, another's, an older version, or revoked)."""

    async def read(self, credentials: Credentials, credential: str) -> tuple[Credential, Secret]:
        """The newest version: `opening` and `open`, again when somebody stores another in between. NotFound:
        revoked."""

    async def put(self, credentials: Credentials, draft: Credential, value: Secret) -> Credential:
        """`seal` as `draft.version`, then `credentials.put`; no older version is opened here from then on."""

    async def revoke(self, credentials: Credentials, credential: str) -> None:
        """`credentials.revoke`; it is not opened here from then on, whatever comes back into the store. Works sealed
        too."""

    @property
    def generation(self) -> int:
        """Of the store, by which what is older than what was seen is judged: no higher than what this host agrees
        to."""

    async def restored(self, generation: int) -> None:
        """An operator says that the store was put back, elsewhere: this host agrees to that generation."""

    async def ended(self, credential: str) -> bool:
        """Whether `revoke` of it has come to its end here."""

    async def rotate(self, credentials: Credentials) -> Rotated:
        """Wraps every version by the present key. Resumable at each row, safe beside readers; what does not open is
        passed over."""

    async def look(self, credentials: Credentials) -> Mapping[str, Any]:
        """{"sealed", "key" (id of the present one), "old" (ids), "unreadable" (versions that no key here wrapped)}."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A user's own CA: its certificate as PEM, and the key, also PEM."""

    certificate: str
    key: Secret
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker wants a value for: what is known of the request, its query left out. For the audit, so all of it is
    short."""

    box: BoxId
    user: UserId
    credential: str
    binding: str  # "" = none: the model gateway's own use
    invocation: str  # "" = unattributed
    host: str
    method: str
    path: str
    run: RunId | None = None
    step: int | None = None
    refused: int = 0  # version of an access token that the server has just answered with 401


@dataclass(frozen=True, slots=True)
class Lent:
    """A value for one use. `keep` None: it may be kept until it is revoked; else seconds, after which another is to be
    asked for: it is an access token."""

    value: Secret
    version: int
    keep: float | None = None


class Releases(Protocol):
    """The only way by which a stored value leaves the vault for a worker. A user's CA is none: the worker of its user
    is made with it, each time, and no row says so."""

    async def release(self, actor: Actor | None, wanted: Wanted) -> Secret:
        """The value of `lend`."""

    async def lend(self, actor: Actor | None, wanted: Wanted) -> Lent:
        """Of a credential of kind oauth_refresh the access token, renewed when it is due. In the audit's lane `release`
        before it is given. Nothing is given without that row: Unavailable, DiskFull. Unavailable: the vault is sealed,
        or there is no access token now. NotFound: revoked, unbound or not the user's to use any more, also while the
        row was written. Failed: not what was sealed. Whether the binding covers the request is decided before. Whoever
        gets it looks once more that no revocation has come since, at the moment when it hands it on."""


class Authorities(Protocol):
    async def forget(self, tenant: TenantId, user: UserId) -> None:
        """The next call makes a CA with another key: for one that cannot be opened any more. NotFound: there is
        none."""

    async def authority(self, tenant: TenantId, user: UserId) -> Authority:
        """The user's, made at the first call. Failed: what is stored is not what was sealed. Within RENEW_DAYS of its
        end it gets another certificate for the same key: whoever trusts the one before trusts what it signs until that
        one ends. Unavailable: the vault is sealed."""


class Outlets(Protocol):
    """What the driver does for the way out of a home. NotFound; Refused: another kind of box, or (but for `end_worker`
    and `trust`) it does not run; Unavailable."""

    async def listen(self, box: BoxId, port: int) -> list[Listener]:
        """Sockets in the box's network, the caller's. `port`: one of listeners.PROXY_PORTS, or 0: the fixed set.
        Conflict: a worker of before still has that port: end it."""

    async def worker(self, box: BoxId) -> int:
        """Forks the box's worker, which has closed itself in when this returns: the control socket (fd, the caller's).
        One that still lives is ended first. It ends when that is closed, and when the box is stopped, frozen or
        removed."""

    async def end_worker(self, box: BoxId) -> None:
        """Killed and gone when it returns. Idempotent."""

    async def trust(self, box: BoxId, certificate: str) -> None:
        """PEM of the one CA that the box trusts besides the host's roots, from its next start on. Idempotent."""


HoldAnswer = Literal["allow", "deny", "timeout"]
HoldSaid = Literal["once", "always", "deny"]
"""once: the one that waits longest goes out, or the next that asks the same soon; always: the rule is added; deny: not
for a while."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A question to a box's owner about a way out that a rule says `ask` to."""

    id: str  # hld_...
    who: Invoker  # of the first that asked
    rule: EgressRule  # exactly what `always` would add
    asked_at: datetime
    waiting: int  # connections that are held open for the answer
    query: str = ""  # names of the parameters of the one that `once` is for, joined by &: the rule says nothing of them


class Holds(Protocol):
    """In memory: what a server that was started anew does not know is asked again by the next connection."""

    def of(self, users: Collection[UserId]) -> list[Hold]:
        """Oldest first."""

    async def answer(self, actor: Actor, hold: str, said: HoldSaid) -> Hold:
        """In the audit before it counts. The caller has authorised it. NotFound: answered, or forgotten."""


class Egress(Protocol):
    """The way out of boxes, worker and listeners. All of it may be asked again."""

    @property
    def holds(self) -> Holds: ...
    @property
    def settings_rules(self) -> Sequence[EgressRule]:
        """Of the installation's layer, those from the file of settings: before what the store has."""

    async def prepare(self, box: BoxId, tenant: TenantId, user: UserId) -> None:
        """Before each start of the box: it trusts the user's CA then. Without an open vault it starts without one."""

    async def open(self, box: BoxId, tenant: TenantId, user: UserId, keys: Collection[str]) -> None:
        """Before its first command, after each start: transparent and DNS listeners, those of live invocations. `keys`:
        of the commands that run in it; the invocations of others have ended. Ready when it returns: nothing of the box
        is called ready without its listeners. A box that is open stays so; one that is suspended goes on."""

    async def suspend(self, box: BoxId) -> None:
        """Before a freeze: the worker ends, holds end as denied, nothing is begun until `open` or `close`. Live invocations stay,
        and whoever connects waits for that. Idempotent."""

    async def close(self, box: BoxId) -> None:
        """At stop and loss: the worker ends, holds end as denied, invocations have ended. Idempotent."""

    async def begin(self, who: Invoker) -> Invocation:
        """The same for the same command (box, key) as long as it lives. Unavailable: the box is not open. Conflict: it
        has as many live ones as there are ports."""

    def end(self, box: BoxId, key: str) -> None:
        """The command is over: its port is closed, its placeholders are worth nothing. Idempotent."""

    def keep(self, box: BoxId, keys: Collection[str]) -> None:
        """These commands of the box run and no others: `end` of all others."""

    async def reload(self, users: Collection[UserId] | None) -> None:
        """Rules or bindings of these (None: everybody) changed: in force in every live worker when it returns; a worker
        that does not confirm within 5 s is ended."""

    async def revoke(self, credential: str) -> None:
        """No worker has the value any more when it returns, and no call of a model begins with it."""

    async def forget_authority(self, tenant: TenantId, user: UserId) -> None:
        """The user's boxes have another CA from their next start on. NotFound: there is none."""

    def facts(self, box: BoxId) -> Mapping[str, Any]:
        """For screens: {"open", "worker" (one lives), "listeners", "invocations", "requests", "denials", "dropped"
        (audit lines of the traffic lane), "crashes", "holds"}."""

    async def stop(self) -> None:
        """The server ends: nothing is begun any more; boxes keep running, and their workers end with their sockets."""
