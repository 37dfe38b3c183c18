"""The redrive table, row by row, and over all facts at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.redrive import Action, Do, Doubt, Found, Plan, redrive
from ringfence.host.kernel.runs import MAX_ATTEMPTS, Effect, Evidence

ONCE, LOCAL, PURE, IDEMPOTENT = Effect.ONCE, Effect.LOCAL, Effect.PURE, Effect.IDEMPOTENT
SENT = Doubt(1, ONCE, sent=True)
DONE = Doubt(1, ONCE, sent=True, evidence=Evidence.DONE)
NOT_DONE = Doubt(1, ONCE, sent=True, evidence=Evidence.NOT_DONE)
UNKNOWN = Doubt(1, ONCE, sent=True, evidence=Evidence.UNKNOWN)
NEVER_SENT = Doubt(1, ONCE)

ROWS: dict[str, tuple[Found, Plan]] = {
    "a gate is open": (Found(gate_open=True), Plan(Action.STAY)),
    "a gate is open, whatever else": (
        Found(gate_open=True, held_back="quarantined", attempts=9, changed=("guest",), doubts=(UNKNOWN,)),
        Plan(Action.STAY),
    ),
    "cancel, nothing in doubt": (Found(cancel_requested=True), Plan(Action.CANCEL, "cancelled")),
    "cancel before an open gate": (Found(cancel_requested=True, gate_open=True), Plan(Action.CANCEL, "cancelled")),
    "cancel, a command under way": (
        Found(cancel_requested=True, doubts=(Doubt(2, LOCAL),)),
        Plan(Action.CANCEL, "cancelled", ((2, Do.INTERRUPT),)),
    ),
    "cancel, a once unclear": (Found(cancel_requested=True, doubts=(SENT,)), Plan(Action.SEEK, "", ((1, Do.SEEK),))),
    "cancel, a once done": (
        Found(cancel_requested=True, doubts=(DONE,)),
        Plan(Action.CANCEL, "cancelled", ((1, Do.DONE),)),
    ),
    "cancel, a once not done": (
        Found(cancel_requested=True, doubts=(NOT_DONE,)),
        Plan(Action.CANCEL, "cancelled", ((1, Do.NOT_DONE),)),
    ),
    "cancel, a once unknown": (
        Found(cancel_requested=True, doubts=(UNKNOWN,)),
        Plan(Action.CANCEL, "cancelled", ((1, Do.UNKNOWN),)),
    ),
    "cancel, a once never sent": (
        Found(cancel_requested=True, doubts=(NEVER_SENT,)),
        Plan(Action.CANCEL, "cancelled", ((1, Do.NOT_DONE),)),
    ),
    "the box is quarantined": (Found(held_back="quarantined"), Plan(Action.HOLD, "quarantined")),
    "the user is disabled, with attempts spent": (
        Found(held_back="user_disabled", attempts=MAX_ATTEMPTS, doubts=(SENT,)),
        Plan(Action.HOLD, "user_disabled"),
    ),
    "3 attempts": (Found(attempts=MAX_ATTEMPTS), Plan(Action.FAIL, "retries_exhausted")),
    "3 attempts, a once unclear": (
        Found(attempts=MAX_ATTEMPTS, doubts=(SENT,)),
        Plan(Action.SEEK, "", ((1, Do.SEEK),)),
    ),
    "3 attempts, a once unknown": (
        Found(attempts=MAX_ATTEMPTS, doubts=(UNKNOWN,)),
        Plan(Action.FAIL, "retries_exhausted", ((1, Do.UNKNOWN),)),
    ),
    "nothing in doubt": (Found(), Plan(Action.REQUEUE)),
    "pure": (Found(doubts=(Doubt(1, PURE),)), Plan(Action.REQUEUE, "", ((1, Do.AGAIN),))),
    "idempotent, sent": (
        Found(doubts=(Doubt(1, IDEMPOTENT, sent=True),)),
        Plan(Action.REQUEUE, "", ((1, Do.AGAIN),)),
    ),
    "local": (Found(doubts=(Doubt(1, LOCAL),)), Plan(Action.REQUEUE, "", ((1, Do.ATTACH),))),
    "once, intent and never sent": (Found(doubts=(NEVER_SENT,)), Plan(Action.REQUEUE, "", ((1, Do.EXECUTE),))),
    "once, unclear": (Found(doubts=(SENT,)), Plan(Action.SEEK, "", ((1, Do.SEEK),))),
    "once, done": (Found(doubts=(DONE,)), Plan(Action.REQUEUE, "", ((1, Do.DONE),))),
    "once, not done": (Found(doubts=(NOT_DONE,)), Plan(Action.REQUEUE, "", ((1, Do.EXECUTE),))),
    "once, unknown": (Found(doubts=(UNKNOWN,)), Plan(Action.ASK, "in_doubt", ((1, Do.QUESTION),))),
    "once, a person has said": (
        Found(doubts=(Doubt(1, ONCE, sent=True, answered=True),)),
        Plan(Action.REQUEUE, "", ((1, Do.ANSWERED),)),
    ),
    "cancel, a person has said": (
        Found(cancel_requested=True, doubts=(Doubt(1, ONCE, sent=True, answered=True),)),
        Plan(Action.CANCEL, "cancelled", ((1, Do.ANSWERED),)),
    ),
    "3 attempts, a person has said": (
        Found(attempts=MAX_ATTEMPTS, doubts=(Doubt(1, ONCE, sent=True, answered=True),)),
        Plan(Action.FAIL, "retries_exhausted", ((1, Do.ANSWERED),)),
    ),
    "changed, nothing recorded": (Found(changed=("guest",)), Plan(Action.REQUEUE, "", (), ("guest",))),
    "changed, recorded": (
        Found(changed=("tree",), recorded_after_checkpoint=True),
        Plan(Action.FAIL, "incompatible", (), ("tree",)),
    ),
    "recorded, not changed": (Found(recorded_after_checkpoint=True), Plan(Action.REQUEUE)),
    "cannot be replayed": (Found(replayable=False), Plan(Action.FAIL, "not_replayable")),
    "cannot be replayed, has a session": (Found(replayable=False, session=True), Plan(Action.SESSION)),
    "diverged": (Found(diverged=True, attempts=1), Plan(Action.FAIL, "diverged")),
    "diverged, a once unclear": (Found(diverged=True, doubts=(SENT,)), Plan(Action.SEEK, "", ((1, Do.SEEK),))),
}


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    found, plan = ROWS[row]
    assert redrive(found) == plan


doubts = st.builds(
    Doubt,
    n=st.integers(1, 5),
    effect=st.sampled_from(Effect),
    sent=st.booleans(),
    evidence=st.none() | st.sampled_from(Evidence),
    answered=st.booleans(),
)
facts = st.builds(
    Found,
    cancel_requested=st.booleans(),
    gate_open=st.booleans(),
    diverged=st.booleans(),
    held_back=st.sampled_from(["", "quarantined", "user_disabled"]),
    attempts=st.integers(0, MAX_ATTEMPTS + 1),
    doubts=st.lists(doubts, max_size=4, unique_by=lambda doubt: doubt.n).map(tuple),
    changed=st.sampled_from([(), ("guest",), ("guest", "tree")]),
    recorded_after_checkpoint=st.booleans(),
    replayable=st.booleans(),
    session=st.booleans(),
)


def steps_to(plan: Plan, do: Do) -> list[int]:
    return [n for n, what in plan.steps if what is do]


@given(facts)
def test_whatever_is_found(found: Found) -> None:
    """Total; a once goes out again on evidence only; an end says of each step what is known; nothing runs on when asked to
    end; nothing is lost sight of."""
    plan = redrive(found)
    by_number = {doubt.n: doubt for doubt in found.doubts}
    for n in (*steps_to(plan, Do.EXECUTE), *steps_to(plan, Do.AGAIN)):
        doubt = by_number[n]
        assert doubt.effect is not ONCE or not doubt.sent or doubt.evidence is Evidence.NOT_DONE
    if plan.action in (Action.REQUEUE, Action.SESSION, Action.CANCEL, Action.FAIL, Action.ASK):
        assert not any(doubt.unclear for doubt in found.doubts), "decided without having looked"
        assert {n for n, _ in plan.steps} == set(by_number), "a step was forgotten"
    if found.cancel_requested:
        assert plan.action in (Action.CANCEL, Action.SEEK)
    if plan.action is Action.ASK:
        assert any(by_number[n].evidence is Evidence.UNKNOWN for n in steps_to(plan, Do.QUESTION))
    if plan.action is Action.SEEK:
        assert steps_to(plan, Do.SEEK)


@given(facts, st.lists(st.sampled_from(Evidence), min_size=4, max_size=4))
def test_looking_is_enough(found: Found, evidence: list[Evidence]) -> None:
    """With evidence for what was unclear, there is never a second look."""
    looked = tuple(
        replace(doubt, evidence=found_out) if doubt.unclear else doubt
        for doubt, found_out in zip(found.doubts, evidence, strict=False)
    )
    assert redrive(replace(found, doubts=looked)).action is not Action.SEEK
