"""Rules, explanations and the log on a terminal: whole, and obeyed by no terminal."""

from __future__ import annotations

import shlex
from typing import Any

from ringfence.cli import egress_words
from ringfence.cli.gate_command import _then, how, lines

RULE: dict[str, Any] = {
    "id": "rul_1", "layer": "user", "answer": "allow", "host": "a.test", "ports": [443], "methods": [], "paths": [],
    "query": [], "plain": False, "mode": "intercept", "websocket": False, "forward_literal": False,
    "up_bytes": 1, "down_bytes": 1, "note": "",
}  # fmt: skip


def test_a_rule() -> None:
    assert egress_words.rule(RULE) == "rul_1 allow a.test"
    more = {"ports": [80, 443], "methods": ["GET", "HEAD"], "paths": ["/x"], "query": [["k", "v"]], "plain": True}
    odd = RULE | more | {"mode": "passthrough", "note": "why \x1b[2K"}
    assert egress_words.rule(odd) == (
        "rul_1 allow a.test port 80,443 GET/HEAD /x ?k=v passthrough plain  (why \\x1b[2K)"
    )


def test_the_command_that_would_allow_it_can_be_typed() -> None:
    missing = RULE | {"ports": [8443], "methods": ["POST"], "paths": ["/a b'c"], "plain": True, "websocket": True}
    words = shlex.split(egress_words.command(missing, "al ice"))
    assert words == [
        "ringfence", "egress", "allow", "al ice", "a.test", "--port", "8443", "--method", "POST", "--path", "/a b'c",
        "--plain", "--websocket",
    ]  # fmt: skip


def test_an_explanation() -> None:
    binding = {
        "id": "bnd_1", "use": "placeholder", "positions": [{"header": "authorization", "scheme": "bearer", "query": ""}],
    }  # fmt: skip
    found = {
        "answer": "allow", "why": "rul_1 allows it", "mode": "intercept", "connection": "allow",
        "canonical": {"host": "a.test", "port": 443, "tls": True, "method": "GET", "path": "/x\u202e"},
        "layers": [{"layer": "tenant", "answer": None, "rule": None}, {"layer": "user", "answer": "allow", "rule": RULE}],
        "credentials": [{"name": "gh", "binding": binding}], "notes": ["a note"], "missing": None,
    }  # fmt: skip
    rows = egress_words.explained(found, "alice")
    assert rows == [
        "ALLOW    rul_1 allows it",
        "asked    GET a.test:443/x\\u202e",
        "connect  allow",
        "layer    tenant: says nothing",
        "layer    user: allow by rul_1 allow a.test",
        "secret   gh: takes the placeholder's place in authorization (bearer), by bnd_1",
        "note     a note",
    ]
    bare = egress_words.explained(found | {"credentials": []}, "alice")
    assert "secret   none may be used here" in bare
    denied = egress_words.explained(found | {"answer": "deny", "credentials": [], "missing": RULE}, "alice")
    assert denied[-1] == "to allow: ringfence egress allow alice a.test"


def test_the_log_is_in_order_and_harmless() -> None:
    traffic = {"at": "2026-01-01T00:00:02", "host": "a\x1b[2K.test", "verdict": "denied", "sent": 1, "received": 2048}
    row = {
        "at": "2026-01-01T00:00:01", "lane": "act", "action": "egress.finding", "subject": "box:b",
        "details": {"kind": "placeholder_foreign", "host": "b.test", "version": None},
    }  # fmt: skip
    rows = egress_words.log({"traffic": [traffic], "rows": [row]})
    assert rows == [
        "2026-01-01T00:00:01  act       egress.finding kind=placeholder_foreign host=b.test",
        "2026-01-01T00:00:02  traffic   denied       a\\x1b[2K.test  up 1B, down 2.0KiB",
    ]


def test_a_new_binding_is_told_by_its_host() -> None:
    details = {"name": "gh", "binding": {"id": "", "host": "api.test", "positions": [{}]}}
    row = {
        "at": "2026-01-01T00:00:01Z",
        "lane": "act",
        "action": "secret.bind",
        "subject": "user:u",
        "details": details,
    }
    [line] = egress_words.log({"traffic": [], "rows": [row]})
    assert line == "2026-01-01T00:00:01  act       secret.bind  name=gh host=api.test"


def test_a_hold_among_the_gates() -> None:
    hold: dict[str, Any] = {
        "gate": "hld_1", "kind": "hold", "state": "open", "user": "alice", "answerer": "alice", "thread": "", "run": "",
        "n": 0, "tool": "egress", "answer": None, "answered_by": None, "answered_via": "", "answered_at": None,
        "used_at": None, "reason": "", "created_at": "2026-01-01T00:00:00Z", "expires_at": None,
        "shown": {"host": "a.test", "waiting": 1}, "obligations": {}, "equal": 0, "means": "a wall", "odd": [],
        "call": 'egress {\n  "answer": "allow"\n}',
    }  # fmt: skip
    assert how(hold) == [
        "answer: ringfence approve hld_1",
        "    or: ringfence approve hld_1 --always",
        "    or: ringfence deny hld_1",
    ]
    assert '  "answer": "allow"' in lines(hold)
    for said, words in (
        ("once", "what has waited longest goes out"),
        ("always", "what waited goes out; the rule is added"),
        ("deny", "what waited is refused"),
    ):
        assert _then({**hold, "state": "allowed", "answer": said}) == words
