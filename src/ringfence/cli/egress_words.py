"""Rules, explanations and lines of the log in words for people. What it returns is safe to show on a terminal."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ringfence.cli import say_it
from ringfence.cli.say_it import plain, size

Rule = Mapping[str, Any]
_FLAGS = ("plain", "websocket", "forward_literal")
# Of a row's details, those that say most, in this order.
_TOLD = ("name", "kind", "host", "method", "path", "why", "reason", "outcome", "status", "binding", "version", "run")


def rule(found: Rule) -> str:
    """One line, with its id."""
    parts = [str(found["id"]), str(found["answer"]), str(found["host"]), *_limits(found)]
    note = f"  ({found['note']})" if found["note"] else ""
    return plain(" ".join(parts) + note)


def _limits(found: Rule) -> Iterator[str]:
    if found["ports"] and list(found["ports"]) != [443]:
        yield "port " + ",".join(map(str, found["ports"]))
    if found["methods"]:
        yield "/".join(found["methods"])
    yield from found["paths"]
    yield from (f"?{name}={value}" for name, value in found["query"])
    if found["mode"] != "intercept":
        yield str(found["mode"])
    yield from (name for name in _FLAGS if found[name])


def table(rules: Iterable[Rule]) -> None:
    rows = [
        (each["id"], each["layer"], each["answer"], each["host"], " ".join(_limits(each)), each["note"])
        for each in rules
    ]
    say_it.table(("ID", "LAYER", "ANSWER", "HOST", "LIMITS", "NOTE"), rows)


def odd(lines: Iterable[str]) -> None:
    for each in lines:
        say_it.note(f"note: {plain(each)}")


def explained(found: Mapping[str, Any], user: str) -> list[str]:
    """The whole of `egress test`, a fact a line."""
    asked = found["canonical"]
    where = f"{asked['host']}:{asked['port']}{asked['path']}"
    rows = [
        f"{found['answer'].upper():<9}{found['why']}",
        f"asked    {asked['method']} {where}{'' if asked['tls'] else ' without TLS'}",
        f"connect  {found['connection']}",
    ]
    for each in found["layers"]:
        said = "says nothing" if each["answer"] is None else f"{each['answer']} by {rule(each['rule'])}"
        rows.append(f"layer    {each['layer']}: {said}")
    for each in found["credentials"]:
        rows.append(f"secret   {each['name']}: {_used(each['binding'])}")
    if found["answer"] != "deny" and not found["credentials"]:
        rows.append("secret   none may be used here")
    rows += [f"note     {each}" for each in found["notes"]]
    if found["missing"] is not None:
        rows.append(f"to allow: {command(found['missing'], user)}")
    return [plain(each) for each in rows]


def _used(binding: Mapping[str, Any]) -> str:
    places = [
        f"the parameter {each['query']}" if each["query"] else f"{each['header']} ({each['scheme']})"
        for each in binding["positions"]
    ]
    how = "is injected into" if binding["use"] == "inject" else "takes the placeholder's place in"
    return f"{how} {' or '.join(places)}, by {binding['id']}"


def command(missing: Rule, user: str) -> str:
    """What to type for a rule."""
    words = ["ringfence", "egress", "allow", user, str(missing["host"])]
    for name, values in (("--port", missing["ports"]), ("--method", missing["methods"]), ("--path", missing["paths"])):
        words += [word for value in values if (name, value) != ("--port", 443) for word in (name, str(value))]
    words += [f"--{name}" for name in ("plain", "websocket") if missing[name]]
    return shlex.join(words)


def log(found: Mapping[str, Any]) -> list[str]:
    """Oldest first: what comes next stands below."""
    rows = [(str(each["at"]), _passed(each)) for each in found["traffic"]]
    rows += [(str(each["at"]), _recorded(each)) for each in found["rows"]]
    older = ["older ones are left out: see --limit and --since"] if found.get("more") else []
    return [*older, *(plain(f"{at[:19]}  {words}") for at, words in sorted(rows))]


def _passed(each: Mapping[str, Any]) -> str:
    return f"traffic   {each['verdict']:<12} {each['host']}  up {size(each['sent'])}, down {size(each['received'])}"


def _recorded(each: Mapping[str, Any]) -> str:
    details = {**each["details"].get("said", {}), **each["details"]} if _found(each) else dict(each["details"])
    if isinstance(binding := details.get("binding"), Mapping):  # a new one, whole: where it leads to says most
        details |= {"host": binding.get("host"), "binding": None}
    told = " ".join(f"{name}={details[name]}" for name in _TOLD if details.get(name) not in (None, "", []))
    return f"{each['lane']:<9} {each['action']:<12} {told or each['subject']}"


def _found(each: Mapping[str, Any]) -> bool:
    """A finding: what the worker said of it is below one key, and what the server knows counts."""
    return bool(each["action"] == "egress.finding") and isinstance(each["details"].get("said"), Mapping)


def as_line(found: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")


def flush() -> None:
    """So that who reads a pipe sees a line when it comes."""
    sys.stdout.flush()
