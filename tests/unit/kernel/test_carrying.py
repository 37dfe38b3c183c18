"""What follows for an effect on its way, row by row; and over all that can be known of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.audit import Outcome
from ringfence.host.kernel.capabilities import Need, Sent
from ringfence.host.kernel.carrying import Going, Next, next_of, of_all_tries
from ringfence.host.kernel.effects import IN_DOUBT, TRANSITIONS, EffectRow, EffectState, told
from ringfence.host.kernel.gates import GateKind
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.runs import Evidence

AT = datetime(2026, 1, 1, tzinfo=UTC)
ROW = EffectRow(
    RunId("run_1"), 1, UserId("usr_1"), "http.webhook", "s/run_1/1/d", {}, "d", "s", "p", None, EffectState.INTENDED, {}, 1,
    0, None, AT, None, None,
)  # fmt: skip
NEED = Need(GateKind.AUTH, "the key", "renew it")
DONE, NOT_DONE, UNKNOWN = (Sent(evidence, {}) for evidence in (Evidence.DONE, Evidence.NOT_DONE, Evidence.UNKNOWN))
LATER = replace(NOT_DONE, retry=True)


def at(state: EffectState, sent: Sent | None = None, tries: int = 1, **more: bool) -> Going:
    return Going(replace(ROW, state=state), tries, sent, **more)


INTENDED, OUT, LOST = EffectState.INTENDED, EffectState.SENT, EffectState.UNKNOWN
ROWS: dict[str, tuple[Going, bool, Next]] = {
    "an intent": (at(INTENDED), True, Next.SEND),
    "may be out": (at(OUT), True, Next.SEEK),
    "may be out, not once": (at(OUT), False, Next.SEEK),
    "not known": (at(LOST), True, Next.SEEK),
    "it has an end": (at(EffectState.DONE), True, Next.OVER),
    "another had it ended": (at(EffectState.NOT_DONE, UNKNOWN), True, Next.OVER),
    "done": (at(OUT, DONE), True, Next.SETTLE),
    "not done for good": (at(OUT, NOT_DONE), True, Next.SETTLE),
    "not done, and may go well": (at(OUT, LATER), True, Next.SEND),
    "the same for the third time": (at(OUT, LATER, tries=3), True, Next.SETTLE),
    "no answer": (at(OUT, UNKNOWN), True, Next.SEEK),
    "no answer, not once": (at(OUT, UNKNOWN), False, Next.SEND),
    "no answer, not once, for the third time": (at(OUT, UNKNOWN, tries=3), False, Next.SETTLE),
    "no evidence": (at(LOST, UNKNOWN, looked=True), True, Next.ASK),
    "no evidence, not once": (at(LOST, UNKNOWN, tries=0, looked=True), False, Next.SEND),
    "evidence that it did not arrive": (at(LOST, LATER, tries=0, looked=True), True, Next.SEND),
    "turned away": (at(OUT, replace(NOT_DONE, need=NEED)), True, Next.MEND),
    "not let out": (at(INTENDED, LATER, last=True), True, Next.SETTLE),
    "not let out, and an older try may be": (at(LOST, UNKNOWN, last=True), False, Next.SETTLE),
}


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    going, once, wanted = ROWS[row]
    assert next_of(going, once=once, most=3) is wanted


said = st.builds(Sent, st.sampled_from(Evidence), st.just({}), st.booleans(), st.none() | st.just(NEED))
anything = st.builds(
    at, st.sampled_from(EffectState), st.none() | said, st.integers(0, 4), looked=st.booleans(), last=st.booleans()
)


@given(anything)
def test_a_once_goes_out_on_evidence_alone(going: Going) -> None:
    following = next_of(going, once=True, most=3)
    if following is Next.SEND:
        never_out = going.row.state is INTENDED and going.sent is None
        assert never_out or (going.sent is not None and going.sent.evidence is Evidence.NOT_DONE)
    if following in (Next.SETTLE, Next.MEND):
        assert going.sent is not None


@pytest.mark.parametrize("unclear", [True, False])
def test_a_refusal_is_of_its_own_try(unclear: bool) -> None:
    assert of_all_tries(NOT_DONE, unclear=unclear) == (UNKNOWN if unclear else NOT_DONE)
    assert of_all_tries(DONE, unclear=unclear) == DONE


def test_the_audit_is_told_once_of_each_thing_that_becomes_known() -> None:
    news = {(before, after): told(before, after) for before, all_ in TRANSITIONS.items() for after in all_}
    assert {pair for pair in news if pair[0] not in IN_DOUBT and news[pair] is not None} == set()
    assert {after: news[OUT, after] for after in TRANSITIONS[OUT]} == {
        INTENDED: Outcome.NOT_DONE,
        OUT: Outcome.UNKNOWN,
        LOST: Outcome.UNKNOWN,
        EffectState.DONE: Outcome.DONE,
        EffectState.NOT_DONE: Outcome.NOT_DONE,
    }
    assert (news[LOST, LOST], news[LOST, OUT]) == (None, None), "that nobody knows was said before"
    assert news[LOST, EffectState.DONE] is Outcome.DONE
