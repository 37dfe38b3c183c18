"""Questions of a rig's runs: answered, forged in the database, asked anew."""

from __future__ import annotations

import asyncio
from typing import Any

import sqlalchemy as sa

from ringfence.host.engine.gates import GateView
from ringfence.host.kernel.capabilities import register
from ringfence.host.kernel.gates import Gate
from ringfence.host.kernel.ports import Accepted
from ringfence.host.store.ledger import gates as table
from ringfence.host.store.park import unpark_run
from ringfence.host.store.run_rows import locked_run
from tests.support.engine_rig import Rig
from tests.support.paying import hook, parked
from tests.support.receiver import Receiver

PATIENCE = 30.0


async def yes(r: Rig, gate: Gate, name: str = "alice", key: str | None = None, said: str = "allow") -> GateView:
    """`said`: another word for it, of those that the gate takes."""
    return await r.engine.gates.answer(r.actors[name], gate.id, said, key)


async def forged(r: Rig, gate: Gate, **values: Any) -> None:
    """By whoever can write into the database."""
    change = sa.update(table).where(table.c.id == gate.id).values(**values)
    await r.store._database.write(lambda tx: tx.connection.execute(change))


async def tried_again(r: Rig, said: Accepted) -> None:
    """A run that was parked is given out anew, as an answer would do it."""
    await r.store._database.write(lambda tx: unpark_run(tx, locked_run(tx, said.run.id)))
    r.engine._wake()


async def result(r: Rig, said: Accepted, n: int = 1) -> dict[str, Any]:
    step = await r.store.steps.get(said.run.id, n)
    assert step is not None
    return step.result or {}


async def newer(r: Rig, said: Accepted, gate: Gate) -> Gate:
    """The next gate of the run."""
    async with asyncio.timeout(PATIENCE):
        while (await parked(r, said)).id == gate.id:
            await asyncio.sleep(0.01)
    return await parked(r, said)


async def lost_while_sent(
    r: Rig, outside: Receiver, says: str = "unknown", text: str = "pay", thread: str = "t"
) -> Accepted:
    """A call that was carried out, and the server is gone before it hears so; its loop goes with it. `says`: what the next
    server is told when it looks."""
    outside.behave, outside.says = "hang_after", says
    said = await r.say("alice", text, thread)
    await asyncio.wait_for(outside.seen.wait(), PATIENCE)
    await r.restart(lambda: r.world.kill_box(r.box("alice").id))
    outside.gate.set()
    return said


async def yes_while_down(r: Rig, gate: Gate, outside: Receiver, secret: bytes) -> None:
    """Approved; before the run is given out, the server comes back with another declaration."""
    r.engine._work.drain()
    await yes(r, gate)
    r.with_parts["capabilities"] = register([hook(outside, secret)])
    await r.restart()
