"""Fuzz target: the matcher decides as the plain reading of its words does, and a deny more never lets more through.

An input is a list of decisions, a byte each: a few rules, and a request. How to run it: tests/fuzz/running.py.
"""

from __future__ import annotations

import random

from ringfence.host.kernel.outward.authority import Malformed
from ringfence.host.kernel.outward.checking import check_rule
from ringfence.host.kernel.outward.matching import compile_rules
from ringfence.host.kernel.outward.rules import Decision, EgressRule, Layer, Mode, Request, Verdict
from ringfence.host.kernel.outward.targets import canonical
from tests.fuzz.plain_matcher import decided
from tests.fuzz.running import Choices, Target

_ALLOW, _DENY = Verdict.ALLOW, Verdict.DENY
HOSTS = (
    *("a.test", "b.a.test", "a.test", "b.a.test", "c.b.a.test", "xa.test", "test", "10.1.2.3", "10.2.0.1", "fd00::1"),
    *("169.254.169.254", "metadata.google.internal", "93.184.216.34"),
)
PATTERNS = (
    *(
        "a.test",
        "b.a.test",
        "*.a.test",
        "**.a.test",
        "a.test",
        "b.a.test",
        "**.test",
        "*",
        "*.a.test",
        "**.a.test",
        "*.test",
        "**.test",
        "*.b.a.test",
        "**.b.a.test",
        "*",
        "test",
    ),
    *("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "0.0.0.0/0", "fd00::/8", "::/0"),
)
SEGMENTS = ("a", "b", "A", "", "a.", "a%20", "b%3Bx", "%3Bx", "%2A", "%C3%A9", "a..%20.", "c", "*x", "**")
DIVIDERS = ("/", "/", "/", "/", "%2F")
GLOBS = (*SEGMENTS[:10], "*", "*", "**", "**")
QUERIES = ("", "s=1", "s=2", "s=1&s=2", "%73=1", "t=1;s=1", "s=1&t", "s", "S=1", "%20s=1%00", "S=2&s=1")
WANTED: tuple[tuple[tuple[str, str], ...], ...] = (*[()] * 4, (("s", "1"),), (("s", "1"), ("t", "")))
PORTS = ((443,), (80, 443), (8443,))


def _path(choices: Choices, words: tuple[str, ...]) -> str:
    count = choices.number(4)
    return "/" + "".join((choices.of(DIVIDERS) if number else "") + choices.of(words) for number in range(count + 1))


def _canonical(choices: Choices) -> str:
    """A path that `targets.py` lets through."""
    try:
        return canonical(_path(choices, SEGMENTS).replace("*", "%2A"), encoded_slash=True)
    except Malformed:
        return "/a"


def _rule(choices: Choices, number: int) -> EgressRule:
    answer = choices.of((_ALLOW, _ALLOW, _ALLOW, Verdict.ASK, Verdict.ASK, _DENY))
    refuses = answer is _DENY
    paths = tuple(_glob(choices) for _ in range(choices.of((0, 0, 0, 1, 2))))
    methods = choices.of((*[frozenset[str]()] * 4, frozenset({"GET"}), frozenset({"POST", "PUT"})))
    query = choices.of(WANTED)
    host = choices.of(PATTERNS)
    plain, websocket = (not refuses and choices.number(2) > 0 for _ in range(2))
    unread = not (paths or methods or query or refuses or plain or websocket or "/" in host)
    return EgressRule(
        f"rul_{number}",
        answer,
        host,
        choices.of((*PORTS, ()) if refuses else PORTS),
        plain=plain,
        methods=methods,
        paths=paths,
        query=query,
        mode=Mode.PASSTHROUGH if unread and choices.number(2) else Mode.INTERCEPT,
        websocket=websocket,
        layer=choices.of((Layer.USER, Layer.USER, *Layer)),
    )


def _glob(choices: Choices) -> str:
    """A pattern that is one."""
    text = _path(choices, GLOBS)
    slashes = text.replace("%2F", "/")
    return text if "//" not in slashes and "%2F**" not in text else "/**/a"


def one_input(data: bytes) -> bool:
    choices = Choices(data)
    rules = [_rule(choices, number) for number in range(choices.number(12))]
    more = _rule(choices, len(rules))
    asked = Request(
        choices.of(HOSTS),
        choices.of((443, 443, 443, 443, 80, 80, 8443, 22)),
        choices.number(6) < 5,
        choices.of(("GET", "POST", "DELETE")),
        _canonical(choices),
        choices.of(QUERIES),
        choices.number(6) == 5,
    )
    decision = compile_rules(rules).request(asked)
    _as_written(rules, asked, decision)
    _connection(rules, asked, decision)
    _with_another(rules, more, asked, decision)
    return decision.answer is not _DENY


def _as_written(rules: list[EgressRule], asked: Request, decision: Decision) -> None:
    answer, names = decided(rules, asked)
    assert decision.answer is answer, (rules, asked)
    assert (decision.rule.id if decision.rule is not None else None) in (names or {None}), (rules, asked)
    backwards = compile_rules(reversed(rules)).request(asked)
    assert backwards.answer is answer


def _connection(rules: list[EgressRule], asked: Request, decision: Decision) -> None:
    connection = compile_rules(rules).connection(asked.host, asked.port, asked.tls)
    assert decision.answer is _DENY or connection.answer is not _DENY
    for each in (decision, connection):
        assert each.missing is not None or each.answer is not Verdict.ASK
        assert each.missing is None or check_rule(each.missing) == each.missing, "nobody could add it"
    if connection.mode is Mode.PASSTHROUGH and not asked.websocket and "%2F" not in asked.path:
        assert decision.answer is connection.answer, "unread bytes may be a request that is decided otherwise"


def _with_another(rules: list[EgressRule], more: EgressRule, asked: Request, decision: Decision) -> None:
    after = compile_rules([*rules, more]).request(asked)
    if more.answer is _DENY:
        assert after.answer in (_DENY, decision.answer), "a deny more has let something through"
    if more.answer is _ALLOW:
        assert after.answer in (_ALLOW, decision.answer), "an allow more has taken something away"


def mutated(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(60, 180))


TARGET = Target(one_input, mutated)

if __name__ == "__main__":
    TARGET.main()
