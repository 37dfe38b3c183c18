"""Tasks of the engine: what is begun as everything ends leaves nothing behind, and nobody waits for it for ever."""

from __future__ import annotations

import asyncio
import gc

import pytest

from ringfence.host.engine.crew import Crew
from ringfence.host.kernel.errors import Unavailable


async def forever() -> None:
    await asyncio.sleep(3600)


async def test_what_is_begun_while_it_ends() -> None:
    """A coroutine that is never awaited would be a warning, and that an error."""
    crew = Crew()
    await crew.start()
    crew.go(forever(), "never begun")
    waited = crew.begin(forever(), "never begun either")
    await crew.stop()
    assert waited.cancelled()
    for start in (crew.go, crew.begin):
        with pytest.raises(Unavailable):
            start(forever(), "late")
    gc.collect()


async def test_results_and_errors() -> None:
    async def answer() -> int:
        return 42

    async def broken() -> int:
        raise Unavailable("no")

    crew = Crew()
    await crew.start()
    assert await crew.begin(answer(), "answer") == 42
    with pytest.raises(Unavailable, match="no"):
        await crew.begin(broken(), "broken")
    crew.go(broken(), "broken")  # ends alone
    await asyncio.sleep(0)
    assert await crew.begin(answer(), "answer") == 42
    await crew.stop()
