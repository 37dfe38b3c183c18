"""Policy: what the operator has declared about calls, and what follows for one call. Pure.

Order: explicit deny > allow > ask > default. For what the host itself does the default is deny, and the answer is a wall.
For tools that a loop carries out in its actor's own box the default is allow, and any rule is advice to an honest loop:
whoever holds the box can do the same without asking. `Decision.wall` says which, for every screen.

The obligations of all rules that gave the winning answer hold together: the strictest of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from ringfence.host.kernel.canonical import sha256_json

REDACTED = "[redacted]"
WALL = "a wall: the host itself does this, and does nothing of it without this answer"
ADVICE = "advice: this happens in the actor's own box, where a loop that does not ask is not stopped by it"

Scalar = str | int | float | bool


class Verdict(StrEnum):
    DENY = "deny"
    ALLOW = "allow"
    ASK = "ask"


_ORDER = (Verdict.DENY, Verdict.ALLOW, Verdict.ASK)


@dataclass(frozen=True, slots=True)
class Obligations:
    """What has to be done for a call to go out."""

    redact: tuple[str, ...] = ()  # dotted paths of arguments (`redacted`), replaced before anybody sees the call
    cap_bytes: int | None = None  # of the arguments as canonical JSON, after redaction
    notify_owner: bool = False  # the acting user's owner, or the user, is told before it goes out
    expire_seconds: int | None = None  # from the begin of the step: later it does not go out any more

    def to_json(self) -> dict[str, Any]:
        return {
            "redact": list(self.redact),
            "cap_bytes": self.cap_bytes,
            "notify_owner": self.notify_owner,
            "expire_seconds": self.expire_seconds,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Obligations:
        return cls(tuple(raw["redact"]), raw["cap_bytes"], raw["notify_owner"], raw["expire_seconds"])


@dataclass(frozen=True, slots=True)
class Rule:
    tool: str  # a glob over names of tools
    answer: Verdict
    where: tuple[tuple[str, Scalar], ...] = ()  # dotted path of an argument: a glob for text, else the same value
    obligations: Obligations = field(default_factory=Obligations)

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "answer": self.answer.value,
            "where": dict(self.where),
            **self.obligations.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Policy:
    rules: tuple[Rule, ...] = ()
    # Of the rules in force, 64 hex digits: an approval names the policy that it was asked under. Made once, as each call
    # asks.
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", sha256_json([rule.to_json() for rule in self.rules]))


@dataclass(frozen=True, slots=True)
class Decision:
    answer: Verdict
    obligations: Obligations
    rules: tuple[int, ...]  # of the policy, from 0; () = the default
    policy: str
    wall: bool

    @property
    def why(self) -> str:
        """For people and for the model."""
        if not self.rules:
            return (
                "no rule of the policy allows it" if self.answer is Verdict.DENY else "no rule of the policy names it"
            )
        named = ", ".join(str(n + 1) for n in self.rules)
        return f"rule {named} of the policy says {self.answer.value}"


def decide(policy: Policy, tool: str, arguments: Mapping[str, Any], *, host: bool) -> Decision:
    """`host`: the host itself would carry the call out."""
    matching = [(n, rule) for n, rule in enumerate(policy.rules) if matches(rule, tool, arguments)]
    for answer in _ORDER:
        chosen = [(n, rule) for n, rule in matching if rule.answer is answer]
        if chosen:
            numbers = tuple(n for n, _ in chosen)
            return Decision(answer, together(rule.obligations for _, rule in chosen), numbers, policy.digest, host)
    default = Verdict.DENY if host else Verdict.ALLOW
    return Decision(default, Obligations(), (), policy.digest, host)


def matches(rule: Rule, tool: str, arguments: Mapping[str, Any]) -> bool:
    """An argument that is not there matches nothing."""
    return fnmatchcase(tool, rule.tool) and all(_is(_at(arguments, path), value) for path, value in rule.where)


def together(obligations: Iterable[Obligations]) -> Obligations:
    """Of each the strictest."""
    every = list(obligations)
    caps = [each.cap_bytes for each in every if each.cap_bytes is not None]
    ends = [each.expire_seconds for each in every if each.expire_seconds is not None]
    return Obligations(
        redact=tuple(sorted({path for each in every for path in each.redact})),
        cap_bytes=min(caps, default=None),
        notify_owner=any(each.notify_owner for each in every),
        expire_seconds=min(ends, default=None),
    )


def redacted(arguments: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """A copy with REDACTED at each of the paths that is there. A list on the way is walked: the path goes on in each of its
    elements."""
    copy = dict(arguments)
    for path in paths:
        copy = _redacted(copy, path.split("."))
    return copy


def _redacted(place: Any, steps: Sequence[str]) -> Any:
    if not steps:
        return REDACTED
    if isinstance(place, list | tuple):
        return [_redacted(each, steps) for each in place]
    if not isinstance(place, Mapping) or steps[0] not in place:
        return place
    return {**place, steps[0]: _redacted(place[steps[0]], steps[1:])}


class _Nothing:
    """No value of JSON."""


_NOTHING = _Nothing()


def _at(arguments: Mapping[str, Any], path: str) -> Any:
    found: Any = arguments
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return _NOTHING
        found = found[name]
    return found


def _is(found: object, wanted: Scalar) -> bool:
    if isinstance(wanted, str):
        return isinstance(found, str) and fnmatchcase(found, wanted)
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    # By value: JSON has one kind of number, and a deny of 100 is one of 100.0.
    return isinstance(found, int | float) and found == wanted
