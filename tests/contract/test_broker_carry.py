"""Commands over a lost wire: carried to the next one to the same guest, or ended as box_lost. Never both, never twice."""

from __future__ import annotations

import asyncio

from ringfence.wire.credits import CHUNK, WINDOW
from tests.contract.test_broker import spawned
from tests.support.broker_rig import answer, rig, spec, until, within
from tests.support.scripted_guest import BOX, KEPT


async def test_a_running_command_goes_on_over_the_next_wire() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        await guest.output("x/1", b"before ")
        reader = command.output()
        assert await within(anext(reader)) == (1, b"before ")
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        _, second = await r.attach(commands={"x/1": "running"})
        params = await second.spawned(attached=True)
        assert params["key"] == "x/1"
        await second.output("x/1", b"after")
        assert await within(anext(reader)) == (1, b"after")
        await second.end("x/1", 1)
        outcome = await within(command.outcome())
        assert (outcome.code, outcome.reason) == (0, "exit")
        assert "may be missing" in outcome.message  # said, since the wire cannot know what was on it
        assert (await second.hear("ack"))["p"] == {"seqs": [1]}


async def test_a_fresh_window_counts_after_hello_and_after_the_attach() -> None:
    """wire.credits: the guest begins both with a full window; what lies here unread is a second one."""
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        for _ in range(WINDOW // CHUNK):
            await guest.output("x/1", bytes(CHUNK))
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        newer, second = await r.attach(commands={"x/1": "running"})
        for _ in range(WINDOW // CHUNK):
            await second.output("x/1", bytes(CHUNK))
        await second.spawned(attached=True)
        for _ in range(WINDOW // CHUNK):
            await second.output("x/1", bytes(CHUNK))
        await second.end("x/1", 1)
        total = 0
        async for _, data in command.output():
            total += len(data)
        assert total == 3 * (WINDOW // CHUNK) * CHUNK
        assert newer.alive


async def test_a_step_that_ended_while_no_wire_was_there_keeps_its_outcome() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, "s/run_a/1", output="keep")
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        _, second = await r.attach(commands={"s/run_a/1": "ended"})
        await second.end("s/run_a/1", 4, stdout=KEPT, stderr=KEPT)
        assert (await within(command.outcome())).message == ""
        await command.release()
        assert (await second.hear("ack"))["p"] == {"seqs": [4]}


async def test_a_command_that_the_guest_no_longer_knows_is_lost() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        await r.attach(commands={})
        assert (await within(command.outcome())).reason == "box_lost"


async def test_a_box_that_was_started_anew_has_no_command_of_before() -> None:
    """A guest with another id is another one, even when it claims to know the key."""
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        _, second = await r.attach(guest="guest-2", commands={"x/1": "running"})
        assert (await within(command.outcome())).reason == "box_lost"
        assert await guest.ended()
        assert not link.alive
        await second.end("x/1", 1)
        assert (await second.hear("ack"))["p"] == {"seqs": [1]}


async def test_when_the_engine_gives_up_commands_end_at_once() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        assert not command.ended
        r.host.gave_up.set()
        assert (await within(command.outcome())).reason == "box_lost"


async def test_an_acknowledgement_that_was_lost_is_said_again() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, "s/run_a/1", output="keep")
        await guest.end("s/run_a/1", 1, stdout=KEPT, stderr=KEPT)
        await within(command.outcome())
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        await command.release()  # between two wires
        _, second = await r.attach(commands={"s/run_a/1": "ended"})
        assert (await second.hear("ack"))["p"] == {"seqs": [1]}
        await second.end("s/run_a/1", 1, stdout=KEPT, stderr=KEPT)  # it was on its way already
        assert (await second.hear("ack"))["p"] == {"seqs": [1]}


async def test_an_exec_whose_start_was_lost_with_the_wire_is_stopped_on_the_next_one() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        spawning = asyncio.ensure_future(link.spawn("x/1", spec()))
        await guest.hear("cmd.spawn")
        guest.close()
        result = (await within(asyncio.gather(spawning, return_exceptions=True)))[0]
        assert getattr(result, "code", None) == "box_lost"
        _, second = await r.attach(commands={"x/1": "running"})
        assert (await answer(second, "cmd.stop"))["key"] == "x/1"


async def test_stdin_and_stop_wait_for_the_next_wire() -> None:
    async with rig(redials=True) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, stdin="pipe")
        guest.close()
        await until(lambda: r.host.lost == [BOX])
        writing = asyncio.ensure_future(command.write(b"data"))
        stopping = asyncio.ensure_future(command.stop(1.0))
        await asyncio.sleep(0.01)
        assert not writing.done()
        assert not stopping.done()
        _, second = await r.attach(commands={"x/1": "running"})
        await second.spawned(attached=True)
        heard = [await second_frame(second) for _ in range(2)]
        assert sorted(heard) == ["cmd.stdin", "cmd.stop"]
        await within(asyncio.gather(writing, stopping))


async def second_frame(guest: object) -> str:
    from ringfence.wire.framing import decode
    from tests.support.scripted_guest import ScriptedGuest

    assert isinstance(guest, ScriptedGuest)
    frame = decode(await guest.line())
    if "id" in frame:
        await guest.say(re=frame["id"], ok={})
    return str(frame["m"])
