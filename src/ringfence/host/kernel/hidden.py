"""Settings without what is secret in them: the password of the database, and the query of a URL, which may hold a token.

Pure. Whatever prints a setting, an error about one, or a line of the log, shows these forms. It must work on what is no URL
at all: a password with a character that has to be escaped is the most likely reason why an address is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, unquote

from ringfence.host.kernel.settings import Settings

MARK = "…"  # in the place of a password; no URL has it
QUERY = "?(hidden)"
SHORTEST = 4  # characters: what is shorter is in half of the words of a log, and no secret that anybody could keep
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z", re.I)
_NO_PORT = re.compile(r"[^:/?#]+:(?!\d*(?:[/?#]|\Z))")
_WHOLE = re.compile(r"([a-z][a-z0-9+.-]*)://([^:/?#@]*)(:[^/?#@]*)?@([^/?#@]*(?:/[^?#@]*)?)(\?.*)?\Z", re.I | re.S)


def shown_url(url: str) -> str:
    """`postgresql://user:…@host/db?(hidden)`. Of what is no whole URL less is left."""
    if url.startswith("sqlite:///"):
        return url  # a path
    whole = _WHOLE.match(url)
    if whole is not None:
        scheme, user, password, rest, query = whole.groups()
        return f"{scheme}://{user}{':' + MARK if password else ''}@{rest}{QUERY if query else ''}"
    scheme, there, rest = url.partition("://")
    if not there or not _SCHEME.match(scheme):
        scheme, there, rest = "", "", url
    who, at, behind = rest.rpartition("@")
    if at:
        rest = f"{re.split(r'[:/?#@]', who, maxsplit=1)[0]}:{MARK}@{behind}"
    elif _NO_PORT.match(rest):  # a password without a host behind it
        rest = f"{rest.partition(':')[0]}:{MARK}"
    rest, asked, _ = rest.partition("?")
    return f"{scheme}{there}{rest}{QUERY if asked else ''}"


def shown_value(name: str, value: object) -> str:
    """A value of ringfence.toml in an error about it."""
    if name == "database":
        return repr(shown_url(value)) if isinstance(value, str) else repr(value)
    if name != "webhook":
        return repr(value)
    if not isinstance(value, list | tuple):
        return type(value).__name__
    return repr([_table(each) for each in value])


def _table(value: object) -> object:
    if not isinstance(value, Mapping):
        return type(value).__name__
    return {name: shown_url(one) if isinstance(one, str) else type(one).__name__ for name, one in value.items()}


def shown(settings: Settings) -> Settings:
    """For people: what is secret in it has been taken out, so that nothing can work with it."""
    hooks = tuple(
        replace(hook, url=shown_url(hook.url), lookup_url=shown_url(hook.lookup_url)) for hook in settings.webhook
    )
    return replace(settings, database=shown_url(settings.database), webhook=hooks)


def secrets_of(settings: Settings) -> tuple[str, ...]:
    """What must be in no line of the log, as it is written and as it is meant; the longest first."""
    found = _passwords(settings.database)
    for hook in settings.webhook:
        found |= _tokens(hook.url) | _tokens(hook.lookup_url)
    words = {each for word in found for each in (word, unquote(word))}
    return tuple(sorted(words, key=len, reverse=True))


def _passwords(url: str) -> set[str]:
    """Of a database. Not one that is the name of the account: nobody keeps that, and the log is full of such names."""
    if url.startswith("sqlite"):
        return set()
    who, _, _ = url.partition("://")[2].rpartition("@")
    user, _, password = who.partition(":")
    asked = {value for name, value in parse_qsl(url.partition("?")[2]) if "pass" in name}
    return {word for word in {password, *asked} if len(word) >= SHORTEST and word != user}


def _tokens(url: str) -> set[str]:
    query = url.partition("?")[2]
    return {word for word in {query, *(value for _, value in parse_qsl(query))} if len(word) >= 2 * SHORTEST}


def scrubbed(text: str, words: Iterable[str]) -> str:
    """`text` without them. `words`: the longest first."""
    for word in words:
        text = text.replace(word, MARK)
    return text
