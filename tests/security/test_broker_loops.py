"""Attacks by an agent loop on the host and on the other runs of its box (threats.md group G).

A loop is answered as if what it may not see did not exist, slowed down when it floods, and ended alone when it breaks a
rule. Positive controls: the same ask with the right token, in bounds, or at its rate is taken.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ringfence.host.broker import asks, link
from ringfence.host.kernel.errors import NotFound
from ringfence.wire.framing import MAX_LOOP_FRAME, decode, encode, unwrap_run, wrap_run
from ringfence.wire.messages import METHODS, Finished, Side, ThreadMessage
from tests.fuzz.fuzz_wire import ASKS
from tests.support.broker_rig import Rig, asked, rig, until
from tests.support.scripted_guest import ScriptedGuest

FINISH: dict[str, Any] = {"token": "tok", "text": "done", "seen": 1}
EVENT: dict[str, Any] = {"token": "tok", "text": "at work"}
STEP = {"n": 1, "tool": "shell", "arguments": {}, "effect": "local"}
SAMPLES: dict[str, dict[str, Any]] = {
    **dict(ASKS),
    "step.begin": STEP,
    "step.end": {"n": 1, "result": {}},
    "run.fail": {"code": "x", "message": ""},
}
BLOB = "a" * 64


def test_there_is_a_sample_of_every_ask() -> None:
    assert SAMPLES.keys() == {row.name for row in METHODS.values() if row.side is Side.LOOP}


@pytest.mark.parametrize("method", SAMPLES)
async def test_g09_no_ask_counts_with_another_runs_token(method: str) -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok", "run_b": "tok of b"})
        wrong = [("run_a", "tok of b"), ("run_b", "tok"), ("run_c", "tok"), ("run_a", "")]
        for number, (run, token) in enumerate(wrong, start=1):
            reply = await asked(guest, number, method, run=run, **{**SAMPLES[method], "token": token})
            assert reply["err"] == {"code": NotFound.code, "message": f"no such run: {run!r}"}
        assert r.host.asked == []
        await asked(guest, 9, method, **SAMPLES[method])  # control: its own
        assert [(run, name) for run, name, _ in r.host.asked] == [("run_a", method)]
        assert link.alive


OUT_OF_BOUNDS: list[tuple[str, dict[str, Any], str]] = [
    ("run.event", {"text": "x" * 4097}, "too_large"),
    ("thread.read", {"before": 9, "limit": 201}, "invalid"),
    ("thread.summarise", {"cursor": 1, "text": "x" * 65537}, "too_large"),
    ("blob.put", {"blob": "../../etc/passwd", "n": 0, "size": 2, "data_b64": "aGk="}, "invalid"),
    ("blob.put", {"blob": BLOB, "n": 0, "size": 1 << 40, "data_b64": "aGk="}, "too_large"),
    ("blob.get", {"blob": BLOB, "n": -1}, "invalid"),
    ("checkpoint.save", {"boundary": "final", "step": 1, "state": "", "blobs": ["x"]}, "invalid"),
]


@pytest.mark.parametrize(("method", "params", "code"), OUT_OF_BOUNDS)
async def test_what_is_out_of_bounds_is_the_loops_error_and_reaches_nobody(
    method: str, params: dict[str, Any], code: str
) -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        assert (await asked(guest, 1, method, **params))["err"]["code"] == code
        assert r.host.asked == []
        assert link.alive
        assert "ok" in await asked(guest, 2, "run.finish", **FINISH)


# --- floods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "waits"), [(1000, False), (5, True)])
async def test_the_rate_of_events_is_the_settings(events: int, waits: bool) -> None:
    async with rig(events=events) as r:
        _link, guest = await r.attach(runs={"run_a": "tok"})
        frames = [wrap_run("run_a", encode({"id": n, "m": "run.event", "p": EVENT})) for n in range(1, 31)]
        began = time.monotonic()
        await guest.send(b"".join(frames))
        for _ in frames:
            await guest.loop_hears()
        assert (time.monotonic() - began >= 3.5) is waits  # 30, of which 10 are a burst and 20 come at 5 a second: 4 s


async def test_g14_a_flood_of_events_is_slowed_and_the_other_runs_are_served() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok", "run_b": "tok"})
        frames = [wrap_run("run_a", encode({"id": n, "m": "run.event", "p": EVENT})) for n in range(1, 61)]
        began = time.monotonic()
        await guest.send(b"".join(frames))  # 20 a second and bursts of 40: the last 20 of 60 wait, the last one for 1 s
        await guest.loop_says("run_b", id=1, m="run.finish", p=FINISH)
        heard: list[str] = []
        while "run_b" not in heard:
            heard.append((await guest.loop_hears())[0])
        assert len(heard) <= 45  # it did not wait behind the flood
        while len(heard) < 61:
            heard.append((await guest.loop_hears())[0])
        assert time.monotonic() - began >= 0.8
        assert link.alive
        assert r.audit.lines == []


async def test_g14_asks_that_are_too_large_are_slowed_as_well() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        began = time.monotonic()
        for number in range(1, 47):
            assert (await asked(guest, number, "run.event", text="x" * 40_000))["err"]["code"] == "too_large"
        assert time.monotonic() - began >= 0.2  # 6 beyond the burst of 40, 50 ms each
        assert r.host.asked == []
        assert link.alive


async def test_g14_a_loop_with_too_many_asks_in_flight_is_ended_alone() -> None:
    runs = {"run_a": "tok", "run_b": "tok"}
    async with rig(redials=True) as r:
        link, guest = await r.attach(runs=runs)
        r.host.held.clear()
        save = {"token": "tok", **SAMPLES["checkpoint.save"]}
        for number in range(1, 65):
            await guest.send(wrap_run("run_a", encode({"id": number, "m": "checkpoint.save", "p": save})))
        await until(lambda: len(r.host.asked) == 64)
        await guest.loop_says("run_b", id=1, m="checkpoint.save", p=save)  # control: it is asked all the same
        await until(lambda: len(r.host.asked) == 65)
        assert link.alive
        await guest.loop_says("run_a", id=65, m="checkpoint.save", p=save)
        assert await guest.ended()
        assert len(r.host.asked) == 65
        await _only_one_is_ended(r, runs, "run_a")
        r.host.held.set()


async def test_g14_the_loop_that_holds_the_most_is_the_one_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is 64 MiB for a box; here it is 1 MiB."""
    monkeypatch.setattr(asks, "_MAX_OPEN", 1 << 20)
    runs = {"run_a": "tok", "run_b": "tok"}
    async with rig(redials=True) as r:
        link, guest = await r.attach(runs=runs)
        r.host.held.clear()
        save = {"token": "tok", **SAMPLES["checkpoint.save"], "state": "x" * 300_000}
        for number in (1, 2, 3):
            await guest.loop_says("run_a", id=number, m="checkpoint.save", p=save)
        await guest.loop_says("run_b", id=1, m="run.event", p=EVENT)
        await until(lambda: len(r.host.asked) == 4)
        assert link.alive
        await guest.loop_says("run_b", id=2, m="checkpoint.save", p=save)
        assert await guest.ended()
        await _only_one_is_ended(r, runs, "run_a")
        r.host.held.set()


async def _only_one_is_ended(r: Rig, runs: dict[str, str], run: str) -> None:
    """On the next wire."""
    link, guest = await r.attach(runs=runs)
    cancel = await guest.hear("run.cancel")
    assert cancel["p"] == {"run": run, "grace_ms": 0}
    await guest.say(re=cancel["id"], ok={})
    r.host.held.set()
    assert "ok" in await asked(guest, 1, "run.event", run="run_b", text="on")
    assert link.alive
    assert r.audit.kinds == ["protocol"]


async def test_g14_asks_of_runs_that_are_not_there_are_bounded() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        flood = [wrap_run(f"run_x{n}", encode({"id": 1, "m": "run.finish", "p": FINISH})) for n in range(100)]
        assert await guest.push(b"".join(flood))  # 10 a second and bursts of 20: 80 would wait, and 64 may
        assert await guest.ended()
        assert not link.alive
        assert r.host.asked == []


async def test_a_reply_to_a_loop_that_is_gone_goes_to_nobody() -> None:
    """The new loop of the run has an ask of the same number in flight: it must not get the old one's answer."""
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        r.host.held.clear()
        await guest.loop_says("run_a", id=1, m="run.event", p=EVENT)
        await until(lambda: len(r.host.asked) == 1)
        await guest.say(m="loop.ended", seq=1, p={"run": "run_a", "code": None, "signal": 9})
        r.host.answers = {"thread.read": {"messages": [], "more": False}}
        await guest.loop_says("run_a", id=1, m="thread.read", p={"token": "tok", **SAMPLES["thread.read"]})
        await until(lambda: len(r.host.asked) == 2)
        r.host.held.set()
        replies = await _replies(guest)
        assert replies == [{"re": 1, "ok": {"messages": [], "more": False}}]


async def _replies(guest: ScriptedGuest) -> list[dict[str, Any]]:
    """The first, however long it takes, and all that come within a moment of the one before; acknowledgements left out."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            line = await asyncio.wait_for(guest.line(), 0.2 if found else 30)
        except TimeoutError:
            return found
        wrapped = unwrap_run(line)
        if wrapped is not None:
            found.append(decode(wrapped[1]))


# --- frames that would make too much of themselves -------------------------------------------------------------------

BOMBS = [b"[],", b"{},", b"1,", b'"",']


def _bomb(part: bytes, method: bytes = b"step.end") -> bytes:
    """Of 1 MiB."""
    whole = part * ((MAX_LOOP_FRAME - 200) // len(part))
    return b'{"id":1,"m":"%b","p":{"token":"tok","n":1,"result":{"a":[%b0]}}}' % (method, whole)


@pytest.mark.parametrize("part", BOMBS)
async def test_g15_a_frame_of_too_many_values_is_refused_before_it_is_parsed(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"run_a": "tok", "run_b": "tok"}
    async with rig(redials=True) as r:
        _, guest = await r.attach(runs=runs)
        await guest.push(wrap_run("run_a", _bomb(part)))
        assert await guest.ended()
        assert r.host.asked == []
        assert "more than" in str(r.audit.lines)
        await _only_one_is_ended(r, runs, "run_a")
    monkeypatch.setattr(asks, "check_frame", lambda frame: None)  # control: without the wall it is parsed and taken
    async with rig() as r:
        _, guest = await r.attach(runs=runs)
        await guest.push(wrap_run("run_a", _bomb(part)))
        if part != b"{},":  # of objects there may be 10,000 keys less
            await until(lambda: len(r.host.asked) == 1)


async def test_g15_a_guests_own_frame_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        _, guest = await r.attach()
        await guest.push(_bomb(b"[],") + b"\n")
        assert await guest.ended()
        assert "more than 20000 lists and objects" in str(r.audit.lines)
    monkeypatch.setattr(link, "check_frame", lambda frame: None)
    async with rig() as r:
        _, guest = await r.attach()
        await guest.push(_bomb(b"[],") + b"\n")
        assert await guest.ended()
        assert "may not ask" in str(r.audit.lines)  # control: it came to be understood


async def test_an_honest_frame_may_be_full_of_text() -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        rows = [["a, b", "[{,", n] for n in range(5000)]
        text = '[{"a", "b"},\n' * 20_000
        assert "ok" in await asked(guest, 1, "step.end", n=1, result={"rows": rows, "text": text})


# --- who may ask -----------------------------------------------------------------------------------------------------


async def test_g09_an_unknown_run_a_run_of_somebody_else_and_a_wrong_token_are_one_answer() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        await guest.loop_says("run_b", id=1, m="run.finish", p=FINISH)
        await guest.loop_hears()  # nothing is kept of a run that is not there, its ids neither
        tries = [("run_b", "tok"), ("run_a", "tok2"), ("run_a", ""), ("run_a", "tok\x00"), ("run_b", "")]
        for number, (run, token) in enumerate(tries, start=1):
            await guest.loop_says(run, id=number, m="run.finish", p={"token": token, "text": "", "seen": 1})
            _, reply = await guest.loop_hears()
            assert reply["err"] == {"code": NotFound.code, "message": f"no such run: {run!r}"}
        assert r.host.asked == []
        assert link.alive
        await guest.loop_says("run_a", id=900, m="run.finish", p=FINISH)  # control: run and token together
        assert (await guest.loop_hears())[1] == {"re": 900, "ok": {"steers": []}}
        assert len(r.host.asked) == 1


async def test_g09_absent_and_not_to_be_seen_take_the_same_time() -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        took: dict[str, list[float]] = {"run_a": [], "run_b": []}
        for number in range(1, 11):  # within the burst of both
            for run in ("run_a", "run_b"):
                began = time.perf_counter()
                await guest.loop_says(run, id=number, m="run.finish", p={"token": "no", "text": "", "seen": 1})
                await guest.loop_hears()
                took[run].append(time.perf_counter() - began)
        medians = {run: sorted(times)[5] for run, times in took.items()}
        assert max(medians.values()) < 5 * min(medians.values())


async def test_an_ask_larger_than_its_row_is_refused_and_goes_on() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        await guest.loop_says("run_a", id=1, m="run.fail", p={"token": "tok", "code": "x", "message": "y" * 65536})
        assert (await guest.loop_hears())[1]["err"]["code"] == "too_large"
        assert link.alive
        assert r.host.asked == []


async def test_hello_cannot_take_over_a_run_that_this_kernel_gave() -> None:
    """A guest that claims a run of this kernel's with a token of its own choice does not replace the right one."""
    async with rig(redials=True) as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        _, second = await r.attach(runs={"run_a": "mine"})
        assert await guest.ended()
        await second.loop_says("run_a", id=1, m="run.finish", p={**FINISH, "token": "mine"})
        assert (await second.loop_hears())[1]["err"]["code"] == "not_found"
        await second.loop_says("run_a", id=2, m="run.finish", p=FINISH)
        assert "ok" in (await second.loop_hears())[1]


async def test_g15_answers_to_loops_that_nobody_reads_are_bounded() -> None:
    async with rig(write_seconds=60.0) as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        r.host.answers = {"run.finish": Finished([ThreadMessage("user", "alice", "y" * 1_000_000, 2)])}
        for number in range(1, 10):
            await guest.push(wrap_run("run_a", encode({"id": number, "m": "run.finish", "p": FINISH})))
        await until(lambda: not link.alive)
        assert r.audit.kinds == ["slow_reader"]
