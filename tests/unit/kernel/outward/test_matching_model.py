"""The indexed matcher against the plain one, over random rules and requests; tests/fuzz/fuzz_rules.py goes further."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Request, Verdict
from tests.fuzz.plain_matcher import decided, matches

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
HOSTS = ("a.test", "b.a.test", "c.b.a.test", "test", "other.org", "10.1.2.3", "10.2.0.1", "fd00::1")
PATTERNS = (
    "a.test",
    "b.a.test",
    "*.a.test",
    "**.a.test",
    "*.test",
    "**.test",
    "*",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "fd00::/8",
)
LONG = "/" + "a*" * 300  # a pattern of it would have 1,201 characters
PATHS = (LONG, "/", "/a", "/a/b", "/a/b/c", "/b", "/a%2Fb", "/a/", "/*", "/A", "/a%3Bx/b", "/a/B.", "/a.%20%2FB/")
GLOBS = ("/", "/a", "/*", "/**", "/a/**", "/**/b", "/*/b", "/a%2Fb", "/*%2F*", "/a/*/c", "/%2A")
METHODS = ("GET", "POST", "BREW")
QUERIES = ("", "s=1", "s=2", "s=1&s=2", "%73=1", "S=1", "s=1+", "s[]=1")


@st.composite
def _rules(draw: st.DrawFn) -> EgressRule:
    answer = draw(st.sampled_from(Verdict))
    ports = draw(st.sampled_from([(443,), (80, 443), (8080,)] + ([()] if answer is DENY else [])))
    return EgressRule(
        f"rul_{draw(st.integers(0, 10**6))}",
        answer,
        draw(st.sampled_from(PATTERNS)),
        ports,
        plain=answer is not DENY and draw(st.booleans()),
        methods=draw(st.sampled_from([frozenset(), frozenset({"GET"}), frozenset({"POST"})])),
        paths=tuple(draw(st.lists(st.sampled_from(GLOBS), max_size=2))),
        query=draw(st.sampled_from([(), (("s", "1"),)])),
        websocket=answer is not DENY and draw(st.booleans()),
        layer=draw(st.sampled_from(Layer)),
    )


REQUESTS = st.builds(
    Request,
    st.sampled_from(HOSTS),
    st.sampled_from([80, 443, 8080]),
    st.booleans(),
    st.sampled_from(METHODS),
    st.sampled_from(PATHS),
    st.sampled_from(QUERIES),
    st.booleans(),
)
RULES = st.lists(_rules(), max_size=8)


def _unsayable(request: Request) -> bool:
    """No rule says exactly it, so nobody is asked about it."""
    return request.path == LONG or request.method == "BREW"


@given(RULES, REQUESTS)
def test_the_matcher_is_its_text(rules: list[EgressRule], request: Request) -> None:
    decision = compile_rules(rules).request(request)
    answer = decided(rules, request)[0]
    assert decision.answer is (DENY if answer is ASK and _unsayable(request) else answer)
    if decision.rule is None:
        assert not any(matches(each, request) for each in rules)
    else:
        assert decision.rule.answer in (decision.answer, answer) and matches(decision.rule, request)


@given(RULES, REQUESTS)
def test_no_connection_is_refused_that_a_request_could_use(rules: list[EgressRule], request: Request) -> None:
    matcher = compile_rules(rules)
    if matcher.request(request).answer is not DENY:
        assert matcher.connection(request.host, request.port, request.tls).answer is not DENY


@given(RULES, st.sampled_from(HOSTS), st.sampled_from([80, 443]), st.booleans())
def test_a_connection_that_is_let_through_has_a_rule_for_it(
    rules: list[EgressRule], host: str, port: int, tls: bool
) -> None:
    if compile_rules(rules).connection(host, port, tls).answer is not DENY:
        assert any(
            each.answer is not DENY
            and port in each.ports
            and matches(replace(each, methods=frozenset(), paths=("/**",), query=()), probe)
            for each in rules
            for probe in (Request(host, port, tls, "GET", "/"),)
        )


@given(RULES, REQUESTS)
def test_what_is_missing_can_be_added_and_of_an_ask_it_is_there(rules: list[EgressRule], request: Request) -> None:
    matcher = compile_rules(rules)
    for decision in (matcher.request(request), matcher.connection(request.host, request.port, request.tls)):
        assert decision.missing is not None or decision.answer is not ASK
        if decision.missing is not None:
            assert check_rule(decision.missing) == decision.missing


@given(RULES, REQUESTS)
def test_what_is_missing_lets_exactly_this_through(rules: list[EgressRule], request: Request) -> None:
    decision = compile_rules(rules).request(request)
    if decision.answer is ALLOW or decision.missing is None:
        return
    merged = compile_rules([*rules, replace(decision.missing, id="rul_new")])
    assert merged.request(request).answer is ALLOW
    for other in (
        replace(request, path=request.path + "x"),
        replace(request, method="PUT"),
        replace(request, port=8443),
    ):
        assert merged.request(other).answer is compile_rules(rules).request(other).answer


@given(RULES, REQUESTS)
def test_a_denial_without_a_missing_rule_cannot_be_lifted(rules: list[EgressRule], request: Request) -> None:
    decision = compile_rules(rules).request(request)
    if _unsayable(request):
        return
    if decision.answer is DENY and decision.missing is None and request.host[0].isalpha() and "." in request.host:
        everything = EgressRule(
            "rul_new", ALLOW, request.host, (80, 443), plain=True, websocket=True, paths=("/**", "/*%2F*")
        )
        assert compile_rules([*rules, everything]).request(request).answer is DENY


@given(RULES, REQUESTS)
def test_unread_bytes_are_never_of_a_request_that_is_denied(rules: list[EgressRule], request: Request) -> None:
    through = [
        replace(each, mode=Mode.PASSTHROUGH)
        if each.answer is not DENY
        and not (each.methods or each.paths or each.query or each.plain or each.websocket or "/" in each.host)
        else each
        for each in rules
    ]
    matcher = compile_rules(through)
    connection = matcher.connection(request.host, request.port, request.tls)
    if connection.mode is Mode.PASSTHROUGH:
        plainest = replace(request, method="GET", path="/", websocket=False)
        assert matcher.request(plainest).answer is connection.answer
