"""What a call needs before it goes out: a provider's key and a reservation, at the same time.

A key that is known from a call before goes with the reservation: one commit, in which it is held against what stands
then, behind its being opened. Must never hand on a key whose release is not on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ringfence.host.kernel.models.granting import Expected
from ringfence.host.kernel.models.ports import Caller, Changed, Going, Keys
from ringfence.host.kernel.models.upstreams import Upstream
from ringfence.host.kernel.models.usage import Usage
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.models.budgets import Budgets, Hold


async def ready(
    keys: Keys, budgets: Budgets, caller: Caller, upstream: Upstream, expected: Expected, front: str
) -> tuple[Secret | None, Hold]:
    """A budget that is used up is said before a key that is not there. When it raises, nothing is left reserved."""
    if not upstream.key:
        return None, await budgets.hold(caller, upstream, expected, front)
    going = keys.going(caller, upstream.key)
    if going is not None:
        try:
            return await _known(
                keys, going, budgets, upstream, lambda: budgets.hold(caller, upstream, expected, front, going)
            )
        except Changed:
            pass
    holding = budgets.hold(caller, upstream, expected, front)
    return await _both(budgets, upstream, keys(caller, upstream.key), holding)


async def _known(
    keys: Keys, going: Going, budgets: Budgets, upstream: Upstream, reserve: Callable[[], Awaitable[Hold]]
) -> tuple[Secret, Hold]:
    """One after the other, without a task for either: what is known is opened in 0.05 ms."""
    key: Secret | Exception
    try:
        key = await keys.opened(going)
    except Exception as error:
        key = error
    held = await reserve()
    if isinstance(key, Exception):
        budgets.settle(held, upstream, Usage(), "failed")
        raise key
    return key, held


async def _both(
    budgets: Budgets, upstream: Upstream, fetching: Awaitable[Secret], reserving: Awaitable[Hold]
) -> tuple[Secret, Hold]:
    holding = asyncio.ensure_future(reserving)
    try:
        held, key = await asyncio.gather(holding, fetching, return_exceptions=True)
    except asyncio.CancelledError:
        if holding.done() and not holding.cancelled() and holding.exception() is None:
            budgets.settle(holding.result(), upstream, Usage(), "failed")
        raise
    if isinstance(held, BaseException):
        raise held
    if isinstance(key, BaseException):
        budgets.settle(held, upstream, Usage(), "failed")
        raise key
    return key, held
