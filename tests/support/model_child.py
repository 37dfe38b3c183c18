"""A kernel process that is killed in the middle of a call of a model: `python -m tests.support.model_child FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ringfence.host.kernel.models.usage import BudgetLimits
from tests.support.models_rig import a_rig
from tests.support.provider_double import Answer, messages

LIMITS = BudgetLimits(run_tokens=50_000, user_tokens=50_000)
SAID = [{"role": "user", "text": "x" * 1000}]


async def _asks(folder: Path) -> None:
    """Says `reached` when the provider has the request: what it answers is never read."""
    async with a_rig(folder, Answer(messages("x")[:1], hang=True), limits=LIMITS) as rig:
        call = asyncio.ensure_future(rig.native("claude").of(rig.caller).generate(SAID, [], lambda text: None))
        while not rig.provider.arrived:
            await asyncio.sleep(0.01)
        assert rig.caller.run is not None
        print("reached", rig.caller.user, rig.caller.run, flush=True)
        await call


if __name__ == "__main__":
    asyncio.run(_asks(Path(sys.argv[1])))
