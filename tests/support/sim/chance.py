"""The one source of chance of a seed, and the trace of what it decided."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.trace: list[str] = []
        self.time: Callable[[], float] = lambda: 0.0

    def note(self, words: str) -> None:
        """Into the trace, with the virtual time."""
        self.trace.append(f"{self.time():.4f} {words}")

    def happens(self, share: float) -> bool:
        return self._random.random() < share

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def count(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def one(self, of: Sequence[T]) -> T:
        return self._random.choice(of)

    def weighted(self, of: Sequence[tuple[T, int]]) -> T:
        return self._random.choices([what for what, _ in of], [weight for _, weight in of])[0]

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()
