"""The nouns of the suite: what is tried (Row), how it is shown that the attempt works where the wall is not (Control),
and what came of it (Tries, Result). Pure.

    held             everything that was tried was stopped, and the control shows that the attempt can work
    open             something was not stopped, or the control that should have worked did not, or nobody can tell
    not_applicable   this host, or this release, has nothing of the kind; `why` says so
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ringfence.prove.attacks.trying import DONE

if TYPE_CHECKING:
    from ringfence.prove.stage import Stage

Status = Literal["held", "open", "not_applicable"]
ControlKind = Literal["ran", "none"]  # and `by_build`, for one that would harm the host: none does yet
RUNNERS = {"s": "shell", "k": "skill jail", "e": "hostile loop", "h": "host"}


class NotHere(Exception):
    """This row cannot be tried here: why."""


class ProgramFailed(Exception):
    """An attack program did not come to its end, so that nobody can tell: what it said."""


@dataclass(frozen=True, slots=True)
class Tries:
    """What a program did: attempt -> outcome. `done...` is one that nothing stopped; else a word of what stopped it."""

    outcomes: Mapping[str, str]

    @property
    def done(self) -> list[str]:
        return [name for name, outcome in self.outcomes.items() if outcome.split(" ")[0] == DONE]

    @property
    def text(self) -> str:
        """At most some 400 characters: equal outcomes told once."""
        by_outcome: dict[str, list[str]] = {}
        for name, outcome in self.outcomes.items():
            by_outcome.setdefault(outcome, []).append(name)
        parts = [f"{', '.join(names)}: {outcome}" for outcome, names in by_outcome.items()]
        text = "; ".join(parts)
        return text if len(text) <= 400 else text[:397] + "..."


@dataclass(frozen=True, slots=True)
class Control:
    """How the attempt is shown to work where the wall is not."""

    kind: ControlKind
    how: Callable[[Stage], Tries] | None = None  # of `ran`
    shown_by: str = ""  # of `none`: why there is none
    impossible: str = ""  # why the host itself may make the attempt impossible; then a control that fails is no hole


def ran(how: Callable[[Stage], Tries], impossible: str = "") -> Control:
    return Control("ran", how, impossible=impossible)


def no_control(why: str) -> Control:
    return Control("none", shown_by=why)


@dataclass(frozen=True, slots=True)
class Row:
    """`attack(stage, runner)` makes the attempt from one place and says what came of it; each runner in turn."""

    id: str
    attempt: str
    expected: str
    wall: str
    attack: Callable[[Stage, str], Tries]
    control: Control
    runners: str = "s"  # letters of RUNNERS
    alone: bool = False  # disturbs others, or is disturbed: runs when nothing else does
    group: str = ""  # a letter, `leaks`, `drills`; empty: the id's first letter
    play: str = ""  # of Stage.once, where one of it serves several rows: only the first of them has to wait for it

    @property
    def in_group(self) -> str:
        return self.group or self.id[0]


@dataclass(frozen=True, slots=True)
class Result:
    row: Row
    status: Status
    observed: str
    control: ControlKind
    why: str = ""
    runners: Mapping[str, str] = field(default_factory=dict)  # runner's name -> held, open, or why not
    seconds: float = 0.0  # attack and control

    def as_json(self) -> dict[str, Any]:
        held = {"held": True, "open": False, "not_applicable": None}[self.status]
        return {
            "id": self.row.id,
            "attempt": self.row.attempt,
            "expected": self.row.expected,
            "observed": self.observed,
            "status": self.status,
            "held": held,
            "wall": self.row.wall,
            "control": self.control,
            "why": self.why,
            "runners": dict(self.runners),
            "seconds": round(self.seconds, 2),
        }


def absent(row_id: str, attempt: str, expected: str, wall: str, why: str) -> Row:
    """A row of the list that this release has nothing to try for."""

    def attack(_stage: Stage, _runner: str) -> Tries:
        raise NotHere(why)

    return Row(row_id, attempt, expected, wall, attack, no_control(why))


def program(
    row_id: str,
    attempt: str,
    expected: str,
    wall: str,
    where: tuple[str, str],
    control: Control,
    *,
    runners: str = "ske",
    user: str = "bob",
    arguments: Callable[[Stage], Sequence[str]] | None = None,
    alone: bool = False,
    timeout: float = 30.0,
) -> Row:
    """A row whose attack is the program `where` = (module of attacks/, name), tried from a shell, from a skill's jail (of
    whichever `user`: there is one) and from a hostile loop."""
    module, name = where

    def attack(stage: Stage, runner: str) -> Tries:
        words = tuple(arguments(stage)) if arguments is not None else ()
        return stage.attack(runner, user, module, name, *words, timeout=timeout)

    return Row(row_id, attempt, expected, wall, attack, control, runners, alone)
