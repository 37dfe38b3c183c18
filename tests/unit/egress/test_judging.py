"""What a policy keeps of its answers: the same for the same request, bounded, and nothing of it in the policy after."""

from __future__ import annotations

import pytest

from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.judging import Judged, Origin, Policy
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.secret import Secret
from tests.support.egress_rig import binding, rule

API = Origin("api.test", 443, tls=True)


def policy(*rules: EgressRule) -> Policy:
    return Policy(Configuration("usr_1", rules, (binding(paths=("/a/**",)),), "", Secret(b""), "", ()))


def judged(of: Policy, target: bytes = b"/a/b", method: str = "GET", *, websocket: bool = False) -> Judged:
    return of.judged(API, method, target, websocket=websocket)


def test_the_same_request_has_the_same_answer() -> None:
    one = policy(rule())
    assert judged(one) is judged(one)


@pytest.mark.parametrize("other", [{"target": b"/a/c"}, {"method": "POST"}, {"websocket": True}])
def test_another_request_is_judged_for_itself(other: dict[str, object]) -> None:
    one = policy(rule(methods=frozenset({"GET"}), paths=("/a/b",)))
    assert judged(one).request.path == "/a/b"
    for _ in range(2):
        with pytest.raises(Refusal) as refused:
            judged(one, **other)  # type: ignore[arg-type]
        assert refused.value.code is Code.DENIED


@pytest.mark.parametrize("origin", [Origin("api.test", 444, tls=True), Origin("b.test", 443, tls=True)])
def test_another_place_is_judged_for_itself(origin: Origin) -> None:
    one = policy(rule())
    judged(one)
    with pytest.raises(Refusal):
        one.judged(origin, "GET", b"/a/b", websocket=False)


def test_the_next_policy_knows_nothing_of_it() -> None:
    assert judged(policy(rule())).decision.answer is Verdict.ALLOW
    with pytest.raises(Refusal):
        judged(policy(rule(answer=Verdict.DENY)))


def test_where_a_credential_may_go_is_kept_by_request() -> None:
    one, bound = policy(rule()), binding(paths=("/a/**",))
    for _ in range(2):
        assert one.covers(bound, judged(one, b"/a/b").request)
        assert not one.covers(bound, judged(one, b"/b").request)


def test_what_is_kept_is_bounded() -> None:
    one = policy(rule())
    for number in range(1000):
        one.covers(binding(), judged(one, b"/a/%d" % number).request)
    long = b"/" + b"a" * 4000
    assert judged(one, long) is not judged(one, long)
    assert max(len(one._judged), len(one._covered), len(one._strict)) <= 128
