"""F14 and its kin: an egress worker that is killed while a write is under way, and one that is killed again and again."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from ringfence.host.kernel.audit import Lane
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import SECRET, Outside, outside, until
from tests.support.egress_upstream import Arrived
from tests.support.engine_rig import eventually
from tests.support.installation import of_uid

__all__ = ["own_installation"]
pytestmark = pytest.mark.root
CURL = "curl -sS --max-time 20"


async def worker_of(o: Outside) -> int:
    """Its pid: what runs under the box's egress id."""
    uid = (await o.store.boxes.get(await o.box("alice"))).uid + 1
    [pid] = of_uid(uid)
    return pid


async def test_a_worker_that_is_killed_in_mid_write_leaves_its_outcome_unknown() -> None:
    async with outside() as o:
        held = asyncio.Event()

        async def never(arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
            await held.wait()
            return False

        o.upstream.handler = never
        await o.secret("alice")
        await o.allow("alice")
        command = await o.start(
            "alice", f'{CURL} -X POST -d x -H "Authorization: Bearer $GH_TOKEN" https://api.test/once'
        )
        await eventually(lambda: o.upstream.arrived, "the write at the upstream")
        os.kill(await worker_of(o), signal.SIGKILL)
        ended = await command.outcome()
        assert ended.code != 0  # fail closed: no answer was made up
        rows = await until(lambda: o.audited_in(Lane.INTENT), 2)
        assert [row["action"] for row in rows] == ["outcome", "egress.request"]
        assert rows[0]["details"]["outcome"] == "unknown" and rows[0]["ref"] == rows[1]["id"]
        assert SECRET.decode() not in str(rows)
        held.set()


async def test_a_worker_that_was_killed_is_replaced_and_one_that_dies_each_time_is_waited_with() -> None:
    """H6, D67: nothing passes in between, and a loop of deaths does not keep the spawner busy."""
    async with outside() as o:
        await o.allow("alice")
        pids, box = set(), await o.box("alice")
        for n in range(3):
            await o.said("alice", f"until {CURL} -f https://api.test/{n}; do sleep 0.05; done >/dev/null 2>&1")
            pid = await worker_of(o)
            assert pid not in pids
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not o.egress.facts(box)["worker"], "its end is seen")
        refused = await o.run("alice", f"{CURL} -f https://api.test/x")
        assert refused.code not in (0, None)  # the third was a tenth of a second ago: the next comes 0.2 s after it
        await o.said("alice", f"until {CURL} -f https://api.test/y; do sleep 0.05; done >/dev/null 2>&1")
        assert (await o.audited("egress.worker_ended"))[0]["details"]["times"] == 1
