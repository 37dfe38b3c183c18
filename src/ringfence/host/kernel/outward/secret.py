"""A value that must not show. It compares in constant time and has no text but the mask."""

from __future__ import annotations

import hmac
from typing import NoReturn

MASK = "[secret]"


class Secret:
    """`reveal()` is the only way to the bytes; whoever calls it owns where they go."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        return self._value

    def __len__(self) -> int:
        return len(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled or copied into anything")
