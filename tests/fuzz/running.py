"""How a fuzz target is run: from a seed for a count, from a seed for a time, or under libFuzzer. Any error is a finding.

    python -m tests.fuzz.TARGET --seeded SEED COUNT     mutations of good and hostile inputs, the same ones each time
    python -m tests.fuzz.TARGET --for SECONDS [SEED]    seed after seed, each of PART inputs, until the time is over
    python -m tests.fuzz.TARGET [libFuzzer options]     with atheris, which is not a dependency of the project

A failure names its seed, its number and the input itself, so that any of the three finds it again.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
PART = 2000  # inputs of one seed: a second or two


@dataclass(frozen=True)
class Target:
    """`one_input`: True when the input was read, False when it was refused; raises for a bug. `mutated`: an input."""

    one_input: Callable[[bytes], bool]
    mutated: Callable[[random.Random], bytes]

    def seeded(self, seed: int, count: int) -> tuple[int, int]:
        """(inputs that were read, inputs that were refused)."""
        chance = random.Random(seed)
        read = sum(self._one(self.mutated(chance), seed, number) for number in range(count))
        return read, count - read

    def going(self, seconds: float, seed: int) -> int:
        """How many inputs of this seed and those behind it were tried in this time: PART at least."""
        until, tried = time.monotonic() + seconds, 0
        while not tried or time.monotonic() < until:
            self.seeded(seed + tried // PART, PART)
            tried += PART
        return tried

    def _one(self, data: bytes, seed: int, number: int) -> bool:
        try:
            return self.one_input(data)
        except BaseException as error:
            error.add_note(f"seed {seed}, input {number}: {data!r}")
            raise

    def main(self) -> None:
        arguments = sys.argv
        if arguments[1:2] == ["--seeded"]:
            print(self.seeded(int(arguments[2]), int(arguments[3])))
        elif arguments[1:2] == ["--for"]:
            seed = int(arguments[3]) if len(arguments) > 3 else 1
            print(f"seed {seed}", flush=True)
            print(f"{self.going(float(arguments[2]), seed)} inputs, nothing found")
        else:
            atheris = importlib.import_module("atheris")
            atheris.Setup(arguments, self.one_input)
            atheris.Fuzz()


class Choices:
    """Decisions that an input makes, a byte each; behind its end always the first."""

    def __init__(self, data: bytes) -> None:
        self._left = iter(data)

    def number(self, below: int) -> int:
        return next(self._left, 0) % below

    def of(self, items: Sequence[T]) -> T:
        return items[self.number(len(items))]


def damaged(chance: random.Random, data: bytearray, spice: Sequence[bytes]) -> None:
    """One change in place: a byte more, some fewer, one of `spice`, or a piece twice."""
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(5)
    if kind == 0:
        data[at:at] = bytes([chance.randrange(256)])
    elif kind == 1:
        del data[at : at + chance.randint(1, 3)]
    elif kind == 2:
        data[at:at] = chance.choice(spice)
    elif kind == 3:
        data[at : at + 1] = bytes([chance.randrange(256)])
    else:
        data[at:at] = data[at : at + chance.randint(1, 9)]
