"""When a box rests: idle -> paused -> stopped -> archived, its greatest age, and how long it may live at all. Pure.

Idle is a box without command, terminal, run, held connection or declared service, through which no byte moves; looking at it does
not keep it awake, nor do processes that nobody asked for. Each setting is for itself; 0 switches it off.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.host.kernel.life.drift import SAYS
from ringfence.host.kernel.life.states import State, Verb

DRIFT_IDLE = 60.0  # seconds that a box which has drifted may be idle: its next use is not to wait for a start so soon


@dataclass(frozen=True, slots=True)
class Rests:
    """Whole seconds."""

    pause_after: int = 900  # idle; 0: never
    stop_after: int = 14_400  # idle, paused or not
    archive_after: int = 0  # stopped
    max_age: int = 0  # since its start: stopped at its next idle moment
    time_to_live: int = 0  # since its start: stopped, whatever it does


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one box, in seconds. `idle`: None while it is at work. `age`: since its start; `down`: since it stopped."""

    state: State
    idle: float | None = None
    age: float = 0.0
    down: float = 0.0
    can_pause: bool = True  # the host can freeze
    services: bool = False  # a declared one runs: it is not idle by itself
    drifted: tuple[str, ...] = ()  # kernel.life.drift: it would be started with something else now
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """`force`: also while it is at work."""

    verb: Verb
    why: str
    force: bool = False


def due(facts: Facts, rests: Rests) -> Due | None:
    """What is to be done with it now; None: nothing. The strongest that is due, so that a box which slept past two of them
    is stopped once and not paused first. One in quarantine is left as it is."""
    if facts.quarantined:
        return None
    if facts.state in (State.RUNNING, State.PAUSED):
        return _due_up(facts, rests)
    if facts.state is State.STOPPED and _over(facts.down, rests.archive_after):
        return Due(Verb.ARCHIVE, f"it was stopped for {rests.archive_after} s")
    return None


def _due_up(facts: Facts, rests: Rests) -> Due | None:
    if _over(facts.age, rests.time_to_live):
        return Due(Verb.STOP, f"it ran for {rests.time_to_live} s, the most that a box may", force=True)
    idle = None if facts.services else facts.idle
    if idle is None:
        return None
    if facts.drifted and idle >= DRIFT_IDLE:
        return Due(Verb.STOP, f"it is idle, and {'; '.join(SAYS[name] for name in facts.drifted)}")
    if _over(facts.age, rests.max_age):
        return Due(Verb.STOP, f"it ran for {rests.max_age} s and is idle")
    if _over(idle, rests.stop_after):
        return Due(Verb.STOP, f"it was idle for {rests.stop_after} s")
    if facts.state is State.RUNNING and _over(idle, rests.pause_after):
        if facts.can_pause:
            return Due(Verb.PAUSE, f"it was idle for {rests.pause_after} s")
        return Due(Verb.STOP, f"it was idle for {rests.pause_after} s, and this host cannot freeze it")
    return None


def _over(seconds: float, limit: int) -> bool:
    return limit > 0 and seconds >= limit
