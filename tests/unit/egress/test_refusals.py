"""What a box is told: JSON with a code, the missing rule and a remedy, in a response that nothing of it can break."""

from __future__ import annotations

import json

import h11
import pytest

from ringfence.host.egress.refusals import REMEDY, STATUS, Code, Refusal, Where, response, rule_json, verdict
from ringfence.host.kernel.outward.rules import EgressRule, Mode, Verdict


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(Code)
    assert set(REMEDY) <= set(Code)


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("bodyless", [False, True])
def test_the_response_is_one_to_any_client(code: Code, bodyless: bool) -> None:
    rule = EgressRule("rul_1", Verdict.ALLOW, "api.test", methods=frozenset({"GET"}), paths=("/x",))
    refusal = Refusal(code, "why", rule=rule)
    data = response(refusal, Where("api.test", "GET", '/x"\r\nX-Evil: \xff'), close=True, bodyless=bodyless)
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="HEAD" if bodyless else "GET", target="/", headers=[("Host", "a")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    head = client.next_event()
    assert isinstance(head, h11.Response)
    assert head.status_code == STATUS[code]
    headers = dict(head.headers)
    assert headers[b"x-egress-reason"] == str(code).encode()
    assert (headers.get(b"retry-after") == b"1") is (STATUS[code] == 429)
    assert b"x-evil" not in headers
    if not bodyless:
        body = client.next_event()
        assert isinstance(body, h11.Data)
        error = json.loads(bytes(body.data))["error"]
        assert set(error) == {"code", "message", "remedy", "host", "method", "path", "rule"}
        shown = {"answer": "allow", "host": "api.test", "ports": [443], "methods": ["GET"], "paths": ["/x"]}
        assert error["rule"] == shown
    assert isinstance(client.next_event(), h11.EndOfMessage)
    assert not client.trailing_data[0]


def test_nobody_is_sent_for_a_rule_that_is_not_shown() -> None:
    missing = EgressRule("rul_1", Verdict.ALLOW, "api.test")
    assert "the rule shown" in Refusal(Code.DENIED, "why", rule=missing).remedy
    assert "the rule shown" not in Refusal(Code.DENIED, "why").remedy
    assert Refusal(Code.MALFORMED, "why").remedy


def test_git_shows_the_reason_to_whoever_pushes() -> None:
    """D69: git prints a body of text/plain alone."""
    for path, kind in (("/team/fence.git/info/refs", b"text/plain"), ("/info/refs/x", b"application/json")):
        data = response(Refusal(Code.DENIED, "why"), Where("git.test", "GET", path), close=True)
        assert b"\r\nContent-Type: %s\r\n" % kind in data


def test_a_rule_shows_what_it_says_and_no_more() -> None:
    assert rule_json(None) is None
    rule = EgressRule(
        "r", Verdict.ASK, "a", (1,), plain=True, query=(("a", "b"),), mode=Mode.PASSTHROUGH, websocket=True
    )
    assert rule_json(rule) == {
        "answer": "ask",
        "host": "a",
        "ports": [1],
        "query": [["a", "b"]],
        "plain": True,
        "websocket": True,
        "mode": "passthrough",
    }


def test_what_failed_is_not_counted_as_denied() -> None:
    assert [verdict(Refusal(code, "")) for code in (Code.DENIED, Code.ASK_PENDING, Code.UPSTREAM)] == [
        "deny",
        "ask",
        "allow",
    ]
