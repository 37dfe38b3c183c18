"""A provider's key in what a provider answers: an echo of headers in an error, or a debug server. Pure.

The answer keeps its length. Must never hold back a byte that cannot be the beginning of the key.
"""

from __future__ import annotations

from ringfence.host.kernel.outward.secret import Secret

_SHORTEST = 8  # bytes: what is shorter is no key that anybody gives out, and stands in half of all texts
_MASK = b"*"


class Hiding:
    """`take` each piece, then `rest`."""

    def __init__(self, key: Secret | None) -> None:
        value = key.reveal().strip() if key is not None else b""
        self._key = value if len(value) >= _SHORTEST else b""
        self._held = b""
        self.hits = 0

    def take(self, data: bytes) -> bytes:
        """What may go on of all that came."""
        if not self._key:
            return data
        data = self._hidden(self._held + data)
        kept = self._beginning(data)
        self._held = data[len(data) - kept :] if kept else b""
        return data[: len(data) - kept] if kept else data

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _hidden(self, data: bytes) -> bytes:
        if self._key not in data:
            return data
        self.hits += data.count(self._key)
        return data.replace(self._key, _MASK * len(self._key))

    def _beginning(self, data: bytes) -> int:
        """How many bytes at the end begin the key."""
        at = data.find(self._key[:1], max(0, len(data) - len(self._key) + 1))
        while at >= 0:
            if self._key.startswith(data[at:]):
                return len(data) - at
            at = data.find(self._key[:1], at + 1)
        return 0


def hidden(data: bytes, key: Secret | None) -> bytes:
    """All of an answer at once."""
    hiding = Hiding(key)
    return hiding.take(data) + hiding.rest()
