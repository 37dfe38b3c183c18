"""A user's own data, page by page, as it leaves the store; and what a removal of the user would take. Nouns only.

What is given here is the user's: what they may read of threads that they are a member of now, their own words anywhere, and runs,
steps and gates of theirs. Never another member's steps, nor words of others in a thread that they have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ringfence.host.kernel.ids import RunId, ThreadId, UserId

PAGE = 50  # rows with text of people: 256 KiB each at most
STEPS = 10  # rows of steps: 1 MiB each at most


@dataclass(frozen=True, slots=True)
class Place:
    """A thread that the user is a member of, or was at work in."""

    id: ThreadId
    name: str
    member: bool  # now
    alone: bool  # no other live user is a member
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Removal:
    """What `user rm` would do. Names and numbers."""

    box: dict[str, Any] | None
    threads_alone: Sequence[str]  # whose only member the user is: nobody reads them any more
    threads_shared: Sequence[str]  # they go on; what the user said stays in them
    runs: Sequence[str]  # that wait or are at work: cancelled
    tokens: int
    credentials: Sequence[str]
    grants: Sequence[str]  # credentials of others that they were lent
    rules: int  # of egress
    bindings: int
    messages: int  # that stay in threads, under the name of then


class Exporting(Protocol):
    """Each answer is of one moment; together they are not."""

    async def places(self, user: UserId) -> list[Place]: ...
    async def messages(self, place: Place, user: UserId, after: int) -> list[dict[str, Any]]:
        """Behind the cursor; of a thread that the user has left their own alone. Fewer than PAGE: the last."""

    async def runs(self, user: UserId, after: str) -> list[dict[str, Any]]:
        """By id, behind that one."""

    async def steps(self, run: RunId, user: UserId, after: int) -> list[dict[str, Any]]:
        """Of a run of the user's. Fewer than STEPS: the last."""

    async def gates(self, run: RunId, user: UserId) -> list[dict[str, Any]]: ...
    async def removal(self, user: UserId) -> Removal:
        """Without the box."""
