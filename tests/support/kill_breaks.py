"""Walls taken away in a child, for controls: with one of them gone the invariants must find something."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ringfence.host.engine.sending import SendingOut
from ringfence.host.kernel.capabilities import Sent
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.runs import Evidence
from ringfence.host.store.effects import SqlEffects
from ringfence.host.store.transact import Attempt


def nothing() -> None:
    """Every wall stands."""


def no_fence() -> None:
    """Any epoch may write."""
    for name, module in list(sys.modules.items()):
        if name.startswith("ringfence.host.store.") and hasattr(module, "check_fence"):
            module.check_fence = lambda row, _epoch: row  # type: ignore[attr-defined]


def no_sent() -> None:
    """Nothing is on disk when the first byte goes out."""
    mark = SqlEffects.mark

    async def unwritten(
        self: Any, run: Any, epoch: int, n: int, state: EffectState, outcome: Any = None, **more: Any
    ) -> Any:
        if state is EffectState.SENT:
            return await self.get(run, n)
        return await mark(self, run, epoch, n, state, outcome, **more)

    SqlEffects.mark = unwritten  # type: ignore[method-assign]


def early_ack() -> None:
    """Whoever says something is answered before the commit."""
    alone = Attempt._alone

    def told_at_once(self: Any, tx: Any) -> None:
        alone(self, tx)
        job = self.batch[0]
        if not isinstance(job.value, Accepted):
            return
        job.answer.get_loop().call_soon_threadsafe(job.resolve)
        time.sleep(0.5)  # so that the answer is out when the commit begins

    Attempt._alone = told_at_once  # type: ignore[method-assign]


def no_look_up() -> None:
    """What may have gone out is taken as not done."""

    async def believed(_self: Any, _row: Any, _tool: Any) -> Sent:
        return Sent(Evidence.NOT_DONE, {}, retry=True)

    SendingOut._ask_about = believed  # type: ignore[method-assign, assignment]


BREAKS: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "": nothing,
        "no_fence": no_fence,
        "no_sent": no_sent,
        "early_ack": early_ack,
        "no_look_up": no_look_up,
    }
)
