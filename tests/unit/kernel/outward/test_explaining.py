"""What people are told of a request before they try it: canonical, by layer, with the rule and the credentials."""

from __future__ import annotations

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.credentials import Binding, Use
from ringfence.host.kernel.outward.explaining import explain, read
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Mode, Request, Verdict

ALLOW, DENY, ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
NONE = compile_rules([])


@pytest.mark.parametrize(
    ("method", "url", "wanted"),
    [
        ("get", "https://API.test./a%62c?q=1#f", Request("api.test", 443, True, "GET", "/abc", "q=1")),
        ("GET", "HTTPS://api.test", Request("api.test", 443, True, "GET", "/")),
        ("GET", "https://api.test?q", Request("api.test", 443, True, "GET", "/", "q")),
        ("GET", "http://api.test:8080/", Request("api.test", 8080, False, "GET", "/")),
        ("GET", "wss://api.test/s", Request("api.test", 443, True, "GET", "/s", websocket=True)),
        ("CONNECT", "https://api.test/ignored/../x", Request("api.test", 443, True)),
        ("POST", "https://[::ffff:1.2.3.4]/", Request("1.2.3.4", 443, True, "POST", "/")),
    ],
)
def test_canonical(method: str, url: str, wanted: Request) -> None:
    assert read(method, url, NONE) == wanted


@pytest.mark.parametrize(
    ("method", "url"),
    [
        ("TRACE", "https://api.test/"),
        ("GET", "api.test/"),
        ("GET", "ftp://api.test/"),
        ("GET", "https://user:pw@api.test/"),
        ("GET", "https://api.test/a/../b"),
        ("GET", "https://api.test/a\nb"),
        ("GET", "https://api.test\t/"),
        ("GET", "https://api.test/\u00e9"),
        ("GET", "https://api.test/\ud800"),
        ("GET", "https:///"),
        ("GET", "https://0x7f.1/"),
    ],
)
def test_what_no_worker_would_take(method: str, url: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(method, url, NONE)
    assert caught.value.remedy
    assert caught.value.http_status == 422


def test_each_layer_by_itself() -> None:
    rules = [
        EgressRule("i", DENY, "api.test", (), methods=frozenset({"DELETE"}), layer=Layer.INSTALLATION),
        EgressRule("u", ALLOW, "api.test"),
    ]
    found = explain(rules, [], "DELETE", "https://api.test/")
    assert [(each.layer, each.answer, each.rule and each.rule.id) for each in found.layers] == [
        (Layer.INSTALLATION, DENY, "i"),
        (Layer.USER, ALLOW, "u"),
    ]
    assert (found.decision.answer, found.connection.answer) == (DENY, ALLOW)
    other = explain(rules, [], "GET", "https://api.test/")
    assert [(each.answer, each.rule and each.rule.id) for each in other.layers] == [(None, None), (ALLOW, "u")]


def test_credentials_by_where_they_hold() -> None:
    rules = [EgressRule("u", ALLOW, "api.test", (80, 443), plain=True)]
    mine = Binding("b1", "c1", "api.test", (443,), paths=("/v1/**",))
    mounted = Binding("b2", "c2", "api.test", use=Use.MOUNTED)
    injected = Binding("b3", "c3", "*.api.test", use=Use.INJECT)
    found = explain(rules, [mine, mounted, injected], "GET", "https://api.test/v1/x")
    assert [each.id for each in found.bindings] == ["b1"]
    assert explain(rules, [mine], "GET", "https://api.test/v2").bindings == ()
    plain = explain(rules, [mine], "GET", "http://api.test/v1/x")
    assert plain.bindings == () and any("without TLS" in note for note in plain.notes)
    both = explain([EgressRule("u", ALLOW, "a.api.test")], [injected], "GET", "https://a.api.test/")
    assert [each.id for each in both.bindings] == ["b3"] and any("injected" in note for note in both.notes)


def test_passthrough_sees_no_request() -> None:
    rules = [EgressRule("u", ALLOW, "api.test", mode=Mode.PASSTHROUGH)]
    found = explain(rules, [Binding("b", "c", "api.test")], "POST", "https://api.test/x")
    assert (found.decision.mode, found.bindings) == (Mode.PASSTHROUGH, ())
    assert any("unread" in note for note in found.notes)


def test_what_no_rule_can_change_is_said() -> None:
    everything = [EgressRule("u", ALLOW, "0.0.0.0/0")]
    inside = explain(everything, [], "GET", "https://10.1.2.3/")
    assert any("private (RFC 1918)" in note for note in inside.notes)
    metadata = explain(everything, [], "GET", "https://169.254.169.254/")
    assert (metadata.decision.answer, metadata.decision.missing) == (DENY, None)
    odd = explain([], [], "GET", "https://xn--pple-43d.com/")
    assert any("xn--" in note for note in odd.notes)
