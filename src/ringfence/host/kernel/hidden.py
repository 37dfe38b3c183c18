"""Settings without what is secret in them: the password of the database, and the query of a URL, which may hold a
token.

Pure. Whatever prints settings, or a line of the log, shows these forms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import parse_qsl, unquote

from ringfence.host.kernel.hidden_values import MARK, shown_url
from ringfence.host.kernel.settings import Settings

SHORTEST = 4  # characters: what is shorter is in half of the words of a log, and no secret that anybody could keep


def shown(settings: Settings) -> Settings:
    """For people: what is secret in it has been taken out, so that nothing can work with it."""
    hooks = tuple(
        replace(hook, url=shown_url(hook.url), lookup_url=shown_url(hook.lookup_url)) for hook in settings.webhook
    )
    vault = replace(
        settings.vault, key=_shown_source(settings.vault.key), old=tuple(map(_shown_source, settings.vault.old))
    )
    return replace(settings, database=shown_url(settings.database), webhook=hooks, vault=vault)


def _shown_source(source: str) -> str:
    """A program's arguments may be a token of a secret store."""
    program, _, arguments = source.partition(" ")
    return f"{program} {MARK}" if source.startswith("command:") and arguments else source


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
