"""Protocol attacks on the broker (threats.md group G, and D08), by whoever holds the box's end of the wire.

Each attack ends the attacker's own wire, or is answered as if the thing did not exist; the broker goes on to serve
another box. Positive controls: the same frame without the flaw is taken.
"""

from __future__ import annotations

import array
import asyncio
import os
import resource
import socket
from typing import Any

import pytest

from ringfence.host.kernel.errors import BoxLost
from ringfence.wire.credits import CHUNK, WINDOW
from ringfence.wire.framing import MAX_FRAME, decode, wrap_run
from tests.contract.test_broker import spawned
from tests.support.broker_rig import Rig, rig, spec, until, within
from tests.support.scripted_guest import BOX, ENDED, KEPT, ScriptedGuest

CREDIT = b'{"m":"cmd.credit","p":{"key":"x/1","bytes":1}}'
RAW: dict[str, bytes] = {
    "G01 no newline ever": b"x" * (MAX_FRAME + 1),
    "G01 a long line": b'{"m":"' + b"x" * MAX_FRAME + b'"}\n',
    "G02 brackets": b"[" * 100_000 + b"\n",
    "G02 objects": b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n",
    "G02 deep parameters": b'{"m":"cmd.credit","p":' + b'{"a":' * 70 + b"1" + b"}" * 71 + b"\n",
    "G06 NaN": CREDIT.replace(b":1}", b":NaN}") + b"\n",
    "G06 infinity": CREDIT.replace(b":1}", b":-Infinity}") + b"\n",
    "G06 1e999": CREDIT.replace(b":1}", b":1e999}") + b"\n",
    "G06 a long integer": CREDIT.replace(b":1}", b":" + b"9" * 5000 + b"}") + b"\n",
    "G06 2**63": CREDIT.replace(b":1}", b":9223372036854775808}") + b"\n",
    "G08 not JSON": b"hello\n",
    "G08 not UTF-8": b'{"m":"\xff"}\n',
    "G08 no object": b"[1]\n",
    "G08 a batch": b"[" + CREDIT + b"]\n",
    "G08 two values": CREDIT + CREDIT + b"\n",
    "G08 an empty line": b"\n",
    "G08 an unknown method": b'{"m":"host.exec","p":{}}\n',
    "G08 a method of the host": b'{"m":"cmd.grant","p":{"key":"x/1","bytes":1}}\n',
    "G08 a method of PID 1 to loops": b'{"m":"rewired","p":{}}\n',
    "G08 a method of a loop from PID 1": b'{"id":1,"m":"run.finish","p":{"token":"t","text":"","seen":1}}\n',
    "G08 a request for a notification": b'{"id":1,"m":"cmd.credit","p":{"key":"x/1","bytes":1}}\n',
    "G08 no parameters": b'{"m":"cmd.credit"}\n',
    "G08 a wrong type": CREDIT.replace(b":1}", b':"1"}') + b"\n",
    "G08 a bool": CREDIT.replace(b":1}", b":true}") + b"\n",
    "G08 a float": CREDIT.replace(b":1}", b":1.0}") + b"\n",
    "G08 an extra field": CREDIT.replace(b":1}", b':1,"user":"bob"}') + b"\n",
    "G08 an extra field of the envelope": CREDIT[:-1] + b',"user":"bob"}\n',
    "G08 a key twice": CREDIT.replace(b'"bytes"', b'"key":"x/2","bytes"') + b"\n",
    "G08 a report without a number": b'{"m":"loop.ended","p":{"run":"run_a","code":0,"signal":null}}\n',
    "G08 a notification with a number": CREDIT[:-1] + b',"seq":1}\n',
    "G08 a negative credit": CREDIT.replace(b":1}", b":-1}") + b"\n",
    "G11 a reply to nothing": b'{"re":77,"ok":{}}\n',
    "G11 hello again": b'{"re":1,"ok":{}}\n',
    "a wrapper that is none": b'{"run":"../x","f":{}}\n',
    "a row's size": b'{"m":"cmd.credit","p":{"key":"' + b"k" * 2000 + b'","bytes":1}}\n',
    "output that was never granted": b'{"m":"cmd.output","p":{"key":"x/1","stream":3,"data_b64":""}}\n',
    "a literal that is true": b'{"m":"cmd.output","p":{"key":"x/1","stream":true,"data_b64":""}}\n',
    "base64 that is none": b'{"m":"cmd.output","p":{"key":"x/1","stream":1,"data_b64":"a"}}\n',
    "an exit status that is none": b'{"m":"cmd.ended","seq":1,"p":{"key":"x/1","code":256,"signal":null,"reason":"exit",'
    b'"message":"","left":[],"duration_ms":1,"stdout":null,"stderr":null}}\n',
    "an outcome of the host's": b'{"m":"cmd.ended","seq":1,"p":{"key":"x/1","code":0,"signal":null,"reason":"oom",'
    b'"message":"","left":[],"duration_ms":1,"stdout":null,"stderr":null}}\n',
}
FINISH: dict[str, Any] = {"token": "tok", "text": "done", "seen": 1}


async def still_serves(r: Rig) -> None:
    link, guest = await r.attach(guest="guest-after")
    await spawned(r, link, guest, "x/after")


@pytest.mark.parametrize("attack", RAW)
async def test_a_broken_rule_ends_the_wire_and_is_audited(attack: str) -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        command = await spawned(r, link, guest)
        await guest.send(CREDIT + b"\n")  # control: without a flaw it is taken
        await guest.output("x/1", b"ok")
        assert await within(anext(command.output())) == (1, b"ok")
        await guest.push(RAW[attack])  # the host may end in the middle of it
        assert await guest.ended()
        assert not link.alive
        assert r.audit.kinds == ["protocol"]
        assert (await within(command.outcome())).reason == "box_lost"
        assert r.host.asked == []
        await still_serves(r)


@pytest.mark.parametrize(
    "attack", [b'{"re":1}\n', b'{"re":1,"ok":{}}\n', b'{"re":1,"ok":{"generation":1}}\n', b"\xff\n", CREDIT + b"\n"]
)
async def test_before_hello_nothing_but_hello_is_taken(attack: bytes) -> None:
    async with rig() as r:
        guest = ScriptedGuest()
        r.guests.append(guest)
        attaching = asyncio.ensure_future(r.broker.attach(BOX, guest.take_fd(), r.host))
        await guest.send(attack)
        with pytest.raises(BoxLost):
            await within(attaching)
        assert await guest.ended()
        assert r.audit.kinds == ["protocol"]
        assert r.host.lost == []


async def test_g03_half_a_frame_is_dropped() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        await guest.say(m="cmd.ended", seq=1, p={**ENDED, "key": "x/other"})  # control: a whole one is acknowledged
        assert (await guest.hear("ack"))["p"] == {"seqs": [1]}
        whole = b'{"m":"cmd.ended","seq":2,"p":{"key":"x/1","code":0,"signal":null,"reason":"exit","message":"",'
        await guest.send(whole + b'"left":[],"duration_ms":1,"stdout":null,"stderr":null}}')
        guest.close()
        assert (await within(command.outcome())).reason == "box_lost"
        assert r.audit.kinds == ["half_frame"]


async def test_g04_a_frame_that_never_ends_is_timed_out_and_a_slow_one_is_not() -> None:
    async with rig(frame_seconds=0.3) as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        for part in range(0, len(CREDIT), 4):
            await guest.send(CREDIT[part : part + 4])
            await asyncio.sleep(0.01)
        await guest.send(b"\n{")
        await asyncio.sleep(0.2)
        assert link.alive
        async with asyncio.timeout(30):
            while await guest.push(b" "):
                await asyncio.sleep(0.05)
        assert r.audit.kinds == ["slow_frame"]
        assert (await within(command.outcome())).reason == "box_lost"


async def test_g11_a_replayed_ask_ends_the_wire() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        await guest.loop_says("run_a", id=5, m="run.finish", p=FINISH)
        await guest.loop_hears()
        await guest.loop_says("run_a", id=5, m="run.finish", p=FINISH)
        assert await guest.ended()
        assert len(r.host.asked) == 1
        assert not link.alive


async def test_g11_a_replayed_report_counts_once() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest, "s/run_a/1", output="keep")
        await guest.end("s/run_a/1", 1, stdout=KEPT, stderr=KEPT)
        await guest.end("s/run_a/1", 1, code=9, stdout=KEPT, stderr=KEPT)
        await guest.end("s/run_a/1", 2, code=8, stdout=KEPT, stderr=KEPT)
        assert (await within(command.outcome())).code == 0
        assert link.alive


@pytest.mark.parametrize(
    "frame",
    [
        b'{"id":1,"m":"cmd.spawn","p":{}}',
        b'{"id":1,"m":"thread.steal","p":{}}',
        b'{"id":1,"m":"run.cancel","p":{"run":"run_a","grace_ms":1}}',
        b'{"m":"run.finish","p":{"token":"tok","text":"","seen":1}}',
        b'{"id":1,"m":"run.finish","p":{"token":"tok","text":"","seen":1,"user_id":"alice"}}',
        b'{"id":1,"m":"run.finish","p":{"token":"tok","text":7,"seen":1}}',
        b'{"id":true,"m":"run.finish","p":{"token":"tok","text":"","seen":1}}',
        b'{"id":1,"m":"step.begin","p":{"token":"tok","n":1,"tool":"x","arguments":{},"effect":"once"}}',
        b'{"re":1,"ok":{}}',
        b'{"id":1,"m":"run.finish","p":{"token":"tok","text":"","seen":1}}}',
        b'{"run":"run_b","f":{}}',
        b"",
    ],
)
async def test_g08_a_loops_broken_frame_reaches_nobody(frame: bytes) -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        await guest.send(wrap_run("run_a", frame))
        assert await guest.ended()
        assert r.audit.kinds == ["protocol"]
        assert r.host.asked == []


async def test_g08_a_loop_that_broke_a_rule_does_not_end_the_next_wire_too() -> None:
    """It is not heard again and is ended, whatever it goes on saying; the box's other runs go on."""
    async with rig(redials=True) as r:
        runs = {"run_a": "tok", "run_b": "tok"}
        _, first = await r.attach(runs=runs)
        await first.send(wrap_run("run_a", b"garbage"))
        assert await first.ended()
        link, second = await r.attach(runs=runs)
        await second.send(wrap_run("run_a", b"garbage") * 3)
        cancel = await second.hear("run.cancel")
        assert cancel["p"] == {"run": "run_a", "grace_ms": 0}
        await second.loop_says("run_b", id=1, m="run.finish", p=FINISH)
        assert (await second.loop_hears())[0] == "run_b"
        await second.say(re=cancel["id"], ok={})
        await second.say(m="loop.ended", seq=1, p={"run": "run_a", "code": None, "signal": 9})
        await second.loop_says("run_a", id=1, m="run.finish", p=FINISH)  # a new loop of it is heard
        while (heard := decode(await second.line())).get("m") == "ack":
            pass
        assert link.alive and heard["run"] == "run_a"
        await second.send(wrap_run("run_a", b"garbage"))
        assert await second.ended()


async def test_g14_a_flood_of_tiny_notifications_ends_the_wire_with_flat_memory() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        burst = (CREDIT + b"\n") * 1000
        sent = 0
        while await guest.push(burst):
            sent += 1000
            assert sent < 1_000_000
        await until(lambda: not link.alive)
        assert r.audit.kinds == ["flood"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024  # KiB


async def test_g15_a_guest_that_never_reads_is_dropped_in_time_and_size() -> None:
    async with rig(write_seconds=0.3) as r:
        link, guest = await r.attach()
        big = spec("keep")
        big = type(big)([bytes(700_000)], {}, "/", "null", "keep", None)
        results = await within(asyncio.gather(*(link.spawn(f"x/{n}", big) for n in range(40)), return_exceptions=True))
        assert {type(result) for result in results} == {BoxLost}
        assert r.audit.kinds == ["slow_reader"]
        assert guest.sock.fileno() >= 0


async def test_output_beyond_the_window_ends_the_wire() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        command = await spawned(r, link, guest)
        for _ in range(WINDOW // CHUNK):
            await guest.output("x/1", bytes(CHUNK))
        await guest.output("x/1", bytes(WINDOW % CHUNK))
        await until(lambda: len(command._queue) == WINDOW // CHUNK + 1)
        assert link.alive  # control: the whole window is taken
        await guest.output("x/1", b"1")
        assert await guest.ended()
        assert r.audit.lines == [("protocol", "cmd.output that was not granted")]


async def test_g18_the_newest_wire_wins_and_the_older_one_is_closed() -> None:
    async with rig() as r:
        first, old = await r.attach()
        second, new = await r.attach()
        assert await old.ended()
        assert (first.alive, second.alive) == (False, True)
        await spawned(r, second, new)
        assert r.host.lost == []
        assert r.audit.lines == []


async def test_the_audit_is_told_once_in_ten_seconds_for_each_box() -> None:
    async with rig() as r:
        for _ in range(5):
            _, guest = await r.attach()
            await guest.send(b"garbage\n")
            assert await guest.ended()
        assert r.audit.kinds == ["protocol"]


async def test_a_hello_names_no_more_loops_than_a_box_may_run() -> None:
    for count, reason in ((64, ""), (65, "65 runs; the limit is 64")):
        async with rig() as r:
            guest = ScriptedGuest()
            r.guests.append(guest)
            attach = r.broker.attach(BOX, guest.take_fd(), r.host)
            done = await asyncio.gather(
                attach, guest.greet(runs={f"run_{n}": "t" for n in range(count)}), return_exceptions=True
            )
            assert isinstance(done[0], BoxLost) is bool(reason) and reason in str(done[0])


async def test_d08_descriptors_sent_over_the_wire_are_never_installed() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        payload = os.open("/dev/null", os.O_RDONLY)
        before = _descriptors()
        for _ in range(20):  # 50 each: the kernel allows at most 253 in one message
            rights = array.array("i", [payload] * 50)
            guest.sock.sendmsg([CREDIT + b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        command = await spawned(r, link, guest)  # everything before it has been read
        assert command.pid == 7
        assert _descriptors() == before
        os.close(payload)


def test_d08_control_a_reader_that_takes_control_messages_gets_them() -> None:
    host, guest = socket.socketpair()
    with host, guest, open("/dev/null", "rb") as payload:
        before = _descriptors()
        guest.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [payload.fileno()] * 50))])
        _, ancillary, _, _ = host.recvmsg(1, socket.CMSG_SPACE(200))
        assert _descriptors() == before + 50
        for fd in array.array("i", ancillary[0][2]):
            os.close(fd)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
