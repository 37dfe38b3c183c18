"""Cooperative steps: an operation is a generator that yields what it waits for, so that no box's slow end holds up
another box's start. Must never block: a step that would is a Wait."""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """Until `fd` is readable (or hung up), or the monotonic time `until`, whichever is first."""

    until: float
    fd: int | None = None


Steps = Generator[Wait, None, T]


def pause(seconds: float) -> Steps[None]:
    yield Wait(time.monotonic() + seconds)


def while_named(names: set[str], name: str, steps: Steps[T]) -> Steps[T]:
    """The steps, for as long as which the name is among the names."""
    names.add(name)
    try:
        return (yield from steps)
    finally:
        names.discard(name)


def run(steps: Steps[T]) -> T:
    """Runs one operation to its end, sleeping where it waits: for start-up, where nobody else is served yet."""
    while True:
        try:
            wait = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        poll = select.poll()
        if wait.fd is not None:
            poll.register(wait.fd, select.POLLIN)
        poll.poll(max(0.0, wait.until - time.monotonic()) * 1000)
