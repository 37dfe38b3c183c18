"""Conversations from blobs: read and parsed one after the other, off the event loop, in the order of the asks.

It must never have more than one blob in memory that is being read or parsed, also when who asked has gone: a thread
cannot be ended, so its turn lasts until it has.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ringfence.host.engine.chat import chat_of, check_size
from ringfence.host.kernel.errors import Invalid, RingfenceError
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import Store


class Conversations:
    def __init__(self, store: Store) -> None:
        self._store = store
        # One and not two: each thread that parses may keep the event loop waiting for 5 ms whenever it wants to go on.
        self._turn = asyncio.Semaphore(1)

    async def read(self, run: RunId, epoch: int, blob: str) -> list[dict[str, Any]]:
        """As of chat_of. TooLarge, Invalid: it is no conversation. NotFound, StaleEpoch, Conflict: see ports.Blobs."""
        _, size = await self._store.blobs.get(run, epoch, blob, 0)
        check_size(size)
        await self._turn.acquire()
        try:
            data = await self._store.blobs.whole(run, epoch, blob)
            parsing = asyncio.get_running_loop().run_in_executor(None, _parsed, data)
        except BaseException:
            self._turn.release()
            raise
        del data
        parsing.add_done_callback(lambda _: self._turn.release())
        found = await asyncio.shield(parsing)
        if isinstance(found, RingfenceError):
            raise found
        return found


def _parsed(data: bytes) -> list[dict[str, Any]] | RingfenceError:
    """The error as a value, made anew: the one that was raised has the frames that hold the text."""
    try:
        return chat_of(data)
    except Invalid as error:
        return Invalid(error.message)
