"""Whose calls of models they are, and what the gateway and the providers ask of the store and of the vault.
Errors: kernel.errors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.ids import BoxId, RunId, TenantId, UserId
from ringfence.host.kernel.models.usage import Amount, BudgetLimits, Spent, Usage
from ringfence.host.kernel.outward.credentials import Credential, Sealed
from ringfence.host.kernel.outward.ports import Wanted
from ringfence.host.kernel.outward.secret import Secret


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a call is for: what it costs is counted for this user, and for this run."""

    tenant: TenantId
    user: UserId
    run: RunId | None = None  # None: of a command that belongs to no run
    box: BoxId | None = None
    invocation: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One that is about to go out. `front`: loop | openai | anthropic."""

    id: str  # mdl_...
    caller: Caller
    alias: str
    front: str
    worker: str  # the kernel process that makes it


Fit = Callable[[Amount], Amount | None]
"""Of what is left, how much the call is given. None: too little is left."""

Standing = tuple[tuple[str, int], ...]
"""(id, version) of each live credential that a name could mean to a user: own ones and the tenant's. Whatever makes it
mean another makes this another."""


@dataclass(frozen=True, slots=True)
class Going:
    """A provider's key that goes out with a call, as it was found for an earlier one: sealed. It holds while `standing`
    does."""

    standing: Standing
    credential: Credential
    sealed: Sealed
    wanted: Wanted  # by this call


class Changed(Conflict):
    """The key is another by now, or the caller's no more: it is to be found anew."""


class Keys(Protocol):
    """Providers' keys by their names in the vault. Unavailable with a remedy: there is none, or it may not be given out
    now."""

    async def __call__(self, caller: Caller, name: str) -> Secret:
        """Looked for, and in the release lane of the audit before it is given."""

    def going(self, caller: Caller, name: str) -> Going | None:
        """What is known from an earlier call of the user's; None: nothing that helps."""

    async def opened(self, going: Going) -> Secret:
        """To be handed on once `ModelUsage.reserve` has taken it."""


class ModelUsage(Protocol):
    """Calls of models and what they used. What is durable when a method returns stays counted, whoever dies."""

    async def standing(self, caller: Caller, name: str) -> Standing:
        """Of the caller's user, now."""

    async def reserve(self, call: Call, limits: BudgetLimits, fit: Fit, going: Going | None = None) -> Amount:
        """Counts what `fit` makes of the room that user and run have left, in one transaction with looking at it: two
        calls never get the same room. Exhausted: `fit` says no. Refused: the run has ended, or is not this user's.
        `going`: in the same transaction it is held against what stands now (Changed: then nothing is counted), and
        written into the release lane of the audit. Unavailable: that takes longer than a release may."""

    async def settle(self, call: str, usage: Usage, micros: int, outcome: str) -> bool:
        """What was used instead of what was reserved. False: it was settled before. `outcome`: done | cut | left |
        failed."""

    async def sweep(self, worker: str, live: Callable[[], Collection[str]]) -> int:
        """Ends the reservations of calls that nobody makes any more, at all they had reserved: nobody knows what they
        used. `live`: those of `worker`, each from before its reservation until after its settlement; asked, in the
        event loop, once the reservations were read."""

    async def of_run(self, run: RunId) -> Spent: ...
    async def of_user(self, user: UserId, period: str) -> Spent: ...


class Spending(Protocol):
    """What is used and what is left, for screens; and its upkeep."""

    async def of_run(self, run: RunId) -> Mapping[str, Any]:
        """{"calls", "input_tokens", "cached_tokens", "output_tokens", "tokens", "money", "reserved", "limit"}."""

    async def of_user(self, user: UserId) -> Mapping[str, Any]:
        """Also "period": of the present one."""

    async def sweep(self) -> int:
        """As `ModelUsage.sweep`."""


@dataclass(frozen=True, slots=True)
class ModelReply:
    text: str
    tool_calls: Sequence[Mapping[str, Any]]  # {"id", "name", "arguments"}
    stop: Literal["end", "tool_calls", "length"]
    usage: tuple[int, int] | None = None  # tokens (input, output)


class Model(Protocol):
    """One provider. Unavailable; Refused; Failed; Exhausted: its caller has no budget left."""

    @property
    def window(self) -> int:
        """Tokens that it takes, its answer included."""

    async def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        on_delta: Callable[[str], None],
    ) -> ModelReply:
        """`tools`: {"name", "description", "parameters" (JSON Schema)}. `on_delta` is called with each piece of text
        as it comes; together they are the reply's text."""


@runtime_checkable
class ModelFor(Protocol):
    """A provider whose calls are counted for whoever makes them."""

    @property
    def window(self) -> int: ...
    def of(self, caller: Caller) -> Model: ...
