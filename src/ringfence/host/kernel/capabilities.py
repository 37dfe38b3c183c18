"""Capabilities: tools that the host itself carries out. Nouns, and what one must declare to be let in. Pure.

A capability of effect `once` that declares no look-up is refused: after a crash nobody could say whether it happened, and
a box's word is evidence for nothing but its own commands (architecture.md section 7).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.gates import GateKind
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.runs import Effect, Evidence

MAX_CAPABILITIES = 64
KEY_DIGITS = 32  # of a call's digest in its key: 128 bits, so that no loop finds two calls with one key (2^64 tries)
# With a dot: the tools of a loop have none, so that no name can mean both.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}(\.[a-z][a-z0-9_]{0,31}){1,3}\Z")
_EFFECTS = frozenset({Effect.PURE, Effect.IDEMPOTENT, Effect.ONCE})


@dataclass(frozen=True, slots=True)
class CallLimits:
    arguments: int = 128 * 1024  # bytes as canonical JSON
    tries: int = 3  # times that it is sent, each after evidence that the one before did not arrive


@dataclass(frozen=True, slots=True)
class Capability:
    name: str
    effect: Effect  # never local: that is a command in a box
    summary: str  # for the model
    schema: Mapping[str, Any]  # JSON Schema of the arguments
    lookup: bool  # whether the host can find out by key if it happened
    limits: CallLimits = field(default_factory=CallLimits)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a call refers to beside its arguments, as it was when somebody looked at it."""

    digest: str  # 64 hex digits; another one when anything of it has changed
    shown: Mapping[str, Any]  # for people: where it goes. No secret
    place: str = ""  # digest of where it goes alone: stays the same when a key is renewed. "": nothing can be renewed


@dataclass(frozen=True, slots=True)
class Need:
    """What has to be mended before a call can go out, or go out again. For the actor and the operator: no secret, no path."""

    kind: GateKind  # AUTH, SETUP
    missing: str
    mend: str


@dataclass(frozen=True, slots=True)
class Sending:
    """One call on its way out."""

    key: str  # the same for each try, and after a restart: the receiver does a key once
    run: RunId
    n: int
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of sending it. `evidence` UNKNOWN: it may have arrived."""

    evidence: Evidence
    result: Mapping[str, Any]  # for the model; bounded, without secrets
    retry: bool = False  # with NOT_DONE: nothing arrived, and the same may go well a moment later
    need: Need | None = None  # with NOT_DONE: it was turned away, and goes well once this is mended


class Tool(Protocol):
    """A capability that is there. It raises nothing: what goes wrong outside is UNKNOWN or NOT_DONE, in words."""

    @property
    def capability(self) -> Capability: ...
    def wrong(self, arguments: Mapping[str, Any]) -> str:
        """What is wrong with the arguments, for the model; "" when nothing is. Pure."""

    def sealed(self, arguments: Mapping[str, Any]) -> Sealed:
        """Of arguments that `wrong` finds nothing in."""

    async def lacks(self, arguments: Mapping[str, Any]) -> Need | None:
        """What is missing here for such a call, looked at now; `sealed` is of what was found. Of arguments as for `sealed`."""

    async def send(self, sending: Sending) -> Sent: ...
    async def look_up(self, sending: Sending) -> Sent:
        """Whether a key has been done. Changes nothing anywhere; may be asked again."""


def is_once(tool: Tool | None) -> bool:
    """A tool that is not declared any more may have been one."""
    return tool is None or tool.capability.effect is Effect.ONCE


def key_of(run: RunId, n: int, digest: str) -> str:
    """What the outside knows a step's effect by: the step, and the call that it made (`digest` of kernel.canonical). After a
    restore a step may make another call than the one that went out before: no receiver, and no look-up, takes it for that."""
    return f"s/{run}/{n}/{digest[:KEY_DIGITS]}"


def register(tools: Iterable[Tool]) -> dict[str, Tool]:
    """By name. Invalid: no name of a capability, one that is there already, `local`, or `once` without a look-up."""
    known: dict[str, Tool] = {}
    for tool in tools:
        capability = tool.capability
        check(capability)
        if capability.name in known:
            raise Invalid(f"the capability {capability.name} is there twice")
        known[capability.name] = tool
    if len(known) > MAX_CAPABILITIES:
        raise Invalid(f"{len(known)} capabilities; the limit is {MAX_CAPABILITIES}")
    return known


def check(capability: Capability) -> None:
    """Invalid."""
    name = capability.name
    if not _NAME.match(name):
        raise Invalid(f"no name of a capability: {name[:80]!r}", remedy="small letters, in two to four parts: a.b")
    if capability.effect not in _EFFECTS:
        raise Invalid(f"the capability {name} has effect {capability.effect.value}, which the host never carries out")
    if capability.effect is Effect.ONCE and not capability.lookup:
        raise Invalid(
            f"the capability {name} has effect once and no look-up",
            remedy="declare how to find out by key whether it was done, or nothing could be said after a crash",
        )
