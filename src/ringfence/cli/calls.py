"""The one way from a command to the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ringfence.client.client import Client

Answer = TypeVar("Answer")
OPERATOR = "operator"  # what `--as` takes for: nobody, the operator himself


def call(work: Callable[[Client], Awaitable[Answer]], *, tenant: str = "default", act_as: str | None = None) -> Answer:
    """Runs `work` with a client; raises ApiError."""

    async def connected() -> Answer:
        async with Client(act_as=None if act_as == OPERATOR else act_as, tenant=tenant) as client:
            return await work(client)

    return asyncio.run(connected())
