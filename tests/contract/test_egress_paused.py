"""A box that stands still for a while keeps the ways out of its commands. Real boxes, with curl in them, and workers that say yes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.ports import Invocation, Invoker
from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from tests.contract.test_egress_outpost import ended, numbers_of, until, waiting
from tests.support.driver_stage import own_installation
from tests.support.egress_engine import SECRET, Outside, outside
from tests.support.engine_rig import OPERATOR, eventually
from tests.support.outpost_rig import BOX, TENANT, USER, Stage, Worker, staged

__all__ = ["own_installation"]
# What each of its requests came to goes to `log`, in one write.
LOOP = """
while ! test -e stop; do
    curl -sS -f --max-time 20 -o /dev/null -H "Authorization: Bearer $GH_TOKEN" https://api.test/ 2>/dev/null
    echo $? >> log
done
"""
NOBODY_LISTENS = "7"  # curl(1)


async def _begun(o: Outside) -> BoxId:
    """A command that goes out by its placeholder, again and again."""
    await o.secret("alice")
    await o.allow("alice")
    await o.start("alice", LOOP, output="stream")
    await _more(o)
    return await o.box("alice")


async def _more(o: Outside) -> None:
    before = len(o.upstream.arrived)
    await eventually(lambda: len(o.upstream.arrived) > before + 2, "its next requests")
    assert {each.value("authorization") for each in o.upstream.arrived} == {b"Bearer " + SECRET}


async def _goes_on(o: Outside, box: BoxId) -> None:
    await o.stage.driver.thaw(box)
    slot, row = o.engine._links.slot(box), await o.store.boxes.get(box)
    await o.engine._outward.opened(row, slot.running() | slot.uses, fresh=False)


async def _came_to(o: Outside) -> set[str]:
    return set((await o.said("alice", "cat log")).split())


@pytest.mark.root
async def test_a_command_goes_on_by_its_port_and_its_placeholder() -> None:
    async with outside() as o:
        box = await _begun(o)
        for _ in range(3):
            await o.engine._outward.paused(box)
            assert not o.egress.facts(box)["open"] and not o.egress.facts(box)["worker"]
            await o.stage.driver.freeze(box)
            await _goes_on(o, box)
            await _more(o)
        assert NOBODY_LISTENS not in await _came_to(o)
        assert o.egress.facts(box)["crashes"] == 0
        assert await o.audited("egress.worker_ended") == []


@pytest.mark.root
async def test_the_control_whose_way_out_is_closed_has_none_afterwards() -> None:
    async with outside() as o:
        box = await _begun(o)
        await o.stage.driver.freeze(box)
        await o.engine._outward.closed(box)
        await o.egress._ledger.flush()
        await _goes_on(o, box)
        before = len(o.upstream.arrived)
        said = await o.said(
            "alice", ": > log; while test $(wc -l < log) -lt 5; do sleep 0.05; done; cat log"
        )  # the first had its answer
        assert "0" not in said.split()[1:] and len(o.upstream.arrived) == before


@pytest.mark.root
async def test_a_freeze_that_nobody_told_of_is_a_crash() -> None:
    """The control of those that are none."""
    async with outside() as o:
        box = await _begun(o)
        await o.stage.driver.freeze(box)
        await eventually(lambda: o.egress.facts(box)["crashes"] == 1, "the end of its worker")
        await o.stage.driver.thaw(box)


@pytest.mark.root
async def test_a_pause_by_hand_and_a_snapshot_cut_no_commands_network() -> None:
    async with outside() as o:
        box = await _begun(o)
        await o.engine.life.pause(OPERATOR, "default", "alice")
        assert o.egress.facts(box)["invocations"] == 1
        await o.engine.life.resume(OPERATOR, "default", "alice")
        await _more(o)
        async with o.engine._standing.still(await o.store.boxes.get(box), force=False):
            assert not o.egress.facts(box)["open"]
        await _more(o)
        assert NOBODY_LISTENS not in await _came_to(o)
        assert o.egress.facts(box)["crashes"] == 0
        assert await o.audited("egress.worker_ended") == []


# --- workers that say yes ------------------------------------------------------------------------------------------------


def _of(key: str) -> Invoker:
    return Invoker(TENANT, USER, BOX, key)


class _Written:
    """Rows of invocations, as they are opened and closed."""

    def __init__(self, stage: Stage) -> None:
        self.open: dict[str, int] = {}
        stage.rows.open = self._open  # type: ignore[method-assign]
        stage.rows.close = self._close  # type: ignore[method-assign]

    async def _open(self, identifier: str, who: Invoker, port: int) -> None:
        self.open[identifier] = port

    async def _close(self, identifiers: Collection[str]) -> None:
        for each in identifiers:
            del self.open[each]


async def _again(stage: Stage, *keys: str) -> None:
    await stage.way_out.suspend(BOX)
    await stage.way_out.open(BOX, TENANT, USER, keys)


async def _begins(stage: Stage, key: str) -> Invocation:
    return await stage.way_out.begin(_of(key))


@pytest.mark.parametrize("written", [False, True], ids=["younger-than-its-row", "with-its-row"])
async def test_those_that_run_keep_what_they_have_and_those_that_do_not_lose_it(written: bool) -> None:
    async with staged() as s:
        rows = _Written(s)
        await s.open()
        one, two = await _begins(s, "x/1"), await _begins(s, "x/2")
        if written:
            await until(lambda: len(rows.open) == 2)
        await _again(s, "x/1")
        assert [each.port for each in s.outpost.live.values()] == [one.port]
        assert await _begins(s, "x/1") == one
        await _again(s, "x/1")  # shorter than the row of anything takes
        await until(lambda: rows.open == {one.id: one.port})
        assert two.port not in [each.port for each in s.outpost.sockets]
        await s.way_out.suspend(BOX)
        await s.way_out.close(BOX)  # it is stopped, where it stood still
        await until(lambda: not rows.open)


def _told(worker: Worker, invocation: str) -> tuple[list[str], list[int]]:
    """Its stand-ins and its ports."""
    tickets = [item for each in worker.of("tickets") if each["invocation"] == invocation for item in each["items"]]
    listeners = [each for each in worker.of("listen") if each["invocation"] == invocation]
    return [each["digest"] for each in tickets], [each["port"] for each in listeners]


async def test_the_next_worker_is_told_of_them() -> None:
    async with staged() as s:
        await s.open()
        begun = await _begins(s, "x/1")
        first = await s.working()
        await s.way_out.suspend(BOX)
        assert not s.outpost.worker
        await s.way_out.open(BOX, TENANT, USER, ["x/1"])
        second = await s.working()
        await until(lambda: any(each["kind"] == "proxy" for each in second.of("listen")))
        assert _told(second, begun.id) == _told(first, begun.id) != ([], [])
        assert s.outpost.tally.crashes == 0 and s.rows.audited == []


async def test_a_server_that_ends_meanwhile_leaves_their_rows_to_the_next() -> None:
    async with staged() as s:
        rows = _Written(s)
        await s.open()
        begun = await _begins(s, "x/1")
        await s.way_out.suspend(BOX)
        await s.way_out.stop()
        assert rows.open == {begun.id: begun.port}


async def test_what_is_unbound_while_it_stands_still_is_not_bound_afterwards() -> None:
    async with staged() as s:
        await s.open()
        await s.way_out.suspend(BOX)
        s.rows.bound = []
        await s.way_out.reload([USER])
        assert s.bound() == []
        await s.way_out.open(BOX, TENANT, USER, [])
        assert (await s.working()).bound() == []


async def test_what_is_to_be_begun_and_what_is_asked_while_it_stands_still() -> None:
    async with staged() as s:
        await s.open()
        asked = EgressRule("", Verdict.ALLOW, "api.test")
        asking = asyncio.ensure_future(s.way_out.holds.ask(_of("x/1"), asked))
        await until(lambda: bool(s.way_out.holds.of([USER])))
        await s.way_out.suspend(BOX)
        assert await asking == "deny"
        with pytest.raises(Unavailable, match="not open"):
            await _begins(s, "x/1")
        await s.way_out.suspend(BOX)  # idempotent, and nothing of a box that is not open
        await s.way_out.suspend(BoxId("c" * 16))
        await s.way_out.open(BOX, TENANT, USER, [])
        await _begins(s, "x/1")


async def test_a_worker_that_is_being_made_is_no_crash_and_who_called_for_it_waits_for_the_next() -> None:
    async with staged() as s:
        made, go, real = asyncio.Event(), asyncio.Event(), s.outlets.worker

        async def worker(box: BoxId) -> int:
            made.set()
            await go.wait()
            return await real(box)

        s.outlets.worker = worker  # type: ignore[method-assign]
        await s.open()
        with waiting(s, numbers_of(s)[0]) as client:
            await made.wait()
            suspending = asyncio.ensure_future(s.way_out.suspend(BOX))
            await asyncio.sleep(0)
            go.set()
            await suspending
            assert not s.outpost.worker and s.outpost.tally.crashes == 0
            await s.way_out.open(BOX, TENANT, USER, [])
            await until(lambda: s.outpost.worker and bool(s.outlets.workers[-1].of("listen")))
            assert not ended(client) and len(s.outlets.workers) == 2
        assert s.rows.audited == []
