"""The states of a box and what may follow what: one table, from which the drawing in docs/life.md is made.

`state_of` says what a row is; `step` what a verb does to a box in a state. A verb that takes time is pending until a moment by which
it is over, done or not; what is found pending after that is settled by what the driver sees. A verb carries the generation that
it was decided for: a box that was started anew since is not what was meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ringfence.host.kernel.boxes import Box, Observed, Rest
from ringfence.host.kernel.errors import Conflict, Refused


class State(StrEnum):
    """What a box is to who looks."""

    ABSENT = "absent"  # nothing provisioned yet
    STOPPED = "stopped"  # tree and ids, no process
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"  # every process stands still; memory is kept
    ARCHIVED = "archived"  # its tree is packed; the next start unpacks it
    LOST = "lost"  # was running, is not; the next start begins anew


class Verb(StrEnum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    ARCHIVE = "archive"
    RESET = "reset"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    UPGRADE = "upgrade"
    RECOVER = "recover"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Step:
    """`to`: the state when it is done. `seconds`: by then it is over. `idle`: refused or drained while the box is at work."""

    to: State
    seconds: float
    idle: bool = False


_DOWN = frozenset({State.STOPPED, State.LOST, State.ABSENT})
_UP = frozenset({State.RUNNING, State.PAUSED})
_START, _SHORT = 60.0, 30.0  # seconds: of a start; of a freeze or a stop, which take some ms
_TREE = 3600.0  # of what reads or writes a whole tree


def _all(states: frozenset[State], step: Step) -> Mapping[State, Step]:
    return dict.fromkeys(states, step)


# What is not named here is refused in words. A verb on a box that is so already changes nothing: its `to` is the state itself.
TABLE: Mapping[Verb, Mapping[State, Step]] = {
    Verb.START: {
        **_all(_DOWN, Step(State.RUNNING, _START)),
        State.RUNNING: Step(State.RUNNING, _START),
        State.PAUSED: Step(State.RUNNING, _SHORT),
        State.ARCHIVED: Step(State.RUNNING, _TREE),
    },
    Verb.PAUSE: {State.RUNNING: Step(State.PAUSED, _SHORT, idle=True), State.PAUSED: Step(State.PAUSED, _SHORT)},
    Verb.RESUME: {State.PAUSED: Step(State.RUNNING, _SHORT), State.RUNNING: Step(State.RUNNING, _SHORT)},
    Verb.STOP: {
        **_all(_UP | {State.STARTING, State.LOST}, Step(State.STOPPED, _SHORT)),
        **{same: Step(same, _SHORT) for same in (State.ABSENT, State.STOPPED, State.ARCHIVED)},
    },
    Verb.ARCHIVE: {
        **_all(_UP | {State.STOPPED, State.LOST}, Step(State.ARCHIVED, _TREE, idle=True)),
        State.ARCHIVED: Step(State.ARCHIVED, _TREE),
    },
    Verb.RESET: _all(_UP | {State.STOPPED, State.LOST, State.ARCHIVED}, Step(State.STOPPED, _TREE, idle=True)),
    Verb.SNAPSHOT: {
        State.RUNNING: Step(State.RUNNING, _TREE),  # it stands still meanwhile
        State.PAUSED: Step(State.PAUSED, _TREE),
        State.STOPPED: Step(State.STOPPED, _TREE),
        State.LOST: Step(State.LOST, _TREE),
        State.ARCHIVED: Step(State.ARCHIVED, _TREE),
    },
    Verb.RESTORE: _all(_UP | _DOWN | {State.ARCHIVED}, Step(State.STOPPED, _TREE, idle=True)),
    Verb.UPGRADE: {
        **_all(_UP, Step(State.RUNNING, _START, idle=True)),
        **{same: Step(same, _SHORT) for same in (State.ABSENT, State.STOPPED, State.LOST, State.ARCHIVED)},
    },
    Verb.RECOVER: _all(_UP | {State.STOPPED, State.LOST}, Step(State.STOPPED, _TREE, idle=True)),
    Verb.REMOVE: _all(frozenset(State), Step(State.ABSENT, _TREE)),
}
# What a box in quarantine may still be asked for: by operators alone, and nothing that runs something in it or takes evidence away.
IN_QUARANTINE = frozenset({Verb.STOP, Verb.PAUSE, Verb.SNAPSHOT, Verb.REMOVE})

CANNOT_FREEZE = frozenset({"no-cgroup", "no-freezer"})  # of spawner/weaknesses.py


def state_of(box: Box) -> State:
    """By its row."""
    if box.rest is Rest.ARCHIVED:
        return State.ARCHIVED
    if box.rest is Rest.PAUSED and box.observed is Observed.RUNNING:
        return State.PAUSED
    return State(box.observed.value)


def freezes(facts: Mapping[str, Any]) -> bool:
    """Whether the host can make a box stand still, by what its driver says of itself."""
    weak = facts.get("weak", ())
    return not (isinstance(weak, list | tuple) and CANNOT_FREEZE & set(weak))


def check_quarantine(box: Box, *, operator: bool) -> None:
    """Before anything but a look is done for somebody. Refused: it is in quarantine, and whoever asks is no operator."""
    if box.quarantined_at is not None and not operator:
        raise _isolated(box)


def step(box: Box, verb: Verb, *, generation: int | None = None) -> Step:
    """What the verb does to it, for whom `check_quarantine` let pass. Refused: it is in quarantine. Conflict: not in that state,
    or `generation`, for which it was decided, is over."""
    state = state_of(box)
    if box.quarantined_at is not None and verb not in IN_QUARANTINE:
        raise _isolated(box)
    if generation is not None and generation != box.generation:
        raise Conflict("the box was started anew meanwhile", remedy="look again: ringfence box show U")
    found = TABLE[verb].get(state)
    if found is None:
        raise Conflict(f"a box that is {state.value} cannot be asked to {verb.value}", remedy="ringfence box show U")
    return found


def _isolated(box: Box) -> Refused:
    why = box.quarantine or "no reason was given"
    return Refused(f"the box is in quarantine: {why}", remedy="an operator: ringfence box release U")
