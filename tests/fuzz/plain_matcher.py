"""Rules decided without any index, for each request anew, from the words of `rules.py` and `paths.py`: what the matcher must say.

It shares no code with the matcher but the nouns. Slow on purpose; must never be used but to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address, ip_network
from urllib.parse import unquote_plus

from ringfence.host.kernel.outward.rules import EgressRule, Request, Verdict

Segments = list[tuple[str, str]]
"""(what divides it from the one before: `/` or `%2F`, text)."""
ORDER = (Verdict.DENY, Verdict.ALLOW, Verdict.ASK)
_METADATA = ("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "metadata.google.internal")  # those of the inputs
_INTERNAL = ("10.1.2.3", "10.2.0.1", "fd00::1")  # those of the inputs too: who said yes would let nothing out


def decided(rules: Iterable[EgressRule], asked: Request) -> tuple[Verdict, frozenset[str]]:
    """(answer, ids of the rules of which one may be named for it)."""
    if asked.host in _METADATA:
        return Verdict.DENY, frozenset()
    rules = list(rules)
    layers = [
        _layer([each for each in rules if each.layer is layer], asked) for layer in {each.layer for each in rules}
    ]
    for answer in ORDER:
        said = [names for verdict, names in layers if verdict is answer]
        if said:
            useless = answer is Verdict.ASK and asked.host in _INTERNAL
            return Verdict.DENY if useless else answer, frozenset().union(*said)
    return Verdict.DENY, frozenset()


def _layer(rules: Sequence[EgressRule], asked: Request) -> tuple[Verdict | None, frozenset[str]]:
    matching = [(_closeness(rule, asked.host) or (), rule) for rule in rules if matches(rule, asked)]
    closest = [rule for closeness, rule in matching if closeness == max(near for near, _ in matching)]
    for answer in ORDER:
        names = frozenset(rule.id for rule in closest if rule.answer is answer)
        if names:
            return answer, names
    return None, frozenset()


# --- hosts ------------------------------------------------------------------------------------------------------------


def _closeness(rule: EgressRule, host: str) -> tuple[int, ...] | None:
    """How close its pattern is to this host; None: it is of others."""
    pattern = rule.host
    if _is_address(host):
        if pattern == "*":
            return (0,) if rule.answer is Verdict.DENY else None
        return (
            (1, ip_network(pattern).prefixlen) if "/" in pattern and ip_address(host) in ip_network(pattern) else None
        )
    if "/" in pattern:
        return None
    labels = r"[^.]+" if not pattern.startswith("**") else r"[^.]+(\.[^.]+)*"
    if pattern == "*":
        return (0,)
    if not pattern.startswith("*"):
        return (2,) if pattern == host else None
    below = pattern.lstrip("*").lstrip(".")
    if re.fullmatch(labels + r"\." + re.escape(below), host) is None:
        return None
    return (1, below.count(".") + 1, pattern.startswith("*."))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# --- the rest ---------------------------------------------------------------------------------------------------------


def matches(rule: EgressRule, asked: Request) -> bool:
    """Whether the rule is about this request."""
    refuses = rule.answer is Verdict.DENY
    return (
        _closeness(rule, asked.host) is not None
        and (asked.port in rule.ports or (refuses and not rule.ports))
        and (asked.tls or rule.plain or refuses)
        and (not rule.methods or asked.method in rule.methods)
        and (not asked.websocket or rule.websocket or refuses)
        and _query(rule, asked.query)
        and (_refused_path(rule, asked.path) if refuses else _granted_path(rule, asked.path))
    )


def _query(rule: EgressRule, query: str) -> bool:
    parts = query.split("&")
    read = [tuple(_careless(half) for half in each.partition("=")[::2]) for part in parts for each in part.split(";")]
    for name, value in rule.query:
        if rule.answer is Verdict.DENY:
            if (name.casefold(), value.casefold()) not in read:
                return False
        elif [each for each, _ in read].count(name.casefold()) != 1 or parts.count(f"{name}={value}") != 1:
            return False
    return True


def _careless(text: str) -> str:
    """As a server reads it that knows neither case nor blanks nor what stands behind a NUL at the end."""
    return re.sub(r"^[\s\0]+|[\s\0]+\Z", "", unquote_plus(text)).casefold()


def _granted_path(rule: EgressRule, path: str) -> bool:
    """Every path, but one with an encoded slash only where that is named."""
    if not rule.paths:
        return "%2F" not in path
    return any(_fits(_pattern(pattern), _segments(path)) for pattern in rule.paths)


def _refused_path(rule: EgressRule, path: str) -> bool:
    if not rule.paths or "/**" in rule.paths:
        return True
    readings = (path, path.replace("%2F", "/"))
    return any(
        _fits(_leniently(_pattern(pattern)), _leniently(_segments(reading)))
        for pattern in rule.paths
        for reading in readings
    )


def _segments(path: str) -> Segments:
    pieces = re.split(r"(/|%2F)", path)
    return list(zip(pieces[1::2], pieces[2::2], strict=True))


ONE, MANY = "\0one", "\0many"


def _pattern(text: str) -> Segments:
    wild = {"*": ONE, "**": MANY}
    return [(divider, wild.get(text, text.replace("%2A", "*"))) for divider, text in _segments(text)]


def _fits(pattern: Segments, path: Segments) -> bool:
    if not pattern:
        return not path
    (divider, wanted), rest = pattern[0], pattern[1:]
    if wanted == MANY and divider == "/":
        return _fits(rest, path) or (bool(path) and path[0][0] == "/" and _fits(pattern, path[1:]))
    if not path or path[0][0] != divider:
        return False
    there = path[0][1]
    return (bool(there) if wanted == ONE else there == wanted) and _fits(rest, path[1:])


def _leniently(path: Segments) -> Segments:
    """What a server makes of it that drops parameters and ends, and knows no case."""
    read = [(divider, text if text in (ONE, MANY) else _folded(text)) for divider, text in path]
    while len(read) > 1 and not read[-1][1]:
        read.pop()
    return read


def _folded(text: str) -> str:
    if text in ("*", "**"):
        return text
    kept = re.sub(r"(\.|%20)+$", "", text.partition("%3B")[0]).casefold()
    return kept or text
