"""A server that is killed in the middle of a call of a model: what was reserved stays counted, at its most, until swept."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from ringfence.host.kernel.errors import Exhausted
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.models.granting import Expected, fit
from ringfence.host.kernel.models.ports import Call, Caller
from ringfence.host.kernel.models.usage import Amount, Prices
from tests.support.clocks import HandClock
from tests.support.model_child import LIMITS
from tests.support.store import opened

TOP = Path(__file__).parents[2]


async def test_what_a_killed_server_had_reserved_stays_counted(tmp_path: Path) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.model_child", str(tmp_path), cwd=TOP, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    said = (await asyncio.wait_for(child.stdout.readline(), 60)).decode().split()
    assert said[0] == "reached"
    child.send_signal(signal.SIGKILL)
    await child.wait()
    user, run = UserId(said[1]), RunId(said[2])
    async with opened(tmp_path, HandClock(), 5000) as store:
        usage = store.model_usage
        held = (await usage.of_run(run)).reserved
        assert held.tokens > 16_384 and held.micros > 0, "all that it may have used"
        tenant = (await store.users.by_id(user)).tenant
        left = LIMITS.run_tokens - held.tokens

        async def take(n: int, tokens: int) -> Amount:
            call = Call(f"mdl_x{n}", Caller(tenant, user, run), "claude", "loop", "krn_here")
            return await usage.reserve(call, LIMITS, lambda room: fit(Expected(tokens, 0), Prices(), room))

        with pytest.raises(Exhausted):
            await take(1, left + 1)
        assert await usage.sweep("krn_here", lambda: ()) == 1
        spent = await usage.of_run(run)
        assert (spent.usage.tokens, spent.micros, spent.reserved) == (held.tokens, held.micros, Amount())
        with pytest.raises(Exhausted):
            await take(2, left + 1)
        assert await take(3, left) == Amount(left, 0)
