"""The life of a box as values: the table of verbs, when a box rests, room for another one, drift."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.boxes import Box, BoxKind, Desired, Limits, Observed, Rest
from ringfence.host.kernel.errors import Conflict, Refused
from ringfence.host.kernel.ids import BoxId, TenantId, UserId
from ringfence.host.kernel.life.caps import Caps, Load, Up, pressed, room
from ringfence.host.kernel.life.drawing import as_markdown
from ringfence.host.kernel.life.drift import SAYS, UNKNOWN, drift, made_of
from ringfence.host.kernel.life.rests import DRIFT_IDLE, Facts, Rests, due
from ringfence.host.kernel.life.states import (
    IN_QUARANTINE,
    TABLE,
    State,
    Verb,
    check_quarantine,
    freezes,
    state_of,
    step,
)

TOP = Path(__file__).parents[3]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOX = Box(
    BoxId("b" * 16), TenantId("ten"), UserId("usr"), BoxKind.HOME, "d", Desired.RUNNING, Observed.RUNNING, 1, None, Limits(), "",
    3, NOW, NOW, NOW,
)  # fmt: skip
UP = (State.RUNNING, State.PAUSED)


def _in(state: State) -> Box:
    match state:
        case State.PAUSED:
            return replace(BOX, rest=Rest.PAUSED)
        case State.ARCHIVED:
            return replace(BOX, rest=Rest.ARCHIVED, observed=Observed.STOPPED)
        case _:
            return replace(BOX, observed=Observed(state.value))


@pytest.mark.parametrize("state", list(State))
def test_a_row_is_in_one_state(state: State) -> None:
    assert state_of(_in(state)) is state


def test_a_pause_of_what_does_not_run_is_none() -> None:
    for observed in Observed:
        if observed is not Observed.RUNNING:
            assert state_of(replace(BOX, rest=Rest.PAUSED, observed=observed)) is State(observed.value)


@pytest.mark.parametrize(("state", "verb"), list(itertools.product(State, Verb)))
def test_every_cell(state: State, verb: Verb) -> None:
    """Every verb has an end that it can be asked for again, or a refusal in words."""
    box = _in(state)
    if state not in TABLE[verb]:
        with pytest.raises(Conflict, match=f"{state.value} cannot be asked to {verb.value}"):
            step(box, verb)
        return
    found = step(box, verb, generation=3)
    assert 0 < found.seconds <= 3600
    assert found.to is state or step(_in(found.to), verb).to is found.to or verb in (Verb.ARCHIVE, Verb.REMOVE)
    with pytest.raises(Conflict, match="anew"):
        step(box, verb, generation=2)
    isolated = replace(box, quarantined_at=NOW, quarantine="odd")
    if verb in IN_QUARANTINE:
        assert step(isolated, verb) == found
    else:
        with pytest.raises(Refused, match="odd"):
            step(isolated, verb)


def test_in_quarantine_nobody_but_operators_does_anything() -> None:
    isolated = replace(BOX, quarantined_at=NOW, quarantine="odd")
    check_quarantine(isolated, operator=True)
    check_quarantine(BOX, operator=False)
    with pytest.raises(Refused, match="odd"):
        check_quarantine(isolated, operator=False)


@pytest.mark.parametrize(
    ("weak", "can"),
    [([], True), (["no-nft"], True), (["no-cgroup"], False), (["no-nft", "no-freezer"], False), (None, True)],
)
def test_whether_a_host_can_freeze(weak: list[str] | None, can: bool) -> None:
    assert freezes({} if weak is None else {"weak": weak}) is can
    assert freezes({"weak": tuple(weak or ())}) is can


def test_nothing_in_quarantine_ends_running() -> None:
    assert {to.to for verb in IN_QUARANTINE for state, to in TABLE[verb].items() if state is not State.RUNNING} <= set(
        State
    ) - {
        State.RUNNING,
        State.STARTING,
    }


REST = Rests(pause_after=10, stop_after=100, archive_after=1000, max_age=10_000, time_to_live=100_000)
DUE = {
    "at work": (Facts(State.RUNNING, idle=None, age=99_999), None),
    "just idle": (Facts(State.RUNNING, idle=9.9, age=20), None),
    "idle": (Facts(State.RUNNING, idle=10, age=20), Verb.PAUSE),
    "idle, and cannot be frozen": (Facts(State.RUNNING, idle=10, age=20, can_pause=False), Verb.STOP),
    "paused": (Facts(State.PAUSED, idle=99, age=200), None),
    "paused for long": (Facts(State.PAUSED, idle=100, age=200), Verb.STOP),
    "asleep past both": (Facts(State.RUNNING, idle=5000, age=6000), Verb.STOP),
    "old and idle": (Facts(State.RUNNING, idle=0, age=10_000), Verb.STOP),
    "out of its time, at work": (Facts(State.RUNNING, idle=None, age=100_000), Verb.STOP),
    "with a service": (Facts(State.RUNNING, idle=5000, age=6000, services=True), None),
    "with a service, out of its time": (Facts(State.PAUSED, idle=1, age=100_000, services=True), Verb.STOP),
    "in quarantine": (Facts(State.PAUSED, idle=5000, age=200_000, quarantined=True), None),
    "drifted, in use": (Facts(State.RUNNING, idle=5, age=6, drifted=("guest",)), None),
    "drifted": (Facts(State.PAUSED, idle=DRIFT_IDLE, age=70, drifted=("guest",)), Verb.STOP),
    "stopped": (Facts(State.STOPPED, down=999), None),
    "stopped for long": (Facts(State.STOPPED, down=1000), Verb.ARCHIVE),
    "lost": (Facts(State.LOST, down=9999), None),
}


@pytest.mark.parametrize("name", list(DUE))
def test_what_is_due(name: str) -> None:
    facts, verb = DUE[name]
    found = due(facts, REST)
    assert (None if found is None else found.verb) == verb
    if found is not None:
        assert found.why
        assert found.force == (facts.age >= 100_000)


@given(
    st.builds(
        Facts,
        state=st.sampled_from(State),
        idle=st.none() | st.floats(0, 1e6),
        age=st.floats(0, 1e6),
        down=st.floats(0, 1e6),
        can_pause=st.booleans(),
        services=st.booleans(),
    )
)
def test_with_everything_off_nothing_is_due_and_what_is_due_may_be_done(facts: Facts) -> None:
    assert due(facts, Rests(0, 0, 0, 0, 0)) is None
    found = due(facts, REST)
    if found is not None:
        assert facts.state in TABLE[found.verb]
        assert found.force or facts.state is State.STOPPED or facts.idle is not None


def _up(*idle: float | None, tenant: str = "ten") -> list[Up]:
    return [Up(BoxId(f"{tenant}{n}"), TenantId(tenant), one) for n, one in enumerate(idle)]


def test_room() -> None:
    ten, other = TenantId("ten"), TenantId("other")
    assert room(_up(None, None), ten, Caps()).free
    full = room(_up(None, 5.0, 7.0), ten, Caps(most=3))
    assert (full.free, full.go) == (False, "ten2")  # the longest idle one
    busy = room(_up(None, None), ten, Caps(most=2))
    assert (busy.free, busy.go) == (False, None)
    assert "2 boxes run" in busy.why
    assert not room(_up(None), ten, Caps(most=2), starting=[other]).free
    # The longest idle of the tenant goes for the tenant's own cap, though another's has been idle for longer.
    boxes = [*_up(3.0, None), *_up(99.0, tenant="other")]
    assert room(boxes, ten, Caps(most_tenant=2)).go == "ten0"
    assert room(boxes, other, Caps(most_tenant=2)).free


def test_pressure() -> None:
    assert pressed(Load(), Caps()) == ""
    assert "memory" in pressed(Load(memory_left=4.9), Caps(memory_low_percent=5))
    assert "waiting" in pressed(Load(stalled=41), Caps(stalled_percent=40))
    assert pressed(Load(0.0, 100.0), Caps(memory_low_percent=0, stalled_percent=0)) == ""


def test_drift() -> None:
    facts = {"guest_digest": "g1", "runtime": "r1", "image": "host:1", "mode": "root"}
    box = replace(BOX, made_of=made_of(facts, BOX.limits))
    assert drift(box, {**facts, "boot_id": "another"}) == []  # a restart alone is none
    assert drift(replace(box, made_of=None), facts) == []
    assert drift(box, {**facts, "guest_digest": "g2"}) == ["guest"]
    assert drift(box, {**facts, "image": "host:2", "runtime": "r2"}) == ["runtime", "image"]
    assert drift(replace(box, limits=replace(box.limits, memory=1 << 31)), facts) == []  # holds at once
    assert drift(replace(box, limits=replace(box.limits, shm=1 << 20)), facts) == ["limits"]
    assert drift(box, {"guest_digest": "g1"}) == []  # what is not said is not compared
    assert drift(replace(box, made_of=UNKNOWN), facts) == ["start"]
    assert set(SAYS) == {"guest", "runtime", "image", "limits", "start"}


def test_the_drawing_is_current() -> None:
    """`make docs` writes it."""
    assert (TOP / "docs" / "life.md").read_text() == as_markdown()
