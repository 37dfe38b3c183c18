"""Rules against requests: specificity, layers, connections, bindings; the attack list D24, cases 29, 45."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.credentials import Binding
from ringfence.host.kernel.outward.matching import Matcher, compile_binding, compile_rules, covers
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Layer, Mode, Request, Verdict
from tests.support.rules import ALLOW, ASK, DENY, OPERATOR, TENANT, answer, asked, rule


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule("*", DENY), rule("api.test")], ALLOW),  # case 22
        ([rule("api.test"), rule("*", DENY)], ALLOW),
        ([rule("**.test", DENY), rule("*.test"), rule("*", ASK)], ALLOW),
        ([rule("*.test", ASK), rule("**.test")], ASK),
        ([rule("api.test", DENY), rule("api.test")], DENY),
        ([rule("api.test", ASK), rule("api.test")], ALLOW),
        ([rule("api.test", DENY), rule("**.test"), rule("*")], DENY),
        ([rule("api.test", methods=frozenset({"GET"})), rule("*", ASK)], ALLOW),
        ([rule("api.test", methods=frozenset({"POST"})), rule("*", ASK)], ASK),
        ([rule("*", DENY, layer=OPERATOR), rule("api.test")], DENY),
        ([rule("*", DENY, layer=OPERATOR), rule("api.test", layer=OPERATOR), rule("api.test", ASK)], ALLOW),
        ([rule("*", ASK, layer=OPERATOR), rule("api.test")], ALLOW),
        ([rule("*", layer=OPERATOR), rule("api.test", ASK)], ALLOW),
        ([rule("*", layer=OPERATOR), rule("api.test", DENY, layer=TENANT), rule("api.test")], DENY),
        ([rule("other.test")], DENY),
        ([], DENY),
    ],
)
def test_specificity_and_layers(rules: list[EgressRule], expected: Verdict) -> None:
    assert answer(rules, asked()) is expected
    assert answer(rules[::-1], asked()) is expected  # the order of rules is no order of decisions


@pytest.mark.parametrize(
    ("rules", "host", "expected"),
    [
        ([rule("10.0.0.0/8"), rule("10.1.0.0/16", DENY)], "10.1.2.3", DENY),
        ([rule("10.0.0.0/8", DENY), rule("10.1.0.0/16")], "10.1.2.3", ALLOW),
        ([rule("10.0.0.0/8"), rule("*", DENY)], "10.1.2.3", ALLOW),
        ([rule("10.0.0.0/8"), rule("*", DENY, layer=OPERATOR)], "10.1.2.3", DENY),
        ([rule("*", ASK), rule("*")], "10.1.2.3", DENY),
    ],
)
def test_ranges(rules: list[EgressRule], host: str, expected: Verdict) -> None:
    assert answer(rules, asked(host)) is expected


@pytest.mark.parametrize(
    ("more", "request_more", "expected"),
    [
        ({}, {}, ALLOW),
        ({}, {"port": 8443}, DENY),
        ({"ports": (443, 8443)}, {"port": 8443}, ALLOW),
        ({}, {"port": 80, "tls": False}, DENY),
        ({"ports": (80, 443)}, {"port": 80, "tls": False}, DENY),
        ({"ports": (80, 443), "plain": True}, {"port": 80, "tls": False}, ALLOW),
        ({}, {"websocket": True}, DENY),  # G12
        ({"websocket": True}, {"websocket": True}, ALLOW),
        ({"websocket": True}, {}, ALLOW),
        ({"methods": frozenset({"GET"})}, {"method": "HEAD"}, DENY),
        ({"methods": frozenset({"GET"})}, {"method": "get"}, DENY),
    ],
)
def test_the_rest_of_a_rule(more: dict[str, Any], request_more: dict[str, Any], expected: Verdict) -> None:
    assert answer([rule("api.test", **more)], asked(**request_more)) is expected


@pytest.mark.parametrize(
    "request_more", [{"port": 80, "tls": False}, {"port": 8443}, {"websocket": True}, {"method": "PUT"}]
)
def test_a_deny_without_ports_is_for_all_of_it(request_more: dict[str, Any]) -> None:
    open_wide = rule("api.test", layer=TENANT, ports=(80, 443, 8443), plain=True, websocket=True)
    assert answer([open_wide], asked(**request_more)) is ALLOW
    assert answer([open_wide, rule("api.test", DENY, ports=())], asked(**request_more)) is DENY


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "fd00:ec2::254", "168.63.129.16", "metadata.google.internal", "64:ff9b::a9fe:a9fe"]
)
def test_no_rule_opens_a_metadata_service(host: str) -> None:
    rules = [rule("0.0.0.0/0", layer=layer) for layer in Layer] + [rule("::/0"), rule("*"), rule("**.internal")]
    if host[0] == "m":
        rules.append(rule("metadata.google.internal"))
    decision = compile_rules(rules).request(asked(host))
    assert (decision.answer, decision.missing) == (DENY, None)
    assert compile_rules(rules).connection(host, 443, True).answer is DENY
    other = "10.1.1.1" if host[0] in "1" else "fd12::1" if ":" in host else "other.internal"
    assert answer(rules, asked(other)) is ALLOW  # the control


def test_a_connect_carries_no_credential_and_is_judged_by_what_may_come() -> None:
    """Case 29: a rule about methods does not refuse a CONNECT; case 19: one that nobody names is refused at once."""
    matcher = compile_rules([rule("api.test", methods=frozenset({"POST"}), paths=("/x",))])
    assert matcher.request(Request("api.test", 443, True)).answer is ALLOW
    assert matcher.request(asked()).answer is DENY
    assert matcher.connection("other.test", 443, True).answer is DENY
    assert matcher.connection("api.test", 22, True).answer is DENY


@pytest.mark.parametrize(
    ("rules", "expected", "mode"),
    [
        ([rule("api.test", mode=Mode.PASSTHROUGH)], ALLOW, Mode.PASSTHROUGH),
        ([rule("api.test", ASK, mode=Mode.PASSTHROUGH)], ASK, Mode.PASSTHROUGH),
        ([rule("api.test", mode=Mode.PASSTHROUGH), rule("*", ASK)], ALLOW, Mode.PASSTHROUGH),
        ([rule("api.test", mode=Mode.PASSTHROUGH), rule("*", ASK, layer=OPERATOR)], ALLOW, Mode.PASSTHROUGH),
        ([rule("api.test", mode=Mode.PASSTHROUGH), rule("*")], ALLOW, Mode.PASSTHROUGH),
        ([rule("api.test", mode=Mode.PASSTHROUGH), rule("*", layer=OPERATOR)], ALLOW, Mode.INTERCEPT),
        (
            [rule("api.test", mode=Mode.PASSTHROUGH), rule("api.test", methods=frozenset({"GET"}))],
            ALLOW,
            Mode.INTERCEPT,
        ),
        ([rule("api.test", mode=Mode.PASSTHROUGH), rule("api.test")], ALLOW, Mode.INTERCEPT),
        ([rule("*", mode=Mode.PASSTHROUGH), rule("api.test", DENY, paths=("/x",))], ALLOW, Mode.INTERCEPT),
        ([rule("*", mode=Mode.PASSTHROUGH), rule("api.test", ASK, paths=("/x",))], ALLOW, Mode.INTERCEPT),
        (
            [rule("*", mode=Mode.PASSTHROUGH, layer=OPERATOR), rule("api.test", ASK, paths=("/x",))],
            ALLOW,
            Mode.PASSTHROUGH,
        ),
        (
            [rule("api.test", mode=Mode.PASSTHROUGH), rule("*", DENY, methods=frozenset({"PUT"}), layer=OPERATOR)],
            ALLOW,
            Mode.INTERCEPT,
        ),
        ([rule("api.test", mode=Mode.PASSTHROUGH), rule("api.test", DENY, layer=OPERATOR)], DENY, Mode.INTERCEPT),
    ],
)
def test_bytes_go_unread_only_when_nobody_has_to_read_them(
    rules: list[EgressRule], expected: Verdict, mode: Mode
) -> None:
    for order in (rules, rules[::-1]):
        decision = compile_rules(order).connection("api.test", 443, True)
        assert (decision.answer, decision.mode) == (expected, mode)


def test_what_is_missing_says_exactly_this_and_no_query() -> None:
    request = asked("api.test", "/a*b/c%2Fd", "POST", query="token=canary", port=8443, websocket=True)
    decision = compile_rules([]).request(request)
    assert decision.missing == EgressRule(
        "", ALLOW, "api.test", (8443,), methods=frozenset({"POST"}), paths=("/a%2Ab/c%2Fd",), websocket=True
    )
    assert "canary" not in decision.why + str(decision.missing)
    assert compile_rules([]).request(asked("93.184.216.34")).missing == replace(
        _missing(asked("x.test")), host="93.184.216.34/32"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "10.0.0.1", "fd00::1", "198.51.100.7", "::7f00:1"])
def test_nobody_is_sent_for_a_rule_that_would_let_nothing_out(host: str) -> None:
    """Nor asked about it. The control is an address that a rule does open."""
    networks = [f"{each}/{ip_address(each).max_prefixlen}" for each in (host, "93.184.216.34")]
    for verdict in (None, ASK, DENY):
        matcher = compile_rules([rule(each, verdict) for each in networks] if verdict is not None else [])
        for decision in (matcher.request(asked(host)), matcher.connection(host, 443, True)):
            assert (decision.answer, decision.missing) == (DENY, None)
            assert verdict is DENY or "no rule opens it" in decision.why
        control = matcher.request(asked("93.184.216.34"))
        assert control.answer is (ASK if verdict is ASK else DENY)
        assert verdict is DENY or control.missing is not None


def _missing(request: Request) -> EgressRule:
    missing = compile_rules([]).request(request).missing
    assert missing is not None
    return missing


@pytest.mark.parametrize(
    ("rules", "helps"),
    [
        ([rule("*", DENY)], True),
        ([rule("api.test", ASK)], True),
        ([rule("*", ASK, layer=OPERATOR)], True),
        ([rule("api.test", DENY)], False),
        ([rule("*", DENY, layer=OPERATOR)], False),
        ([rule("*", ASK), rule("**.test", DENY, layer=TENANT)], False),
    ],
)
def test_a_rule_is_called_missing_only_if_it_would_help(rules: list[EgressRule], helps: bool) -> None:
    for decide in (_by_request, _by_connection):
        decision = decide(compile_rules(rules))
        assert (decision.missing is not None) is helps
        if decision.missing is not None:
            assert decide(compile_rules([*rules, decision.missing])).answer is ALLOW


def _by_request(matcher: Matcher) -> Decision:
    return matcher.request(asked())


def _by_connection(matcher: Matcher) -> Decision:
    return matcher.connection("api.test", 443, True)


@pytest.mark.parametrize(
    ("binding", "request_", "expected"),
    [
        ({}, asked(), True),
        ({}, asked("api.test.evil.com"), False),
        ({}, asked(tls=False), False),  # E10
        ({"ports": (80,)}, asked(tls=False, port=80), False),
        ({}, asked(port=8443), False),
        ({}, Request("api.test", 443, True), False),
        ({"methods": frozenset({"GET"})}, asked(method="POST"), False),
        ({"host": "*.test"}, asked(), True),
        ({"host": "**.test"}, asked("test"), False),
        ({"host": "*"}, asked(), False),
        ({"host": "10.0.0.0/8"}, asked("10.1.1.1"), False),  # A13
        ({}, asked(websocket=True), True),  # whether a WebSocket may be is a matter of rules
        ({}, asked(path="/a%2Fb"), False),
    ],
)
def test_where_a_binding_holds(binding: dict[str, Any], request_: Request, expected: bool) -> None:
    made = replace(Binding("bnd_1", "crd_1", "api.test"), **binding)
    assert covers(made, request_) is compile_binding(made).covers(request_) is expected


def _calls(work: Callable[[], object]) -> int:
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "request_", [asked("api.test", "/repos/o3/x/issues"), asked("a.b.c.nowhere.test"), asked("10.0.3.3")]
)
def test_a_decision_costs_the_same_among_a_thousand_rules(request_: Request) -> None:
    def many(count: int) -> Matcher:
        named = [rule(f"h{number}.test", paths=("/x/**",)) for number in range(count)]
        pathed = [rule("api.test", paths=(f"/repos/o{number}/*/issues",)) for number in range(count)]
        ranges = [rule(f"10.{number // 256}.{number % 256}.0/24") for number in range(count)]
        return compile_rules(named + pathed + ranges)

    few, thousands = many(10), many(1000)
    assert _calls(lambda: thousands.request(request_)) == _calls(lambda: few.request(request_)) < 80
    connection = (request_.host, 443, True)
    assert _calls(lambda: thousands.connection(*connection)) == _calls(lambda: few.connection(*connection)) < 100


def test_a_hostile_path_takes_linear_time() -> None:
    """G9: each segment of the longest target against patterns that would make a backtracking matcher exponential."""
    matcher = compile_rules([rule("api.test", paths=("/**/a/**/a/**/a/**/a/**/a/**/b", "/**/a/*/**/*/a/**/x"))])
    short, long = asked(path="/a" * 500), asked(path="/a" * 4000)
    assert matcher.request(long).answer is DENY
    assert _calls(lambda: matcher.request(long)) < 9 * _calls(lambda: matcher.request(short))


def test_of_two_that_say_the_same_the_narrower_ones_limits_hold() -> None:
    named = rule("api.test", paths=("/up",), up_bytes=5)
    put = rule("api.test", methods=frozenset({"PUT"}), up_bytes=7)
    matcher = compile_rules([rule("api.test"), put, named])
    found = [matcher.request(request).rule for request in (asked(path="/up"), asked(method="PUT"), asked())]
    assert [each.up_bytes for each in found if each] == [5, 7, 100 << 20]


def test_why_names_the_rule_and_no_path() -> None:
    rules = [rule("api.test", DENY, paths=("/no",)), rule("api.test", ASK, paths=("/ask",)), rule("ok.test")]
    matcher = compile_rules(rules)
    whys = [
        matcher.request(each).why
        for each in (asked(path="/no"), asked(path="/ask"), asked("ok.test"), asked(path="/canary"))
    ]
    assert whys == [
        f"{rules[0].id} denies it",
        f"{rules[1].id} asks first",
        f"{rules[2].id} allows it",
        "no rule names GET of this path at api.test:443",
    ]
    assert matcher.connection("x.test", 80, False).why == "no rule names x.test:80 without TLS"


@pytest.mark.parametrize("request_", [asked(path="/" + "a" * 1500), asked(path="/" + "*" * 400), asked(method="BREW")])
def test_what_no_rule_can_say_is_asked_of_nobody(request_: Request) -> None:
    """And where it is denied, no rule is named that could not be added. The control is one that can be said."""
    for rules in ([rule("*", ASK)], [], [rule("*", DENY, ports=())]):
        decision = compile_rules(rules).request(request_)
        assert (decision.answer, decision.missing) == (DENY, None)
        said = compile_rules(rules).request(asked(path="/" + "a" * 1000))
        assert said.missing is not None and said.answer is (ASK if rules and rules[0].answer is ASK else DENY)
    assert "asks first, and no rule can name" in compile_rules([rule("*", ASK)]).request(request_).why


@pytest.mark.parametrize("port", [443, 8080])
def test_plain_http_at_any_port_can_be_asked_about(port: int) -> None:
    matcher = compile_rules([rule("api.test", ASK, ports=(80, 443, 8080), plain=True)])
    decision = matcher.request(asked(port=port, tls=False))
    assert decision.answer is ASK and decision.missing is not None
    assert decision.missing == check_rule(decision.missing) and decision.missing.ports == (port,)


def test_a_yes_to_unread_bytes_is_for_unread_bytes() -> None:
    """As for pinned clients, which the first connection of an intercepting rule would break."""
    for asking in (rule("*", ASK, mode=Mode.PASSTHROUGH), rule("*", ASK, mode=Mode.PASSTHROUGH, layer=OPERATOR)):
        missing = compile_rules([asking]).connection("api.test", 443, True).missing
        assert missing is not None and missing.mode is Mode.PASSTHROUGH
        after = compile_rules([asking, missing]).connection("api.test", 443, True)
        assert (after.answer, after.mode) == (ALLOW, Mode.PASSTHROUGH)
    read = compile_rules([rule("*", ASK)]).connection("api.test", 443, True).missing
    assert read is not None and read.mode is Mode.INTERCEPT


def test_a_layer_alone_is_what_its_rules_alone_are() -> None:
    rules = [rule("api.test", layer=OPERATOR), rule("*", ASK), rule("b.test", DENY, layer=TENANT, ports=())]
    whole = compile_rules(rules)
    for layer in Layer:
        alone = whole.alone(layer)
        assert alone is not None
        mine = compile_rules(each for each in rules if each.layer is layer)
        for host in ("api.test", "b.test", "c.test"):
            assert alone.request(asked(host)) == mine.request(asked(host))
    assert compile_rules(rules[:1]).alone(TENANT) is None
