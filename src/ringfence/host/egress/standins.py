"""The placeholders of one command: their text for its environment, their digests for its worker. Pure.

Made by HMAC-SHA256 of the command's invocation under a key of the vault, so that nothing of them is stored and a server that is
started again knows those of the commands that still run; 130 bits of it are in each. Must never be told to anybody but the
command.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.shapes import SHAPES

MODEL_SHAPE = "openai"
_MODEL = "~model"  # no id of a credential


@dataclass(frozen=True, slots=True)
class Group:
    """Bindings of one credential that name the same variables: they share one placeholder."""

    credential: str
    shape: str
    names: tuple[str, ...]
    bindings: tuple[str, ...]  # ids
    uses: int | None

    @property
    def what(self) -> str:
        return "\0".join((self.credential, self.shape, *self.names))


@dataclass(frozen=True, slots=True)
class StandIns:
    """`tickets`: as in control.py, without the invocation."""

    environment: Mapping[str, str]
    tickets: Sequence[Mapping[str, Any]]


def grouped(bindings: Iterable[Binding]) -> tuple[Group, ...]:
    """Once for a configuration: each command comes by here."""
    found: dict[tuple[str, str, tuple[str, ...]], list[Binding]] = {}
    for binding in bindings:
        if binding.use is Use.PLACEHOLDER and binding.environment:
            found.setdefault((binding.credential, binding.shape, binding.environment), []).append(binding)
    return tuple(Group(*key, tuple(each.id for each in members), _least(members)) for key, members in found.items())


def stand_ins(key: bytes, invocation: str, groups: Iterable[Group], expires: float) -> StandIns:
    """`expires`: seconds of the wall clock."""
    environment: dict[str, str] = {}
    tickets: list[dict[str, Any]] = []
    for group in groups:
        text = _text(key, invocation, group.what, group.shape)
        for name in group.names:
            environment.setdefault(name, text)
        tickets.append(
            {
                "digest": placeholders.digest(text),
                "credential": group.credential,
                "binding": group.bindings[0],
                "more": group.bindings[1:],
                "expires": expires,
                "uses": group.uses,
            }
        )
    return StandIns(environment, tickets)


def model_key(key: bytes, invocation: str) -> str:
    """The virtual key of the command, for the model gateway alone."""
    return _text(key, invocation, _MODEL, MODEL_SHAPE)


def _least(members: Iterable[Binding]) -> int | None:
    return min((each.uses for each in members if each.uses is not None), default=None)


def _text(key: bytes, invocation: str, what: str, shape: str) -> str:
    return placeholders.make(SHAPES[shape], hmac.digest(key, f"placeholder\0{invocation}\0{what}".encode(), "sha256"))
