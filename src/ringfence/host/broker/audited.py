"""The broker of a server, and the rows of the audit about what boxes break of the wire's rules. Must never wait for the audit while
it hears a box.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from ringfence.host.broker.bounds import Bounds
from ringfence.host.broker.broker import WireBroker
from ringfence.host.kernel.auditing import Audit
from ringfence.host.kernel.boxes import Rates
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId

_TOLD = 1000  # broken wire rules that wait for the audit; the broker limits them to one for each box in ten seconds


@asynccontextmanager
async def audited_wire(audit: Audit, host_id: str, rates: Rates) -> AsyncIterator[WireBroker]:
    """The broker; what boxes break of the wire's rules goes into the audit, in the order in which it was told."""
    told: asyncio.Queue[tuple[BoxId, str, Mapping[str, Any]]] = asyncio.Queue(_TOLD)
    log = logging.getLogger("ringfence.audit")

    def tell(box: BoxId, kind: str, details: Mapping[str, Any]) -> None:
        log.warning("box %s broke a rule of the wire: %s", box, kind)
        with suppress(asyncio.QueueFull):
            told.put_nowait((box, kind, details))

    async def write() -> None:
        while True:
            box, kind, details = await told.get()
            try:
                await audit.record(None, f"wire.{kind}", f"box:{box}", details)
            except RingfenceError as error:
                log.error("not recorded: box %s, %s: %s", box, kind, error)

    async with asyncio.TaskGroup() as group:
        writer = group.create_task(write())
        broker = WireBroker(host_id, tell, Bounds(events=rates.events, output=rates.output))
        try:
            yield broker
        finally:
            await broker.close()
            writer.cancel()
