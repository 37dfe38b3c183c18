"""The bubblewrap driver with everything real: a spawner, boxes, the guest as their PID 1, the broker on the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

import pytest

from ringfence.host.broker.broker import WireBroker
from ringfence.host.broker.link import WireLink
from ringfence.host.drivers import bubblewrap
from ringfence.host.drivers.identity import from_record, gone
from ringfence.host.kernel.boxes import BoxKind, Limits, Observed
from ringfence.host.kernel.errors import BoxLost, Invalid, NotFound, RingfenceError, Unavailable
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import CommandSpec
from ringfence.wire.messages import Generated, StepBegun, ToolCall
from tests.support import spawner_rig
from tests.support.broker_rig import RUN_START, until
from tests.support.driver_stage import BOX, command, own_installation, stage
from tests.support.scripted_guest import AuditLog

__all__ = ["own_installation"]
pytestmark = pytest.mark.root


async def run(link: WireLink, key: str, *argv: str) -> tuple[bytes, int | None]:
    started = await link.spawn(key, command(*argv))
    out = b"".join([data async for _, data in started.output()])
    return out, (await started.outcome()).code


async def test_a_box_from_nothing_to_nothing() -> None:
    async with stage() as s:
        facts = await s.driver.facts()
        assert (facts["mode"], facts["installation"]) == ("root", spawner_rig.INSTALLATION)
        assert (await s.driver.observe(BOX)).state is Observed.ABSENT
        uid = await s.driver.provision(BOX, BoxKind.HOME)
        assert uid == await s.driver.provision(BOX, BoxKind.HOME)
        assert (await s.driver.observe(BOX)).state is Observed.STOPPED
        link = await s.up()
        seen = await s.driver.observe(BOX)
        assert (seen.state, seen.uid) == (Observed.RUNNING, uid)
        assert seen.identity == await s.driver.start(BOX, Limits())  # answered as it is
        assert await s.driver.running() == [BOX]
        assert await run(link, "x/1", "/bin/sh", "-c", "id -u; echo kept > /home/user/f; exit 3") == (b"1000\n", 3)
        async with s.driver.files(BOX) as files:
            assert b"".join([part async for part in files.get(b"f")]) == b"kept\n"
        await s.driver.set_limits(BOX, Limits(pids=64))
        await s.driver.stop(BOX)
        assert (await s.driver.observe(BOX)).state is Observed.STOPPED
        await s.driver.remove(BOX)
        assert (await s.driver.observe(BOX)).state is Observed.ABSENT
        assert await s.driver.running() == []


async def test_cpu_time_is_counted_from_the_start_of_the_box_on() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    async with stage() as s:
        link = await s.up()
        before = (await s.driver.observe(BOX)).cpu_usec
        assert (await run(link, "x/1", "/usr/bin/python3", "-c", burn))[1] == 0
        after = (await s.driver.observe(BOX)).cpu_usec
        assert after - before >= 300_000
        assert (await run(link, "x/2", "/bin/sleep", "0.2"))[1] == 0
        assert (await s.driver.observe(BOX)).cpu_usec - after < 150_000, "who sleeps uses none"
        await s.driver.stop(BOX)
        assert (await s.driver.observe(BOX)).cpu_usec == 0
        await s.up()
        assert 0 < (await s.driver.observe(BOX)).cpu_usec < after, "the counter began anew"


async def test_a_new_kernel_dials_the_same_box_and_finds_its_commands() -> None:
    async with stage() as s:
        link = await s.up()
        running = await link.spawn("x/job", command("/bin/sleep", "30"))
        identity = (await s.driver.observe(BOX)).identity
        assert identity is not None
        second = WireBroker("kernel-2", AuditLog())
        newer = await second.attach(BOX, await s.driver.dial(BOX, identity), s.host)
        assert newer.hello.commands == {"x/job": "running"}
        assert newer.hello.guest == link.hello.guest
        attached = await newer.spawn("x/job", command("/bin/sleep", "30"))
        assert (attached.attached, attached.pid) == (True, running.pid)
        assert (await running.outcome()).reason == "box_lost"  # of the older kernel's wire, which was closed
        await attached.stop(0.1)
        assert (await attached.outcome()).reason == "killed"
        await second.close()


async def test_a_lost_wire_is_dialled_again_and_a_command_ends_once_with_its_output() -> None:
    async with stage() as s:
        link = await s.up()
        s.host.redials = True
        started = await link.spawn("x/1", command("/bin/sh", "-c", "sleep 0.4; echo late; exit 5"))
        link.exchange.channel.abort("", "a test")
        assert not link.alive
        await s.again()
        assert b"".join([data async for _, data in started.output()]) == b"late\n"
        assert (await started.outcome()).code == 5
        s.host.gave_up.set()


async def test_a_box_that_dies_in_mid_command_is_box_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when the command would end, nor when a listener has been waited for long enough: both take an hour."""
    monkeypatch.setattr(bubblewrap, "DIAL_SECONDS", 3600.0)
    async with stage() as s:
        link = await s.up()
        started = await link.spawn("x/1", command("/bin/sleep", "3600"))
        identity = (await s.driver.observe(BOX)).identity
        assert identity is not None
        os.kill(identity["pid"], signal.SIGKILL)
        async with asyncio.timeout(30):
            assert (await started.outcome()).reason == "box_lost"
        assert s.host.lost == [BOX]
        while not gone(from_record(identity)):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            with pytest.raises(BoxLost):  # it is seen to have ended
                await s.driver.dial(BOX, identity)


async def test_a_stranger_behind_the_socket_is_never_handed_out() -> None:
    """D10, M05: the control socket is replaced by another process's. Control: the same dial with the right one works."""
    async with stage() as s:
        await s.driver.provision(BOX, BoxKind.HOME)
        identity = await s.driver.start(BOX, Limits())
        os.close(await s.driver.dial(BOX, identity))
        for change in ({"start_time": 1}, {"pidfd_inode": 1}, {"uid": 0}, {"boot_id": "x"}, {"pid": 1}):
            with pytest.raises(BoxLost):
                await s.driver.dial(BOX, {**identity, **change})
        with pytest.raises(BoxLost, match="no usable identity"):
            await s.driver.dial(BOX, {})
        path = s.rig.home / "boxes" / BOX / "ctl" / "host.sock"
        path.unlink()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(path))
            door.listen(8)
            with pytest.raises(BoxLost, match="another process") as caught:
                await s.driver.dial(BOX, identity)
            assert caught.value.details["found"]["pid"] == os.getpid()


async def test_errors_of_the_spawner_reach_the_caller() -> None:
    async with stage() as s:
        with pytest.raises(Unavailable, match="directory of the box is missing"):
            await s.driver.start(BOX, Limits())
        with pytest.raises(NotFound):  # also of one that was never made
            await s.driver.stop(BOX)
        await s.driver.provision(BOX, BoxKind.HOME)
        with pytest.raises(RingfenceError):
            await s.driver.start(BOX, Limits(pids=1))


async def test_a_command_that_cannot_be_said_is_the_callers_error_and_one_that_cannot_start_an_outcome() -> None:
    async with stage() as s:
        link = await s.up()
        with pytest.raises(Invalid):
            await link.spawn("x/nul", command("/bin/echo", "a\0b"))
        started = await link.spawn("x/none", command("/no/such/program"))
        outcome = await started.outcome()
        assert (outcome.reason, outcome.code) == ("spawn_failed", None)
        assert "No such file" in outcome.message
        assert (await run(link, "x/after", "/bin/true"))[1] == 0


async def test_a_large_stream_arrives_whole_and_stdin_comes_back() -> None:
    async with stage() as s:
        link = await s.up()
        started = await link.spawn("x/1", command("/bin/sh", "-c", "head -c 30000000 /dev/zero"))
        total = 0
        async for _, data in started.output():
            total += len(data)
        assert total == 30_000_000
        cat = CommandSpec([b"/bin/cat"], {}, "/", "pipe", "stream", 30.0)
        echoed = await link.spawn("x/2", cat)
        data = os.urandom(3_000_000)

        async def feed() -> None:
            await echoed.write(data)
            await echoed.close_stdin()

        feeding = asyncio.ensure_future(feed())
        got = b"".join([part async for _, part in echoed.output()])
        await feeding
        assert got == data
        assert link.alive


async def test_a_real_loop_asks_through_the_broker_and_its_end_is_told_once() -> None:
    async with stage() as s:
        link = await s.up()
        call: dict[str, Any] = {"id": "c1", "name": "write", "arguments": {"path": "note", "text": "by the loop"}}
        s.host.answers = {
            "model.generate": Generated("", [ToolCall(**call)], "tool_calls", None),
            "step.begin": StepBegun("run", None, ""),
        }
        pid = await link.start_run({**RUN_START, "run": "run_real"})
        assert pid > 1
        await until(lambda: any(method == "step.end" for _, method, _ in s.host.asked))
        s.host.answers["model.generate"] = Generated("all done", [], "end", None)
        await until(lambda: s.host.ended == [(RunId("run_real"), 0, None)])
        methods = [method for _, method, _ in s.host.asked]
        assert methods[:2] == ["model.generate", "checkpoint.save"]
        assert methods[-1] == "run.finish"
        assert s.host.asked[-1][2].text == "all done"
        assert await run(link, "x/1", "/bin/cat", "/home/user/note") == (b"by the loop", 0)


async def test_a_cancelled_loop_and_one_that_is_asked_again_over_a_new_wire() -> None:
    async with stage() as s:
        link = await s.up()
        s.host.redials = True
        s.host.held.clear()  # the engine does not answer
        await link.start_run({**RUN_START, "run": "run_real"})
        await until(lambda: len(s.host.asked) == 1)
        link.exchange.channel.abort("", "a test")
        newer = await s.again()
        assert newer.hello.runs == {"run_real": RUN_START["token"]}
        await until(lambda: len(s.host.asked) == 2)  # the loop asks the same again
        assert s.host.asked[0][1:] == s.host.asked[1][1:]
        await newer.cancel_run(RunId("run_real"), 0.2)
        s.host.held.set()
        await until(lambda: len(s.host.ended) == 1)
        s.host.gave_up.set()
