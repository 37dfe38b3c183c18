"""A box's way out beside what goes wrong: boxes that are stopped, descriptors that are used up, workers that stand still."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ringfence.host.kernel.errors import RingfenceError, Unavailable
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.ports import Invoker
from tests.support.outpost_rig import BOUND, BOX, TENANT, USER, Stage, staged

PATIENCE = 30.0  # seconds, of what comes in milliseconds


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.01)


def numbers_of(stage: Stage) -> list[int]:
    return [each.fd for each in stage.outpost.sockets]


@contextmanager
def waiting(stage: Stage, fd: int) -> Iterator[socket.socket]:
    """Somebody who has connected to the listener of that number."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        address = sock.getsockname()
    with socket.create_connection(address) as client:
        client.setblocking(False)
        yield client


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "control"])
async def test_a_box_that_is_stopped_while_its_worker_is_made_touches_no_socket_of_another(stopped: bool) -> None:
    """Its numbers are somebody else's by then. Control: who waits at a box that is there is refused."""
    async with staged() as s:
        made = asyncio.Event()

        async def worker(box: BoxId) -> int:
            await made.wait()
            raise Unavailable("the box does not run", remedy="try again")

        s.outlets.worker = worker  # type: ignore[method-assign]
        await s.open()
        outpost, numbers = s.outpost, numbers_of(s)
        with waiting(s, numbers[0]) as own:
            await until(lambda: outpost._doorbell._armed is False)  # it has rung
            if not stopped:
                made.set()
                await until(lambda: ended(own))
                return
            await s.way_out.close(BOX)
            others = [socket.create_server(("127.0.0.1", 0)) for _ in range(24)]
            [theirs] = [each for each in others if each.fileno() == numbers[0]]
            with socket.create_connection(theirs.getsockname()):
                made.set()
                await until(lambda: not any("worker of" in task.get_name() for task in asyncio.all_tasks()))
                theirs.setblocking(False)
                theirs.accept()[0].close()  # it has waited
            for each in others:
                each.close()


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard))
    taken = []
    try:
        with pytest.raises(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_server_without_descriptors_is_not_kept_busy_by_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    """Who waits rings once, and once for each pause of a box whose worker crashed; and is refused as soon as can be."""
    async with staged() as s:
        rings = 0

        async def worker(box: BoxId) -> int:
            nonlocal rings
            rings += 1
            raise OSError(errno.EMFILE, "Too many open files")

        s.outlets.worker = worker  # type: ignore[method-assign]
        await s.open()
        with waiting(s, numbers_of(s)[0]) as client:
            with no_descriptors():
                await until(lambda: s.outpost.tally.crashes >= 3)
                assert rings == s.outpost.tally.crashes  # each was seen to have failed, and is waited with
                assert not any(record.exc_info for record in caplog.records)
                assert not ended(client)
            await until(lambda: ended(client))


async def many(stage: Stage, count: int) -> None:
    """So many boxes of the user's, each with its worker, the first of them first in `outlets.workers`."""
    stage.outlets.gate.set()
    for number in range(count):
        await opened(stage, BoxId(f"{number:x}" * 16))


async def opened(stage: Stage, box: BoxId) -> None:
    await stage.way_out.open(box, TENANT, USER, [])
    outpost = stage.way_out._outposts[box]
    [fd] = [each.fd for each in outpost.sockets]
    with waiting(stage, fd):
        await until(lambda: outpost.worker and bool(stage.outlets.workers[-1].of("listen")))


@pytest.mark.parametrize("what", ["revoke", "configure"])
async def test_workers_that_stand_still_keep_no_other_from_the_change(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have heard of it before any is given up."""
    monkeypatch.setattr("ringfence.host.egress.channel.CONFIRM_SECONDS", 1.0)
    async with staged() as s:
        await many(s, 6)
        channels = [each._worker for each in s.way_out._outposts.values()]
        before = len(s.outlets.workers[-1].of(what))
        for task in s.outlets.tasks[:5]:
            task.cancel()
        await asyncio.sleep(0)
        change = s.way_out.revoke("crd_1") if what == "revoke" else s.way_out.reload(None)
        told = asyncio.ensure_future(change)
        await until(lambda: len(s.outlets.workers[-1].of(what)) > before)
        assert [each is not None and each.alive for each in channels] == [True] * 6  # nobody was waited for
        await asyncio.gather(told, return_exceptions=True)
        assert [each is not None and each.alive for each in channels] == [False] * 5 + [True]


@pytest.mark.parametrize("what", ["revoke", "configure"])
async def test_a_change_comes_into_force_when_who_asked_for_it_has_gone(what: str) -> None:
    async with staged() as s:
        await s.open()
        worker = await s.working()
        before = len(worker.of(what))
        s.rows.delays, s.rows.bound = [0.1], []
        asked = asyncio.ensure_future(s.way_out.revoke("crd_1") if what == "revoke" else s.way_out.reload(None))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: len(worker.of(what)) > before)
        if what == "configure":
            await until(lambda: worker.bound() == [])


async def test_a_command_for_whose_listener_there_is_no_descriptor_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the worker, with the connections of the others, lives on."""
    async with staged() as s:
        await s.open()
        await s.working()
        with monkeypatch.context() as patched:

            def none(_: int) -> int:
                raise OSError(errno.EMFILE, "Too many open files")

            patched.setattr("ringfence.host.egress.channel.os.dup", none)
            with pytest.raises(RingfenceError):
                await s.way_out.begin(Invoker(TENANT, USER, BOX, "x/1"))
        assert not s.outpost.live and s.outpost.worker
        begun = await s.way_out.begin(Invoker(TENANT, USER, BOX, "x/1"))  # the control
        assert list(s.outpost.live) == [begun.id] and BOUND.id in s.outpost.bindings


async def test_a_server_that_stops_waits_for_a_box_that_opens_and_leaves_no_socket_of_it() -> None:
    """The spawner answers the opening only when the stop is under way."""
    async with staged() as s:
        opening = asyncio.ensure_future(s.way_out.open(BOX, TENANT, USER, []))
        await until(lambda: bool(s.way_out._opening))
        [outpost] = s.way_out._opening
        stopping = asyncio.ensure_future(s.way_out.stop())
        await asyncio.sleep(0.1)
        assert not stopping.done()
        s.outlets.gate.set()
        with pytest.raises(Unavailable, match="stopping"):
            await opening
        await stopping
        assert not list(outpost.sockets) and not s.way_out._outposts


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "control"])
async def test_what_changes_while_a_worker_is_forked_waits_for_nobody_and_is_in_force(changed: bool) -> None:
    """What was read beside the fork is not in force then. Control: it is, and is not read again."""
    async with staged() as s:
        real, begun, may = s.outlets.worker, asyncio.Event(), asyncio.Event()

        async def worker(box: BoxId) -> int:
            begun.set()
            await may.wait()
            return await real(box)

        s.outlets.worker = worker  # type: ignore[method-assign]
        await s.open()
        with waiting(s, numbers_of(s)[0]):
            async with asyncio.timeout(PATIENCE):
                await begun.wait()
            await until(lambda: not s.outpost._configuring.locked())
            s.rows.bound = []
            if changed:
                async with asyncio.timeout(PATIENCE):
                    await s.outpost.reconfigure()
            may.set()
            await until(lambda: bool(s.outlets.workers and s.outlets.workers[0].of("listen")))
        assert s.outlets.workers[0].bound() == ([] if changed else [BOUND.id])


async def test_a_worker_that_has_failed_for_very_long_is_waited_with_still() -> None:
    """2 ** 1024 is no float: the error left the next one without a pause."""
    async with staged() as s:
        await s.open()
        s.outpost.tally.crashes = 5000
        s.outlets.errors = [Unavailable("there is none")]
        with waiting(s, numbers_of(s)[0]) as client:
            await until(lambda: s.outpost.tally.crashes == 5001)
            await until(lambda: ended(client))
            assert s.outpost._not_before > s.outpost._clock()
