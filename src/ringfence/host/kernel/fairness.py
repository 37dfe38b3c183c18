"""Whose turn it is: which of the runs that wait are begun next when there is room for a few. Pure.

Round and round over the users: the next place goes to whoever was served longest ago, with the oldest of that user's runs.
So a user waits for one run of each other user at most, however many thousands those have. A user who has as many at
work as one may have is passed over, and comes as soon as one of them is over. It must never pass over somebody for good.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from ringfence.host.kernel.ids import RunId, UserId


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that could begin now."""

    run: RunId
    user: UserId
    since: datetime


def in_turn(
    waiting: Iterable[Waiting], served: Mapping[UserId, int], at_work: Mapping[UserId, int], each: int
) -> list[Waiting]:
    """In the order in which they are to begin. `served`: a number that is larger the later it was; absent: not yet, which is
    before all. Of two who have waited as long, first who has less that waits; never who has the smaller id, as it would be the
    same one each time. `each`: how many of one user may be at work; 0: no such limit. Of one user oldest first, as `waiting` is."""
    of_user: dict[UserId, list[Waiting]] = {}
    for one in waiting:
        of_user.setdefault(one.user, []).append(one)
    for user, own in of_user.items():
        room = max(each - at_work.get(user, 0), 0) if each else len(own)
        of_user[user] = own[:room][::-1]
    latest = max(served.values(), default=0)
    turns = [
        (served.get(user, 0), own[-1].since, len(own), number, user)
        for number, (user, own) in enumerate(of_user.items())
        if own
    ]
    heapq.heapify(turns)
    order: list[Waiting] = []
    while turns:
        _, _, _, number, user = heapq.heappop(turns)
        own = of_user[user]
        order.append(own.pop())
        latest += 1
        if own:
            heapq.heappush(turns, (latest, own[-1].since, len(own), number, user))
    return order
