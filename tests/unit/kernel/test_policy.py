"""The policy, its order and obligations; what is let out, and that nothing else is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.capabilities import Capability, check
from ringfence.host.kernel.declared import rules, url, webhooks
from ringfence.host.kernel.dispatch import Dispatch, discharge, owed
from ringfence.host.kernel.errors import Failed, Invalid, Refused, TooLarge
from ringfence.host.kernel.gates import Call
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.policy import REDACTED, Obligations, Policy, Rule, Verdict, decide, redacted
from ringfence.host.kernel.runs import Effect

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = Call(RunId("run_1"), 1, "http.webhook", "", UserId("usr_1"), "", "")


@pytest.mark.parametrize(
    ("answers", "host", "wanted"),
    [
        ([], True, DENY),
        ([], False, ALLOW),
        ([ASK], True, ASK),
        ([ASK, ALLOW], True, ALLOW),
        ([ALLOW, ASK], True, ALLOW),
        ([ALLOW, DENY, ASK], True, DENY),
        ([ASK, DENY], False, DENY),
        ([ASK], False, ASK),
    ],
)
def test_the_order(answers: list[Verdict], host: bool, wanted: Verdict) -> None:
    policy = Policy(tuple(Rule("http.*", answer) for answer in answers))
    decision = decide(policy, "http.webhook", {}, host=host)
    assert (decision.answer, decision.wall, decision.policy) == (wanted, host, policy.digest)


@pytest.mark.parametrize(
    ("where", "arguments", "matches"),
    [
        ((), {}, True),
        ((("name", "pay*"),), {"name": "payroll"}, True),
        ((("name", "pay*"),), {"name": "Payroll"}, False),
        ((("name", "pay*"),), {}, False),
        ((("name", "pay*"),), {"name": ["payroll"]}, False),
        ((("body.n", 3),), {"body": {"n": 3}}, True),
        ((("body.n", 3),), {"body": {"n": 3.0}}, True),
        ((("body.n", 3.0),), {"body": {"n": 3}}, True),
        ((("body.n", 3),), {"body": {"n": 3.5}}, False),
        ((("body.n", 3),), {"body": {"n": "3"}}, False),
        ((("body.n", 1),), {"body": {"n": True}}, False),
        ((("body.n", True),), {"body": {"n": 1}}, False),
        ((("body.n", 0.0),), {"body": {"n": False}}, False),
        ((("body.n", 10**400),), {"body": {"n": 1e308}}, False),
        ((("body.n.m", 1),), {"body": {"n": 1}}, False),
        ((("a", "*"), ("b", True)), {"a": "", "b": True}, True),
        ((("a", "*"), ("b", True)), {"a": "", "b": False}, False),
    ],
)
def test_what_a_rule_matches(where: Any, arguments: dict[str, Any], matches: bool) -> None:
    policy = Policy((Rule("http.*", ALLOW, where),))
    assert (decide(policy, "http.webhook", arguments, host=True).answer is ALLOW) is matches
    assert decide(policy, "other", arguments, host=True).answer is DENY


@pytest.mark.parametrize("amount", [100, 100.0, 1e2])
def test_a_deny_by_number_is_not_evaded_by_its_spelling(amount: float) -> None:
    policy = Policy((Rule("http.*", ALLOW), Rule("http.*", DENY, (("body.amount", 100),))))
    assert decide(policy, "http.webhook", {"body": {"amount": amount}}, host=True).answer is DENY
    assert decide(policy, "http.webhook", {"body": {"amount": 101}}, host=True).answer is ALLOW


def test_obligations_of_all_that_allow_hold_together() -> None:
    one = Obligations(redact=("a",), cap_bytes=10, expire_seconds=5)
    two = Obligations(redact=("b",), cap_bytes=3, notify_owner=True)
    asks = Obligations(cap_bytes=1)
    policy = Policy((Rule("*", ALLOW, (), one), Rule("x", ALLOW, (), two), Rule("x", ASK, (), asks)))
    assert decide(policy, "x", {}, host=True).obligations == Obligations(("a", "b"), 3, True, 5)


def due(obligations: Obligations = Obligations(), answer: Verdict = ALLOW, limit: int = 1000) -> Any:  # noqa: B008
    decision = decide(Policy((Rule("http.*", answer, (), obligations),)), "http.webhook", {}, host=True)
    return owed(decision, CALL, {"card": "1234", "n": {"pin": 1}}, Effect.ONCE, NOW, limit)


def out(one: Any, notified: bool = False, after: float = 0.0) -> Dispatch:
    return discharge(one, notified=notified, gate=None, key=b"k", now=NOW + timedelta(seconds=after))


def test_a_dispatch_is_made_by_discharging_only() -> None:
    good = out(due())
    assert good.arguments == {"card": "1234", "n": {"pin": 1}}
    with pytest.raises(Failed):
        Dispatch(CALL, {}, None, object())
    with pytest.raises(Failed):
        replace(good, discharged=None)


def test_each_obligation_is_discharged_or_nothing_goes_out() -> None:
    hidden = due(Obligations(redact=("card", "n.pin", "absent.x")))
    assert out(hidden).arguments == {"card": REDACTED, "n": {"pin": REDACTED}}
    assert hidden.call.digest != due().call.digest, "what is approved is what goes out"
    with pytest.raises(TooLarge):
        due(Obligations(cap_bytes=5))
    with pytest.raises(TooLarge):
        due(limit=5)
    told = due(Obligations(notify_owner=True))
    with pytest.raises(Refused):
        out(told)
    assert out(told, notified=True)
    timed = due(Obligations(expire_seconds=10))
    assert out(timed, after=9)
    with pytest.raises(Refused):
        out(timed, after=10)
    for answer in (DENY, ASK):
        with pytest.raises(Refused):
            out(due(answer=answer))


def test_redaction_goes_through_lists() -> None:
    cards: dict[str, Any] = {"cards": [{"pin": 1, "of": "a"}, [{"pin": 2}], "pin", 3], "pins": [1, 2]}
    assert redacted(cards, ["cards.pin", "pins"]) == {
        "cards": [{"pin": REDACTED, "of": "a"}, [{"pin": REDACTED}], "pin", 3],
        "pins": REDACTED,
    }
    assert cards["cards"][0] == {"pin": 1, "of": "a"}
    assert redacted(cards, ["cards.of"])["cards"] == [{"pin": 1, "of": REDACTED}, [{"pin": 2}], "pin", 3]


_LEAVES = st.integers() | st.lists(st.dictionaries(st.sampled_from("abc"), st.integers()))


@given(st.dictionaries(st.sampled_from("abc"), _LEAVES | st.dictionaries(st.sampled_from("abc"), _LEAVES)))
def test_redaction_changes_nothing_of_its_source(arguments: dict[str, Any]) -> None:
    before = repr(arguments)
    redacted(arguments, ["a", "a.b", "b.c"])
    assert repr(arguments) == before


@pytest.mark.parametrize(
    "change",
    [
        {"lookup": False},
        {"effect": Effect.LOCAL},
        {"name": "shell"},
        {"name": "Http.webhook"},
        {"name": "a.b\n"},
    ],
)
def test_what_is_no_capability(change: dict[str, Any]) -> None:
    good = Capability("http.webhook", Effect.ONCE, "", {}, lookup=True)
    check(good)
    with pytest.raises(Invalid):
        check(replace(good, **change))


def test_a_pure_one_needs_no_look_up() -> None:
    check(Capability("time.now", Effect.PURE, "", {}, lookup=False))


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/",
        "http://10.0.0.1/",
        "http://localhost.example.org/",
        "ftp://localhost/",
        "https://user:pass@example.org/",
        "https://example.org/#x",
        "https:///x",
        "https://exa mple.org/",
        "https://ex\u0430mple.org/",
        "http://127.0.0.1:99999/",
        "",
        3,
    ],
)
def test_addresses_that_are_refused(address: object) -> None:
    with pytest.raises(ValueError, match="https"):
        url(address)


@pytest.mark.parametrize(
    "address", ["https://example.org/x?y=1", "http://127.0.0.1:1/", "http://[::1]/", "http://localhost/"]
)
def test_addresses_that_are_taken(address: str) -> None:
    assert url(address) == address


@pytest.mark.parametrize(
    "raw",
    [
        [{"tool": "x"}],
        [{"answer": "ask"}],
        [{"tool": "x", "answer": "yes"}],
        [{"tool": "x", "answer": "ask", "were": {}}],
        [{"tool": "x", "answer": "ask", "where": {"a..b": 1}}],
        [{"tool": "x", "answer": "ask", "where": {"a": []}}],
        [{"tool": "x", "answer": "ask", "cap_bytes": 0}],
        [{"tool": "x", "answer": "ask", "notify_owner": 1}],
        {"tool": "x", "answer": "ask"},
        [{"tool": "x", "answer": "ask"}] * 257,
    ],
)
def test_rules_that_are_refused(raw: object) -> None:
    with pytest.raises(ValueError):
        rules(raw)


def test_two_webhooks_of_one_name_are_refused() -> None:
    one = {"name": "a", "url": "https://a/", "secret_file": "/s", "lookup_url": "https://a/l"}
    assert len(webhooks([one])) == 1
    for wrong in ([one, one], [{**one, "secret_file": "s"}], [{**one, "lookup_url": ""}], [{"name": "a"}]):
        with pytest.raises(ValueError):
            webhooks(wrong)
