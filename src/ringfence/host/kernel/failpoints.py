"""Named places where a kernel process can be made to fail: one before and one after each commit and each send.

A product reaches every one of them and nothing happens: it is made with `Quiet`, and there is no setting, environment variable
or argument that arms another. Tests make the parts themselves and hand in their own. Pure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Protocol

Again = Callable[[], Awaitable[Any]]


class Point(StrEnum):
    """`<part>.<what>.before|after`. Between a before and its after lies exactly one thing that others can see."""

    STORE_COMMIT_BEFORE = "store.commit.before"  # everything is written, nothing is committed
    STORE_COMMIT_AFTER = "store.commit.after"  # it is on disk, and nobody has been told
    LOOP_ASK_BEFORE = "loop.ask.before"  # a loop has asked, nothing is done
    LOOP_ASK_AFTER = "loop.ask.after"  # it is done, the loop has no answer. Detail of both: run, method
    WIRE_SEND_BEFORE = "wire.send.before"  # an order to a box
    WIRE_SEND_AFTER = "wire.send.after"  # the box has acknowledged it. Detail of both: method, run or key
    EFFECT_SEND_BEFORE = "effect.send.before"  # it is `sent` in the ledger, no byte has gone out
    EFFECT_SEND_AFTER = "effect.send.after"  # the receiver has answered, nothing of it is written. Detail: key
    LOOKUP_SEND_BEFORE = "lookup.send.before"
    LOOKUP_SEND_AFTER = "lookup.send.after"  # Detail of both: key
    HTTP_ANSWER_BEFORE = "http.answer.before"  # a change is on disk, its client does not know
    HTTP_ANSWER_AFTER = "http.answer.after"  # the whole answer was written. Detail of both: method, path


class Injected(Exception):
    """What a failpoint raises. No RingfenceError: nothing of ours may take it for an answer."""


class Failpoints(Protocol):
    """Is told of each place that is reached. It may return, raise, block, or end the process."""

    def reach(self, point: Point, detail: str = "") -> None:
        """Where nothing can be awaited; may be another thread than the loop's. Injected."""

    async def areach(self, point: Point, detail: str = "", again: Again | None = None) -> None:
        """`again`: does what lies behind a `before` once more, for a failpoint that makes duplicates. Injected."""


class Quiet:
    """Failpoints of a product."""

    def reach(self, point: Point, detail: str = "") -> None:
        """Nothing happens."""

    async def areach(self, point: Point, detail: str = "", again: Again | None = None) -> None:
        """Nothing happens."""
