"""What an actor says to a turn under way, told to its loop.

This is only speed. The store has the message; a loop that is not told is given it when it finishes or starts anew. A loop
takes a cursor to mean that it has all that was said before: so they are told one by one, in their order, none left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ringfence.host.engine.crew import Crew
from ringfence.host.engine.history import steer
from ringfence.host.engine.live import Held, LiveRuns
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.ports import Link
from ringfence.host.kernel.runs import Run
from ringfence.host.kernel.threads import Message

TELL_SECONDS = 10.0  # for a guest that does not answer


class Steering:
    def __init__(self, parts: Parts, crew: Crew, live: LiveRuns, reachable: Callable[[BoxId], Link | None]) -> None:
        self._parts, self._crew, self._live, self._reachable = parts, crew, live, reachable
        self._log = logging.getLogger("ringfence.engine")

    async def said(self, run: Run, message: Message) -> None:
        """`message` joined the turn of `run` and is durable. Waits for nobody; what fails is logged."""
        held = self._live.get(run.id)
        if held is None or message.cursor <= held.told:
            return
        if held.started:
            self.tell(held)
        else:
            held.behind = True

    def tell(self, held: Held) -> None:
        """Whatever its loop has not been told."""
        self._crew.go(self._tell(held), f"steer {held.id}")

    async def _tell(self, held: Held) -> None:
        async with held.telling:
            if held.box is None or held.gone or held.over.is_set():
                return
            link = self._reachable(held.box)
            if link is None:
                return
            try:
                async with asyncio.timeout(TELL_SECONDS):
                    await self._rest(held, link)
            except (RingfenceError, TimeoutError) as error:
                self._log.info("run %s is not told what was said: %s", held.id, error or "no answer")

    async def _rest(self, held: Held, link: Link) -> None:
        said = await self._parts.store.turns.said(held.run.turn, held.told)
        if not held.told:  # adopted: its loop has the turn's own message, and may have some of the rest
            said = said[1:]
        for message in said:
            await link.steer_run(held.id, steer(message))
            held.told = message.cursor
