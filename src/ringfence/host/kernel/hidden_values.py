"""A value of ringfence.toml without what is secret in it: as an error about it shows it. Pure.

It must work on what is no URL at all: a password with a character that has to be escaped is the most likely reason
why an address is refused; and on a key or a password that was written where its name, its file or an address belongs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

MARK = "…"  # in the place of a password; no URL has it
QUERY = "?(hidden)"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*\Z", re.I)
_NO_PORT = re.compile(r"[^:/?#]+:(?!\d*(?:[/?#]|\Z))")
_MAY_HOLD = re.compile(r"@|://|\?")  # without these it is names, addresses, ports and paths
_PUBLIC = frozenset({"name", "url", "lookup_url", "alias", "provider", "base_url", "model"})
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


def shown_place(url: str) -> str:
    """As `shown_url`; without the account too, which may be a token where no database is."""
    head, at, place = shown_url(url).rpartition("@")
    scheme, there, _ = head.partition("://")
    return f"{scheme + there if there else ''}{MARK}@{place}" if at else place


def shown_text(text: str) -> str:
    """A line of [egress], in which a whole URL may stand by mistake."""
    return shown_place(text) if _MAY_HOLD.search(text) else text


def shown_value(name: str, value: object) -> str:
    """A value of ringfence.toml in an error about it."""
    if name.startswith("vault."):  # the key itself may have been written in the place of where it is
        return type(value).__name__
    if name == "database":
        return repr(shown_url(value)) if isinstance(value, str) else repr(value)
    if name.startswith("egress."):
        return repr(_each(value, shown_place if name == "egress.upstream_proxy" else shown_text))
    if name in ("webhook", "model_upstream"):
        return repr(_each(value, lambda _: "str")) if isinstance(value, list | tuple) else type(value).__name__
    return repr(value)


def _each(value: object, of_text: Callable[[str], str]) -> object:
    """A text, a list of texts or of tables."""
    if isinstance(value, list | tuple):
        return [_each(one, of_text) for one in value]
    if isinstance(value, Mapping):
        return {name: _field(name, one) for name, one in value.items()}
    if isinstance(value, str):
        return of_text(value)
    return value if isinstance(value, bool | int | float) else type(value).__name__


def _field(name: object, value: object) -> str:
    """Of a table. Whatever is not sure to be public may be a secret in the place of its name or its file."""
    if isinstance(value, str) and name in _PUBLIC:
        return shown_place(value)
    return type(value).__name__
