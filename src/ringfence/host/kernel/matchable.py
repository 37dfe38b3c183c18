"""Whether a rule of the policy can match any call: a deny that names nothing is a hole that looks like a wall. Pure.

It must never refuse a rule that some call of the tools below can match.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ringfence.host.kernel.policy import Rule, Scalar

WEBHOOK = "http.webhook"
# Names of the arguments by tool: those of the native loop, and what the host carries out.
TOOLS: Mapping[str, frozenset[str]] = {
    "shell": frozenset({"command", "cwd", "timeout"}),
    "read": frozenset({"path", "offset", "length"}),
    "write": frozenset({"path", "text"}),
    "edit": frozenset({"path", "old", "new"}),
    "list": frozenset({"path"}),
    "search": frozenset({"text", "path"}),
    WEBHOOK: frozenset({"name", "body"}),
}


def check_rule(rule: Rule) -> None:
    """ValueError: what is allowed, where it can match nothing."""
    tools = [name for name in TOOLS if fnmatchcase(name, rule.tool)]
    if not tools:
        near = difflib.get_close_matches(rule.tool.lower(), TOOLS, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"tables whose tool, {rule.tool!r}, matches one of {', '.join(TOOLS)}{hint}")
    for path, value in rule.where:
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"tables whose where, {path!r}, is a number: nothing is equal to {value}")
    meant = [tool for tool in tools if all(_is_argument(tool, path, value) for path, value in rule.where)]
    if not meant:
        paths = ", ".join(repr(path) for path, _ in rule.where)
        raise ValueError(f"tables whose where ({paths}) names arguments of one tool that it matches: {_known(tools)}")
    for path in rule.obligations.redact:
        if not any(_is_redactable(tool, path) for tool in meant):
            raise ValueError(
                f"tables whose redact, {path!r}, can be replaced in the call: {_known(meant, redact=True)}"
            )


def strange_place(rules: Iterable[Rule], places: Iterable[str]) -> tuple[int, str]:
    """(number of the first rule from 1, the `name` in it) that matches none of the declared places, though it can match
    nothing but http.webhook; (0, "") when there is none."""
    declared = tuple(places)
    for number, rule in enumerate(rules, 1):
        for path, value in rule.where:
            if path == "name" and not any(fnmatchcase(place, str(value)) for place in declared):
                return number, str(value)
    return 0, ""


def _is_argument(tool: str, path: str, value: Scalar) -> bool:
    head, _, below = path.partition(".")
    if head not in TOOLS[tool]:
        return False
    if tool != WEBHOOK:
        return not below  # no argument of the native loop holds others
    return bool(below) if head == "body" else not below and isinstance(value, str)


def _is_redactable(tool: str, path: str) -> bool:
    """Of a webhook what is in its body: without its name, or a body that is JSON, the call is none."""
    head, _, below = path.partition(".")
    return head == "body" and bool(below) if tool == WEBHOOK else head in TOOLS[tool] and not below


def _known(tools: Iterable[str], *, redact: bool = False) -> str:
    said = []
    for tool in tools:
        names = {name for name in TOOLS[tool] if name != "body" and not (redact and tool == WEBHOOK)}
        said.append(f"{tool} has {', '.join([*sorted(names), *(['body.…'] if tool == WEBHOOK else [])])}")
    return "; ".join(said)
