"""What is stored as a rule or a binding, and what of a set of rules people are told."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import linting
from ringfence.host.kernel.outward.checking import METHODS, check_binding, check_rule
from ringfence.host.kernel.outward.credentials import Binding, Position, Scheme, Use
from ringfence.host.kernel.outward.linting import lint
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.patterns import HostPattern
from ringfence.host.kernel.outward.presets import PRESETS, preset
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Request, Verdict

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
OPERATOR = Layer.INSTALLATION
GET = frozenset({"GET"})


def rule(id: str, host: str, answer: Verdict = ALLOW, **more: Any) -> EgressRule:
    return EgressRule(id, answer, host, **more)


def test_a_rule_is_kept_in_canonical_form() -> None:
    given = rule("r", "*.API.Test.", ports=(8443, 443), paths=("/%7eu/%2a", "/~u/%2A", "/x%2fy"), methods=GET)
    assert check_rule(given) == replace(given, host="*.api.test", ports=(443, 8443), paths=("/~u/%2A", "/x%2Fy"))
    assert check_rule(check_rule(given)) == check_rule(given)
    assert check_rule(rule("r", "2001:DB8::/32")).host == "2001:db8::/32"


@pytest.mark.parametrize(
    "more",
    [
        {"host": "ex*.com"},
        {"host": "10.0.0.1"},
        {"host": "metadata.google.internal"},
        {"ports": ()},
        {"ports": (0,)},
        {"ports": (65536,)},
        {"ports": (443, 443)},
        {"ports": tuple(range(1, 18))},
        {"methods": frozenset({"get"})},
        {"methods": frozenset({"CONNECT"})},
        {"methods": frozenset({"TRACE"})},
        {"paths": ("x",)},
        {"paths": tuple(f"/{n}" for n in range(65))},
        {"query": (("", "x"),)},
        {"query": (("a", "b&c"),)},
        {"query": (("a", "\u00e9"),)},
        {"query": (("a", "\x01"),)},
        {"query": (("a", "b" * 257),)},
        {"query": tuple((f"a{n}", "b") for n in range(9))},
        {"query": (("a", "1"), ("a", "2"))},
        {"up_bytes": -1},
        {"down_bytes": 1 << 41},
        {"note": "two\nlines"},
        {"note": "x" * 501},
        {"mode": Mode.PASSTHROUGH, "methods": GET},
        {"mode": Mode.PASSTHROUGH, "paths": ("/x",)},
        {"mode": Mode.PASSTHROUGH, "query": (("a", "b"),)},
        {"mode": Mode.PASSTHROUGH, "websocket": True},
        {"mode": Mode.PASSTHROUGH, "forward_literal": True},
        {"mode": Mode.PASSTHROUGH, "ports": (80, 443), "plain": True},
        {"mode": Mode.PASSTHROUGH, "host": "10.0.0.0/8"},
        {"mode": Mode.PASSTHROUGH, "answer": DENY},
        {"answer": DENY, "websocket": True},
        {"answer": DENY, "ports": (80,), "plain": True},
        {"answer": DENY, "forward_literal": True},
    ],
)
def test_a_rule_that_makes_no_sense(more: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        check_rule(replace(rule("r", "api.test"), **more))
    assert caught.value.remedy and caught.value.message != "r"


def test_what_may_pass_through_or_go_plain() -> None:
    assert check_rule(rule("r", "*.api.test", mode=Mode.PASSTHROUGH, ports=(443, 8443)))
    assert check_rule(rule("r", "api.test", plain=True, ports=(80, 443)))
    assert check_rule(rule("r", "api.test", plain=True, ports=(8080,)))


def test_what_a_deny_may_be() -> None:
    assert check_rule(rule("r", "metadata.google.internal", DENY, ports=()))
    assert check_rule(rule("r", "*", DENY, ports=()))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_is_written_in_upper_case(method: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_rule(rule("r", "api.test", methods=frozenset({method.lower()})))
    assert method in caught.value.remedy


def test_a_binding_is_kept_in_canonical_form() -> None:
    given = Binding("b", "c", "API.test.", (8443, 443), paths=("/%61",), positions=(Position("X-API-Key", Scheme.RAW),))
    assert check_binding(given) == replace(
        given, host="api.test", ports=(443, 8443), paths=("/a",), positions=(Position("x-api-key", Scheme.RAW),)
    )


@pytest.mark.parametrize(
    "more",
    [
        {"host": "*"},
        {"host": "10.0.0.0/8"},
        {"host": "10.0.0.1"},
        {"host": "metadata.google.internal"},
        {"ports": ()},
        {"positions": ()},
        {"positions": (Position("host"),)},
        {"positions": (Position("Proxy-Authorization"),)},
        {"positions": (Position("x-forwarded-host", Scheme.RAW),)},
        {"positions": (Position("transfer-encoding", Scheme.RAW),)},
        {"positions": (Position("x key"),)},
        {"positions": (Position("x-key", Scheme.BASIC_PASSWORD),)},
        {"positions": (Position(query="a=b", scheme=Scheme.RAW),)},
        {"positions": (Position(query="key"),)},
        {"use": Use.INJECT, "positions": (Position(query="key", scheme=Scheme.RAW),)},
        {"use": Use.INJECT, "uses": 3},
        {"environment": ("LD_PRELOAD",)},
        {"environment": ("PATH",)},
        {"environment": ("A=B",)},
        {"environment": ("1A",)},
        {"environment": ("",)},
        {"shape": "unheard-of"},
        {"uses": 0},
    ],
)
def test_a_binding_that_makes_no_sense(more: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        check_binding(replace(Binding("b", "c", "api.test"), **more))
    assert caught.value.remedy
    assert check_binding(Binding("b", "c", "api.test"))  # the control


@pytest.mark.parametrize("host", ["**.com", "*.uk", "*.corp", "*.co.uk", "**.github.io", "*.Amazonaws.com."])
@pytest.mark.parametrize("use", [Use.PLACEHOLDER, Use.INJECT])
def test_a_credential_goes_to_no_name_of_everybodys(host: str, use: Use) -> None:
    """Whoever has such a name would be sent it. The controls: a name, and a wildcard below one of somebody's own."""
    made = Binding("b", "c", host, use=use)
    with pytest.raises(Invalid, match="anybody") as caught:
        check_binding(made)
    assert caught.value.remedy
    name = host.rstrip(".").lstrip("*").lstrip(".")
    assert check_binding(replace(made, host=name)).host == name.lower()
    assert check_binding(replace(made, host=f"**.mine.{name}"))


@pytest.mark.parametrize(
    ("rules", "mentioned"),
    [
        ([rule("one", "api.test", DENY, ports=()), rule("two", "api.test")], "two never decides"),
        ([rule("one", "api.test"), rule("two", "api.test")], "two adds nothing to one"),
        ([rule("one", "api.test"), rule("two", "api.test", methods=GET)], "two adds nothing to one"),
        ([rule("two", "api.test", methods=GET), rule("one", "api.test")], "two adds nothing to one"),
        (
            [rule("one", "api.test", methods=frozenset({"GET", "HEAD"})), rule("two", "api.test", methods=GET)],
            "two adds nothing to one",
        ),
        (
            [
                rule("one", "*", DENY, ports=(), layer=OPERATOR),
                rule("also", "api.test", DENY, ports=(), layer=OPERATOR),
                rule("two", "api.test"),
            ],
            "two (allow api.test) never",
        ),
        ([rule("two", "api.test"), rule("one", "api.test", websocket=True)], "two adds nothing to one"),
        ([rule("two", "api.test"), rule("one", "api.test", ports=(80, 443), plain=True)], "two adds nothing to one"),
        ([rule("one", "api.test"), rule("two", "api.test", ASK)], "two never decides"),
        ([rule("one", "*", DENY, ports=(), layer=OPERATOR), rule("two", "api.test")], "two (allow api.test) never"),
        ([rule("one", "**.test", DENY, ports=(), layer=OPERATOR), rule("two", "*.api.test", ASK)], "two (ask *.api"),
        ([rule("one", "*", layer=OPERATOR), rule("two", "api.test", ASK)], "two (ask api.test) never"),
        ([rule("one", "0.0.0.0/0", DENY, ports=(), layer=OPERATOR), rule("two", "10.0.0.0/8")], "two (allow 10"),
        ([rule("one", "*.api.test")], "lets writes through"),
        ([rule("one", "0.0.0.0/0")], "lets writes through"),
        ([rule("one", "::/0")], "lets writes through"),
        ([rule("one", "10.0.0.0/8", methods=GET)], "opens nothing by itself"),
        ([rule("one", "127.0.0.1/32")], "opens nothing by itself"),
        ([rule("one", "*", methods=frozenset({"POST"}))], "lets writes through"),
        ([rule("one", "**.com", methods=GET)], "names of everybody"),
        ([rule("one", "*.github.io", methods=GET)], "names of everybody"),
        ([rule("one", "*", mode=Mode.PASSTHROUGH)], "unread"),
        ([rule("one", "evil.test", DENY)], "for its ports only"),
        ([rule("one", "xn--pple-43d.com")], "U+0430"),
        ([*preset("git-read:git.test"), *preset("git-write:git.test")], "preset:git-write:git.test/4 never decides"),
    ],
)
def test_what_people_are_told(rules: list[EgressRule], mentioned: str) -> None:
    assert any(mentioned in line for line in lint(rules)), lint(rules)


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule("one", "*", DENY, ports=()), rule("two", "api.test")],  # case 22: most specific wins in one layer
        [
            rule("one", "*", DENY, ports=(), layer=OPERATOR),
            rule("two", "api.test", layer=OPERATOR),
            rule("x", "api.test"),
        ],
        [rule("one", "api.test", methods=GET, up_bytes=5), rule("two", "api.test")],
        [rule("one", "api.test", paths=("/a",)), rule("two", "api.test", paths=("/b",))],
        [rule("one", "api.test", DENY, ports=(), paths=("/a",)), rule("two", "api.test")],
        [rule("one", "api.test", methods=GET), rule("two", "api.test", methods=frozenset({"PUT"}))],
        [rule("one", "api.test", mode=Mode.PASSTHROUGH)],
        [rule("one", "**.zip", DENY, ports=())],
        [
            rule("one", "8.8.0.0/16"),
            rule("two", "2600:1f00::/32", methods=GET),
            rule("x", "10.0.0.0/8", DENY, ports=()),
        ],
        [rule("one", "api.test", DENY, ports=(), paths=("/x",)), rule("two", "api.test", paths=("/x%2Fy",))],
        [rule("one", "api.test", ports=(8443,)), rule("two", "api.test", websocket=True)],
        [rule("one", "api.test"), rule("two", "api.test", paths=("/x%2Fy",))],
        [rule("one", "*.api.test", DENY, ports=(), layer=OPERATOR), rule("two", "api.test")],
    ],
)
def test_what_is_as_meant_is_not_mentioned(rules: list[EgressRule]) -> None:
    assert lint(rules) == []


def test_what_is_said_is_true_of_the_matcher() -> None:
    """Over all pairs of some rules: what never decides does not, and what adds nothing changes no answer."""
    some = [
        rule("a", host, answer, layer=layer, methods=methods, ports=(443,))
        for host in ("a.test", "*.test", "**.test", "*")
        for answer in Verdict
        for layer in (OPERATOR, Layer.USER)
        for methods in (frozenset[str](), GET)
    ]
    hosts, methods = ("a.test", "b.a.test", "test", "x.org"), ("GET", "PUT")
    requests = [Request(host, 443, True, method, "/") for host in hosts for method in methods]
    said = {"never decides": 0, "adds nothing": 0}
    for one, other in product(some, some):
        pair = {"a": one, "b": replace(other, id="b")}
        whole = compile_rules(pair.values())
        decisions = [whole.request(each) for each in requests]
        for line in lint(pair.values()):
            name = line[0]
            if "never decides" in line:
                assert name not in {each.rule.id for each in decisions if each.rule}, (pair, line)
            elif "adds nothing" in line:
                alone = compile_rules(each for key, each in pair.items() if key != name)
                assert [alone.request(each).answer for each in requests] == [each.answer for each in decisions]
            for words in said:
                said[words] += words in line
    assert min(said.values()) > 50


MANY = 1000  # of one layer: storing.MAX_RULES


def _many(kind: str) -> list[EgressRule]:
    """The most expensive that a user and an operator may write."""
    if kind == "same":
        return [rule(f"r{n}", "api.test", up_bytes=n) for n in range(MANY)]
    if kind == "paths":
        return [rule(f"r{n}", "api.test", paths=("/same", f"/{n}/a", f"/{n}/b", f"/{n}/c")) for n in range(MANY)]
    if kind == "layers":
        theirs = [rule(f"o{n}", f"**.{n}.test", DENY, ports=(), layer=OPERATOR) for n in range(MANY)]
        return [*theirs, rule("o", "*", DENY, layer=OPERATOR), *(rule(f"r{n}", f"a{n}.test") for n in range(MANY))]
    theirs = [rule(f"o{n}", f"10.{n // 256}.{n % 256}.0/24", layer=OPERATOR) for n in range(MANY)]
    return [*theirs, *(rule(f"r{n}", f"10.9.{n // 256}.{n % 256}/32") for n in range(MANY))]


@pytest.mark.parametrize("kind", ["same", "paths", "layers", "ranges"])
def test_many_rules_are_not_compared_each_with_each(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks makes everybody wait: a million pairs were 12 seconds."""
    looks = 0

    def counted(method: Any) -> Any:
        def look(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            return method(*args)

        return look

    monkeypatch.setattr(linting, "_includes", counted(linting._includes))
    monkeypatch.setattr(HostPattern, "within", counted(HostPattern.within))
    lines = lint(_many(kind))
    assert looks < 5 * linting.MAX_LOOKS  # `meets` asks two ways, twins too
    assert lines[-1].startswith("not all of these")
    few = lint(_many(kind)[:20])
    assert not any(line.startswith("not all") for line in few)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_quiet(name: str) -> None:
    assert lint(preset(name if PRESETS[name].hosts else f"{name}:git.test")) == []
