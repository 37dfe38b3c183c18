"""What the operator declares in lists of tables of ringfence.toml: [[webhook]] and [[policy]]. Pure.

Strict, each error with what is allowed: a slip in a policy is a hole. Opens nothing; a secret is a path here.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ringfence.host.kernel.matchable import check_rule
from ringfence.host.kernel.policy import Obligations, Rule, Scalar, Verdict

MAX_WEBHOOKS = 64
MAX_RULES = 256
MAX_URL = 2048
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_TOOL = re.compile(r"[A-Za-z0-9_.:*?\[\]!-]{1,64}\Z")
_PATH = re.compile(r"[^\s.]{1,64}(\.[^\s.]{1,64}){0,15}\Z")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where `http.webhook` may send something."""

    name: str
    url: str = field(repr=False)  # its query may hold a secret
    secret_file: str  # path of the key that signs what is sent
    lookup_url: str = field(repr=False)  # asked with ?key=... whether a key was done


def webhooks(value: object) -> tuple[Webhook, ...]:
    """ValueError: what is allowed."""
    known = {"name": _name, "url": url, "secret_file": _file, "lookup_url": url}
    found = tuple(Webhook(**fields_of(raw, known, known)) for raw in tables_of(value, MAX_WEBHOOKS, "webhook"))
    names = [each.name for each in found]
    if len(set(names)) != len(names):
        raise ValueError("of different names")
    return found


def rules(value: object) -> tuple[Rule, ...]:
    """ValueError: what is allowed."""
    return tuple(_rule(raw) for raw in tables_of(value, MAX_RULES, "policy"))


def _rule(raw: Mapping[str, Any]) -> Rule:
    said = fields_of(raw, _RULE, ("tool", "answer"))
    owed = {name: said[name] for name in ("redact", "cap_bytes", "notify_owner", "expire_seconds") if name in said}
    rule = Rule(said["tool"], said["answer"], said.get("where", ()), Obligations(**owed))
    check_rule(rule)
    return rule


def rule_from_json(raw: Mapping[str, Any]) -> Rule:
    """What Rule.to_json made."""
    return Rule(raw["tool"], Verdict(raw["answer"]), tuple(raw["where"].items()), Obligations.from_json(raw))


def tables_of(value: object, most: int, name: str) -> list[Mapping[str, Any]]:
    """The tables [[name]]. ValueError: what is allowed."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, Mapping) for each in value) or len(value) > most:
        raise ValueError(f"at most {most} tables [[{name}]]")
    return list(value)


def fields_of(
    raw: Mapping[str, Any], known: Mapping[str, Callable[[object], Any]], needed: Iterable[str]
) -> dict[str, Any]:
    """What stands in a table, each field checked by its function of `known`. ValueError: what is allowed."""
    for name in raw:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            raise ValueError(f"tables without {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
    for name in needed:
        if name not in raw:
            raise ValueError(f"tables with {name}")
    found = {}
    for name, value in raw.items():
        try:
            found[name] = known[name](value)
        except ValueError as error:
            raise ValueError(f"tables whose {name} is {error}") from None
    return found


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise ValueError("1 to 64 of a-z 0-9 _ -")
    return value


def url(value: object) -> str:
    """ValueError: neither https nor http to this very host; with a name, a password or a fragment in it."""
    allowed = "an https:// URL, or http:// to a loopback address, without name, password and fragment"
    if not isinstance(value, str) or len(value) > MAX_URL or not value.isascii() or not value.isprintable():
        raise ValueError(allowed)
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(allowed) from None
    plain = parts.scheme == "http" and host is not None and _is_loopback(host)
    if not host or " " in value or "@" in parts.netloc or parts.fragment or port == 0:
        raise ValueError(allowed)
    if parts.scheme != "https" and not plain:
        raise ValueError(allowed)
    return value


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _file(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or ".." in value.split("/") or "\0" in value:
        raise ValueError("an absolute path without ..")
    return value


def _tool(value: object) -> str:
    if not isinstance(value, str) or not _TOOL.match(value):
        raise ValueError("a name of a tool, or a pattern with * and ?")
    return value


def _answer(value: object) -> Verdict:
    try:
        return Verdict(str(value))
    except ValueError:
        raise ValueError("allow, deny or ask") from None


def _where(value: object) -> tuple[tuple[str, Scalar], ...]:
    if not isinstance(value, Mapping) or not all(isinstance(item, str | int | float | bool) for item in value.values()):
        raise ValueError("a table of argument paths and values, like { name = 'pay*' }")
    return tuple((_path(path), item) for path, item in value.items())


def _path(value: object) -> str:
    if not isinstance(value, str) or not _PATH.match(value):
        raise ValueError("a path of an argument like body.card")
    return value


def _paths(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list of paths of arguments")
    return tuple(_path(each) for each in value)


def _whole(value: object) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 31:
        raise ValueError("a whole number above 0")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


_RULE: Mapping[str, Callable[[object], Any]] = {
    "tool": _tool,
    "answer": _answer,
    "where": _where,
    "redact": _paths,
    "cap_bytes": _whole,
    "notify_owner": _flag,
    "expire_seconds": _whole,
}
