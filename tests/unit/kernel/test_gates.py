"""An approval lets one call through: the same call, in time, signed here. Each way in which it could be another one."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ringfence.host.engine.questions import approval
from ringfence.host.kernel.dispatch import owed
from ringfence.host.kernel.gates import (
    APPROVAL_SECONDS,
    Call,
    Gate,
    GateAnswer,
    GateId,
    GateState,
    answer_mac,
    mac,
    unusable,
)
from ringfence.host.kernel.ids import RunId, TenantId, ThreadId, TurnId, UserId
from ringfence.host.kernel.policy import Policy, Rule, Verdict, decide
from ringfence.host.kernel.runs import Effect

KEY = b"k" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ARGUMENTS = {"name": "pay", "body": {"amount": 5}}
ASK = Policy((Rule("http.*", Verdict.ASK),))
BEFORE = Call(RunId("run_1"), 1, "http.webhook", "", UserId("usr_1"), "", "s" * 64)
DUE = owed(decide(ASK, BEFORE.tool, ARGUMENTS, host=True), BEFORE, ARGUMENTS, Effect.ONCE, NOW, 1 << 20)
# What each field of the call is not.
OTHERS: dict[str, Any] = {
    "run": RunId("run_2"),
    "n": 2,
    "tool": "http.other",
    "digest": "0" * 64,
    "user": UserId("usr_2"),
    "policy": "1" * 64,
    "sealed": "2" * 64,
}


def approved(answer: GateAnswer = GateAnswer.ALLOW) -> Gate:
    """As the store has it, asked and answered now."""
    question = approval(DUE, None, None, NOW)
    shared = {field.name: getattr(question, field.name) for field in fields(question)}
    gate = Gate(
        **shared,
        id=GateId("gat_1"),
        tenant=TenantId("ten_1"),
        user=DUE.call.user,
        thread=ThreadId("thr_1"),
        turn=TurnId("trn_1"),
        run=DUE.call.run,
        mac="",
        created_at=NOW,
        state=GateState.ALLOWED,
        reason="",
        answer=answer,
        answered_by=DUE.call.user,
        answered_via="token:1",
        answered_at=NOW,
        answer_mac="",
        used_at=None,
    )
    gate = replace(gate, mac=mac(KEY, gate))
    return replace(gate, answer_mac=answer_mac(KEY, gate))


def test_the_call_that_was_approved_goes_through() -> None:
    """The control."""
    assert unusable(KEY, approved(), DUE.call, NOW) == ""


@pytest.mark.parametrize("name", [field.name for field in fields(Call)])
def test_another_call_does_not(name: str) -> None:
    assert unusable(KEY, approved(), replace(DUE.call, **{name: OTHERS[name]}), NOW).endswith(
        "is not what was approved"
    )


@pytest.mark.parametrize(
    ("seconds", "why"), [(-1, ""), (0, "the approval has expired"), (1, "the approval has expired")]
)
def test_an_approval_is_used_within_a_week_or_not_at_all(seconds: int, why: str) -> None:
    """Whatever the policy says of its time: nobody remembers next year what a yes was for."""
    gate = approved()
    assert gate.expires_at == NOW + timedelta(days=7) == NOW + timedelta(seconds=APPROVAL_SECONDS)
    assert unusable(KEY, gate, DUE.call, gate.expires_at + timedelta(seconds=seconds)) == why


@pytest.mark.parametrize("key", [b"w" * 32, b""], ids=["another", "none"])
def test_what_another_key_has_signed_does_not(key: bytes) -> None:
    assert unusable(key, approved(), DUE.call, NOW) == "the gate was not written by this installation"


@pytest.mark.parametrize("answer", [GateAnswer.DENY, GateAnswer.DONE, GateAnswer.AGAIN])
def test_an_answer_that_is_no_yes_does_not(answer: GateAnswer) -> None:
    assert unusable(KEY, approved(answer), DUE.call, NOW) == "it was not approved"


@pytest.mark.parametrize("state", [state for state in GateState if state is not GateState.ALLOWED])
def test_a_gate_that_is_not_allowed_does_not(state: GateState) -> None:
    assert unusable(KEY, replace(approved(), state=state), DUE.call, NOW) == f"the gate is {state.value}"
