"""The words of `exec`, read without the option parser: that alone would take a third of a short command's time.

Takes the plain forms only; whatever else (help, a mistake, no `--`) is None, and the full command tree reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIELDS = {"--timeout": "timeout", "--cwd": "cwd", "--as": "act_as", "--tenant": "tenant", "--env": "env"}


@dataclass(slots=True)
class ExecWords:
    user: str
    command: list[str]
    timeout: float | None = None
    env: list[str] = field(default_factory=list)
    cwd: str | None = None
    act_as: str | None = None
    tenant: str = "default"
    json: bool = False


def parse(words: list[str]) -> ExecWords | None:
    if "--" not in words:
        return None
    end = words.index("--")
    found = ExecWords("", words[end + 1 :])
    rest = iter(words[:end])
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--json":
            found.json = True
        elif name in FIELDS:
            given = value if equals else next(rest, None)
            if given is None or not _set(found, FIELDS[name], given):
                return None
        elif word.startswith("-") or found.user:
            return None
        else:
            found.user = word
    return found if found.user and found.command else None


def _set(found: ExecWords, name: str, value: str) -> bool:
    if name == "env":
        found.env.append(value)
    elif name == "timeout":
        try:
            found.timeout = float(value)
        except ValueError:
            return False
    else:
        setattr(found, name, value)
    return True
