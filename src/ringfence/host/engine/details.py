"""Why a run failed, in words, in its thread: kept for the run's actor, and shown to nobody else."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.runs import Run
from ringfence.host.kernel.threads import EventKind

DETAIL_CHARS = 2000


async def tell(parts: Parts, run: Run, body: Mapping[str, Any]) -> None:
    """`body`: {"code", "message", ...}. Said before the run's end, so that who follows the thread reads it first. A
    store that does not take it loses the words, never the end of the run."""
    try:
        await parts.store.events.append(
            run.thread, EventKind.RUN_DETAIL, body, actor=run.actor, turn=run.turn, run=run.id
        )
    except RingfenceError as error:
        logging.getLogger("ringfence.engine").warning("run %s: the words of its failure: %s", run.id, error)
