"""The broker against a scripted guest: bytes in, bytes out over a socket pair, with the real framing."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from ringfence.host.broker.commands import WireCommand
from ringfence.host.kernel.errors import BoxLost, Conflict, Failed, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.ports import CommandSpec, Kept
from ringfence.wire.credits import CHUNK, WINDOW
from tests.support.broker_rig import RUN_START, Rig, answer, both, rig, spec, until, within
from tests.support.scripted_guest import BOX, KEPT, ScriptedGuest


async def spawned(r: Rig, link: Any, guest: ScriptedGuest, key: str = "x/1", **kind: Any) -> WireCommand:
    command, params = await within(both(link.spawn(key, spec(**kind)), guest.spawned()))
    assert params["key"] == key
    assert isinstance(command, WireCommand)
    return command


async def test_hello_names_box_host_and_generation_and_gives_the_guests_word() -> None:
    async with rig() as r:
        guest = ScriptedGuest()
        r.guests.append(guest)
        link, hello = await within(
            both(
                r.broker.attach(BOX, guest.take_fd(), r.host),
                guest.greet(runs={"run_a": "tok"}, commands={"x/9": "ended"}),
            )
        )
        assert hello["p"] == {"generation": 1, "box": BOX, "host": "kernel-1"}
        assert link.alive
        assert link.hello.guest == "guest-1"
        assert link.hello.runs == {"run_a": "tok"}
        assert link.hello.commands == {"x/9": "ended"}


async def test_a_command_is_spawned_with_exactly_what_was_asked_and_ends_once() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        wanted = CommandSpec([b"printf", b"\xff"], {"A": b"\xfe"}, "/workspace", "null", "keep", 1.5, 0.25)
        command, params = await within(both(link.spawn("s/run_a/1", wanted), guest.spawned(pid=42)))
        assert params == {
            "key": "s/run_a/1",
            "argv_b64": [base64.b64encode(b"printf").decode(), "/w=="],
            "env_b64": {"A": "/g=="},
            "cwd": "/workspace",
            "stdin": "null",
            "output": "keep",
            "timeout_ms": 1500,
            "grace_ms": 250,
        }
        assert (command.pid, command.attached) == (42, False)
        await guest.end("s/run_a/1", 1, code=3, stdout=KEPT, stderr=KEPT, left=[9])
        outcome = await within(command.outcome())
        assert (outcome.code, outcome.reason, outcome.left) == (3, "exit", (9,))
        assert outcome.stdout == Kept(b"hi", b"", 2, 0)
        assert await within(command.outcome()) is outcome


async def test_a_kept_outcome_is_acknowledged_only_when_it_is_released() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, "s/run_a/1", output="keep")
        await guest.end("s/run_a/1", 5, stdout=KEPT, stderr=KEPT)
        await within(command.outcome())
        await within(both(link.cancel_run(RunId("run_a"), 1.0), answer(guest, "run.cancel")))  # no ack came before it
        await command.release()
        await command.release()
        assert (await guest.hear("ack"))["p"] == {"seqs": [5]}
        await within(both(link.cancel_run(RunId("run_a"), 1.0), answer(guest, "run.cancel")))  # and none after


async def test_a_stream_outcome_is_acknowledged_when_it_was_taken() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        await guest.end("x/1", 8)
        assert (await within(command.outcome())).code == 0
        assert (await guest.hear("ack"))["p"] == {"seqs": [8]}


async def test_reports_of_keys_that_nobody_holds() -> None:
    """Of an exec whose caller is gone: acknowledged at once. Of a step: kept for the run that will ask again."""
    async with rig() as r:
        link, guest = await r.attach(commands={"x/old": "ended", "s/run_a/2": "ended"})
        await guest.end("s/run_a/2", 3, stdout=KEPT, stderr=KEPT)
        await guest.end("x/old", 4)
        assert (await guest.hear("ack"))["p"] == {"seqs": [4]}
        spawning = asyncio.ensure_future(link.spawn("s/run_a/2", spec("keep")))
        await guest.spawned(attached=True)
        await guest.end("s/run_a/2", 3, stdout=KEPT, stderr=KEPT)  # the guest sends it again for who attaches
        command = await within(spawning)
        assert command.attached
        assert (await within(command.outcome())).stdout == Kept(b"hi", b"", 2, 0)
        await command.release()
        assert (await guest.hear("ack"))["p"] == {"seqs": [3]}


async def test_unclaimed_outcomes_never_fill_the_guests_memory() -> None:
    async with rig() as r:
        _, guest = await r.attach()
        for seq in range(1, 67):
            await guest.end(f"s/run_a/{seq}", seq, stdout=KEPT, stderr=KEPT)
        acks: list[int] = []
        while len(acks) < 2:
            acks += (await guest.hear("ack"))["p"]["seqs"]
        assert acks == [1, 2]  # the oldest two of 66: 64 are kept


async def test_output_comes_in_order_and_grants_follow_what_was_taken() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        chunks = [bytes([65 + i]) * CHUNK for i in range(5)]
        for chunk in chunks:
            await guest.output("x/1", chunk)
        await guest.output("x/1", b"err", 2)
        await guest.end("x/1", 1)
        taken = [chunk async for chunk in command.output()]
        assert taken == [*((1, chunk) for chunk in chunks), (2, b"err")]


async def test_output_above_its_rate_waits_in_the_box() -> None:
    """Both commands of the box share one rate: a burst of 16 chunks, then 8 a second."""
    free, bounded = await _seconds_of_output(0), await _seconds_of_output(8 * CHUNK)
    assert bounded >= 0.9 and bounded > free  # 8 chunks above the burst


async def _seconds_of_output(output: int) -> float:
    async with rig(output=output) as r:
        link, guest = await r.attach()
        commands = [await spawned(r, link, guest, key) for key in ("x/1", "x/2")]
        readers = [asyncio.ensure_future(_drained(command)) for command in commands]
        began = asyncio.get_running_loop().time()
        for number in range(12):  # 24 chunks: the last grant covers all but those owed
            for command in commands:
                await guest.output(command.key, b"x" * CHUNK)
            if number % 2:
                await guest.hear("cmd.grant")
                await guest.hear("cmd.grant")
        seconds = asyncio.get_running_loop().time() - began
        for number, command in enumerate(commands, 1):
            await guest.end(command.key, number)
        assert [await within(reader) for reader in readers] == [12 * CHUNK] * 2
        return seconds


async def _drained(command: WireCommand) -> int:
    return sum([len(data) async for _, data in command.output()])


async def test_a_reader_that_takes_nothing_grants_nothing_and_one_that_does_grants_it_all() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        for _ in range(WINDOW // CHUNK):
            await guest.output("x/1", bytes(CHUNK))
        await within(both(link.cancel_run(RunId("run_a"), 1.0), answer(guest, "run.cancel")))  # no grant came before it
        reader = command.output()
        for _ in range(WINDOW // CHUNK):
            await within(anext(reader))
        granted = (await guest.hear("cmd.grant"))["p"]["bytes"] + (await guest.hear("cmd.grant"))["p"]["bytes"]
        assert granted == 4 * CHUNK  # twice what reaches 64 KiB; the fifth chunk is owed
        await guest.end("x/1", 1)
        with pytest.raises(StopAsyncIteration):
            await within(anext(reader))


async def test_a_reader_that_goes_away_lets_the_command_go_on() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        await guest.output("x/1", b"one")
        async for _ in command.output():
            break
        for _ in range(10):
            await guest.output("x/1", bytes(CHUNK))
            if _ % 2:
                await guest.hear("cmd.grant")
        await guest.end("x/1", 1)
        assert (await within(command.outcome())).code == 0
        with pytest.raises(Conflict):
            await anext(command.output())


async def test_stdin_is_sent_in_chunks_within_the_credit() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, stdin="pipe")
        data = bytes(range(256)) * 2048  # 512 KiB: twice the window
        writing = asyncio.ensure_future(command.write(data))
        got = b""
        while len(got) < WINDOW:
            got += base64.b64decode((await guest.hear("cmd.stdin"))["p"]["data_b64"])
        await asyncio.sleep(0.02)
        assert not writing.done()
        await guest.say(m="cmd.credit", p={"key": "x/1", "bytes": WINDOW})
        while len(got) < len(data):
            frame = (await guest.hear("cmd.stdin"))["p"]
            assert not frame["eof"]
            got += base64.b64decode(frame["data_b64"])
        await within(writing)
        assert got == data
        await command.close_stdin()
        await command.close_stdin()
        assert (await guest.hear("cmd.stdin"))["p"] == {"key": "x/1", "data_b64": "", "eof": True}
        await command.write(b"late")
        await guest.end("x/1", 1)
        await within(command.outcome())
        await command.write(b"later")


async def test_writing_to_a_command_that_ends_returns() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, stdin="pipe")
        writing = asyncio.ensure_future(command.write(bytes(WINDOW * 2)))
        await asyncio.sleep(0.01)
        await guest.end("x/1", 1)
        await within(writing)


async def test_signal_and_stop_are_asked_and_a_command_that_has_ended_is_left_alone() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        _, asked = await within(both(command.signal(15), answer(guest, "cmd.signal")))
        assert asked == {"key": "x/1", "signal": 15}
        _, asked = await within(both(command.stop(0.5), answer(guest, "cmd.stop")))
        assert asked == {"key": "x/1", "grace_ms": 500}
        stopping = asyncio.ensure_future(command.stop(0.5))
        frame = await guest.hear("cmd.stop")
        await guest.say(re=frame["id"], err={"code": "not_found", "message": "no such command"})
        await within(stopping)
        await guest.end("x/1", 1)
        await within(command.outcome())
        await within(command.stop(0.5))


async def test_one_key_is_one_command() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        first, second = asyncio.ensure_future(link.spawn("s/r/1", spec("keep"))), None
        await asyncio.sleep(0)
        second = asyncio.ensure_future(link.spawn("s/r/1", spec("keep")))
        await guest.spawned()
        assert await within(first) is await within(second)


async def test_a_refused_spawn_is_an_error_of_the_caller_and_forgotten() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        spawning = asyncio.ensure_future(link.spawn("x/1", spec()))
        frame = await guest.hear("cmd.spawn")
        await guest.say(re=frame["id"], err={"code": "whatever", "message": "no"})
        with pytest.raises(Failed, match="no"):
            await within(spawning)
        await spawned(r, link, guest)


async def test_what_does_not_fit_in_a_frame_is_too_large_and_ends_nothing() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        with pytest.raises(TooLarge, match="1048576"):
            await link.spawn("x/1", CommandSpec([bytes(1 << 20)], {}, "/", "null", "keep", None))
        await spawned(r, link, guest)


async def test_a_caller_that_goes_away_while_its_exec_starts_stops_it() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        spawning = asyncio.ensure_future(link.spawn("x/1", spec()))
        frame = await guest.hear("cmd.spawn")
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning
        await guest.say(re=frame["id"], ok={"pid": 4, "attached": False})
        await answer(guest, "cmd.stop")
        await guest.end("x/1", 1, reason="killed", signal=15, code=None)
        assert (await guest.hear("ack"))["p"] == {"seqs": [1]}


async def test_sixty_five_requests_at_once_are_sixty_four_and_one_that_waits() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        spawning = [asyncio.ensure_future(link.spawn(f"x/{n}", spec())) for n in range(65)]
        frames = [await guest.hear("cmd.spawn") for _ in range(64)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in spawning)
        await guest.say(re=frames[0]["id"], ok={"pid": 1, "attached": False})
        last = await guest.hear("cmd.spawn")
        for frame in [*frames[1:], last]:
            await guest.say(re=frame["id"], ok={"pid": 1, "attached": False})
        assert len(await within(asyncio.gather(*spawning))) == 65


async def test_closing_says_bye_and_tells_nobody() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        await link.close()
        await guest.hear("bye")
        assert await guest.ended()
        assert (await within(command.outcome())).reason == "box_lost"
        with pytest.raises(BoxLost):
            await link.spawn("x/2", spec())
        await asyncio.sleep(0.01)
        assert r.host.lost == []
        assert r.audit.lines == []


async def test_an_end_of_the_wire_ends_each_request_once_and_is_told_once() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        waiting = [asyncio.ensure_future(link.spawn(f"x/w{n}", spec())) for n in range(3)]
        await asyncio.sleep(0.01)
        guest.close()
        results = await within(asyncio.gather(*waiting, return_exceptions=True))
        assert [type(result) for result in results] == [BoxLost] * 3
        outcome = await within(command.outcome())
        assert (outcome.reason, outcome.code) == ("box_lost", None)
        assert r.host.lost == [BOX]
        assert not link.alive
        with pytest.raises(BoxLost):
            await link.start_run(RUN_START)


async def test_a_guest_that_says_nothing_is_given_up() -> None:
    async with rig(hello_seconds=0.05) as r:
        guest = ScriptedGuest()
        r.guests.append(guest)
        with pytest.raises(BoxLost, match=r"no hello within 0\.05 s"):
            await within(r.broker.attach(BOX, guest.take_fd(), r.host))
        assert r.audit.kinds == ["silent"]
        assert await guest.ended()
        assert r.host.lost == []


async def test_a_guest_that_does_not_answer_a_request_is_given_up() -> None:
    async with rig(reply_seconds=0.05) as r:
        link, _ = await r.attach()
        with pytest.raises(BoxLost):
            await within(link.spawn("x/1", spec()))
        assert r.audit.kinds == ["silent"]
        await until(lambda: r.host.lost == [BOX])


async def test_a_guest_of_another_generation_is_refused() -> None:
    async with rig() as r:
        guest = ScriptedGuest()
        r.guests.append(guest)
        attaching = asyncio.ensure_future(r.broker.attach(BOX, guest.take_fd(), r.host))
        await guest.greet(generation=2)
        with pytest.raises(BoxLost):
            await within(attaching)
        assert r.audit.lines == [("protocol", "a guest of generation 2; this host speaks 1")]


async def test_large_requests_wait_for_a_guest_that_reads_late_and_all_arrive() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        large = CommandSpec([bytes(700_000)], {}, "/", "null", "keep", None)  # 0.9 MB each: 20 are five times the queue
        spawning = [asyncio.ensure_future(link.spawn(f"x/{n}", large)) for n in range(20)]
        await asyncio.sleep(0.05)
        for _ in spawning:
            await guest.spawned()
        assert len(await within(asyncio.gather(*spawning))) == 20
        assert link.alive
        assert r.audit.lines == []
