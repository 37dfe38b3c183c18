"""What a loop calls the failure of its run."""

from __future__ import annotations

import pytest

from ringfence.host.engine.endings import HOST_ONLY, OURS, code_of
from ringfence.host.kernel.redrive import Action, Doubt, Found, redrive
from ringfence.host.kernel.runs import MAX_ATTEMPTS, Effect

ENDS = [
    Found(cancel_requested=True),
    Found(diverged=True),
    Found(attempts=MAX_ATTEMPTS),
    Found(changed=("guest",), recorded_after_checkpoint=True),
    Found(replayable=False, doubts=(Doubt(1, Effect.PURE),)),
]


@pytest.mark.parametrize("found", ENDS)
def test_what_the_redrive_table_says_is_not_for_a_loop_to_say(found: Found) -> None:
    plan = redrive(found)
    assert plan.action in (Action.CANCEL, Action.FAIL)
    assert code_of(plan.reason) == "loop_failed"


@pytest.mark.parametrize("said", ["", "Ringfence", "9", "a b", "a\n", "x" * 65, *sorted(HOST_ONLY)])
def test_what_is_no_word_of_a_loop(said: str) -> None:
    assert code_of(said) == "loop_failed"


@pytest.mark.parametrize("said", ["loop_guard", "its_own_2", "x" * 64, *sorted(OURS)])
def test_a_word_of_its_own_is_kept(said: str) -> None:
    assert code_of(said) == said
