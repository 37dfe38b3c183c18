"""A provider's key on its way to a request, and whether it was taken back meanwhile. Must never be sent once it was."""

from __future__ import annotations

from collections import Counter
from weakref import WeakValueDictionary

from ringfence.host.kernel.outward.secret import Secret


class ProviderKey(Secret):
    """`withdrawn`: revoked, or exchanged for its next version: no request begins with it any more."""

    __slots__ = ("__weakref__", "credential", "withdrawn")

    def __init__(self, value: bytes, credential: str, *, withdrawn: bool = False) -> None:
        super().__init__(value)
        self.credential, self.withdrawn = credential, withdrawn


class OnTheWay:
    """The keys that calls hold now: one waits for room, for a connection, or between two tries."""

    def __init__(self) -> None:
        self._keys: WeakValueDictionary[int, ProviderKey] = WeakValueDictionary()  # by their number: they have no hash
        self._made = 0
        self._times: Counter[str] = Counter()  # of each credential, how often it was taken back

    def times(self, credential: str) -> int:
        return self._times[credential]

    def add(self, value: Secret, credential: str, before: int) -> ProviderKey:
        """`before`: as `times` said when it was known to stand."""
        key = ProviderKey(value.reveal(), credential, withdrawn=self._times[credential] != before)
        self._made += 1
        self._keys[self._made] = key
        return key

    def withdraw(self, credential: str) -> None:
        self._times[credential] += 1
        for key in list(self._keys.values()):
            key.withdrawn = key.withdrawn or key.credential == credential
