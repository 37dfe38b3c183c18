"""From each configuration of a worker what its connections share, and what outlives a configuration: leaf certificates, addresses
that were given out, answers of resolvers, roots that were read.

It must never leave half of a configuration in force: what is not well-formed raises, and all is as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from ringfence.host.egress import hello
from ringfence.host.egress.configuration import Configuration
from ringfence.host.egress.dns_answers import Answers
from ringfence.host.egress.judging import Policy
from ringfence.host.egress.minting import Minter, Unable
from ringfence.host.egress.resolver import Resolver
from ringfence.host.egress.synthetic import Names, Reachable, key
from ringfence.host.egress.trust import Trust
from ringfence.host.egress.upstream import Dialler
from ringfence.host.egress.works import Works


class Assembly:
    """`now`: the wall clock, aware; `clock`: monotonic. `denied`: told of names that the box's resolver knows nothing of."""

    def __init__(
        self, trust: Trust, now: Callable[[], datetime], clock: Callable[[], float], denied: Callable[[str], None]
    ) -> None:
        self._trust = trust
        self._now = now
        self._clock = clock
        self._denied = denied
        self._minter: Minter | Unable | None = None
        self._names: Names | None = None
        self._resolver: Resolver | None = None
        self._dialler: Dialler | None = None
        self._before: Configuration | None = None
        self._answers: Answers | None = None

    def works(self, configuration: Configuration) -> Works:
        """Invalid, ValueError (ssl.SSLError is one): nothing has changed."""
        before = self._before
        policy = Policy(configuration)
        resolver = self._resolver
        if resolver is None or before is None or before.nameservers != configuration.nameservers:
            resolver = Resolver(configuration.nameservers, self._clock)
        minter = self._minter
        if minter is None or before is None or _minted(before) != _minted(configuration):
            minter = self._made(configuration)
        names = self._names or Names(key(configuration.ca_key))
        dialler = Dialler(configuration, resolver, self._trust.context(configuration.roots))
        configuration = replace(configuration, roots="")  # 220 KB that nobody asks for again
        self._resolver, self._minter, self._names, self._before = resolver, minter, names, configuration
        self.close()
        self._dialler = dialler
        self._answers = Answers(names, Reachable(policy.matcher, configuration.rules), self._denied)
        return Works(configuration, policy, minter, dialler, names, hello.peek)

    def _made(self, configuration: Configuration) -> Minter | Unable:
        if not configuration.ca_certificate:
            return Unable()
        return Minter(configuration.ca_certificate, configuration.ca_key, configuration.bounds, self._now, self._clock)

    def given(self) -> list[tuple[str, str]]:
        """Synthetic addresses, for the next worker."""
        return self._names.given() if self._names is not None else []

    def recall(self, items: Iterable[tuple[str, str]]) -> None:
        """Of the worker before. ValueError: there is no configuration yet."""
        if self._names is None:
            raise ValueError("names before a configuration")
        self._names.recall(items)

    def close(self) -> None:
        """Idle connections to servers."""
        if self._dialler is not None:
            self._dialler.close()

    def answer(self, wire: bytes) -> bytes | None:
        """Of the box's resolver, by the newest configuration; without one there is no answer."""
        return self._answers.answer(wire) if self._answers is not None else None


def _minted(configuration: Configuration) -> tuple[object, ...]:
    return configuration.ca_certificate, configuration.ca_key, configuration.bounds
