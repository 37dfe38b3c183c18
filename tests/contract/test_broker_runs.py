"""Runs over the broker: what loops are told, what they ask, and what is remembered of them afterwards."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import asdict
from typing import Any

import pytest

from ringfence.host.broker.link import WireLink
from ringfence.host.kernel.errors import BoxLost, Conflict, Diverged, Failed, TooLarge
from ringfence.host.kernel.ids import RunId
from ringfence.wire.messages import (
    BlobChunk,
    Done,
    Finished,
    Generated,
    RunFinish,
    StepBegun,
    ThreadMessage,
    ThreadPage,
    Usage,
)
from tests.support.broker_rig import RUN_START, answer, asked, both, rig, until, within
from tests.support.scripted_guest import ScriptedGuest

RUN = RunId("run_a")
SAID = {"role": "user", "author": "alice", "text": "and this", "cursor": 7}


# --- what loops are told ---------------------------------------------------------------------------------------------


async def test_a_run_is_started_and_its_asks_are_answered_by_the_engine() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        pid, params = await within(both(link.start_run(RUN_START), answer(guest, "run.start", pid=12)))
        assert pid == 12
        assert params.keys() == RUN_START.keys()
        assert params["messages"] == [
            {"role": "user", "author": "alice", "text": "$ true", "cursor": 1, "attachments": []}
        ]
        r.host.answers = {"step.begin": StepBegun("done", {"ok": True}, ""), "run.finish": Finished([])}
        token = {"token": "t" * 52}
        step: dict[str, Any] = {**token, "n": 1, "tool": "shell", "arguments": {"command": "true"}, "effect": "local"}
        assert await asked(guest, 1, "step.begin", **step) == {
            "re": 1,
            "ok": {"decision": "done", "result": {"ok": True}, "reason": ""},
        }
        assert (await asked(guest, 2, "run.finish", **token, text="done", seen=1))["ok"] == {"steers": []}
        assert r.host.asked[1] == (RUN, "run.finish", RunFinish("t" * 52, "done", 1))


@pytest.mark.parametrize("change", [{"window": "many"}, {"messages": [{"role": "user"}]}, {"more": 1}, {"token": None}])
async def test_a_run_start_that_is_none_is_a_fault_of_the_hosts_and_says_nothing(change: dict[str, Any]) -> None:
    async with rig() as r:
        link, guest = await r.attach()
        with pytest.raises(Failed, match=next(iter(change))):
            await link.start_run({**RUN_START, **change})
        await within(both(link.cancel_run(RUN, 1.0), answer(guest, "run.cancel")))  # nothing came before it


async def test_steers_and_the_soft_deadline_are_told_to_the_guest_whole_and_in_order() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        steers = [SAID, ThreadMessage("user", "alice", "x", 8), {**SAID, "cursor": 9}]
        telling = [asyncio.ensure_future(_steer(link, steer)) for steer in steers]
        heard = [await answer(guest, "run.steer") for _ in steers]
        await within(asyncio.gather(*telling))
        assert [told["message"]["cursor"] for told in heard] == [7, 8, 9]
        assert heard[0] == {"run": RUN, "message": {**SAID, "attachments": []}}
        _, told = await within(both(link.wind_down(RUN, 30), answer(guest, "run.wind_down")))
        assert told == {"run": RUN, "seconds": 30}


async def _steer(link: WireLink, message: Any) -> None:
    await link.steer_run(RUN, message if isinstance(message, dict) else asdict(message))


async def test_a_steer_that_did_not_arrive_is_an_error_of_its_caller() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        with pytest.raises(Failed, match="cursor"):
            await link.steer_run(RUN, {**SAID, "cursor": "7"})
        with pytest.raises(TooLarge):
            await link.steer_run(RUN, {**SAID, "text": "\x00" * 256 * 1024})
        steering = asyncio.ensure_future(link.steer_run(RUN, SAID))
        frame = await guest.hear("run.steer")
        await guest.say(re=frame["id"], err={"code": "busy", "message": "the loop is behind"})
        with pytest.raises(Conflict, match="behind"):
            await within(steering)
        steering = asyncio.ensure_future(link.steer_run(RUN, SAID))
        await guest.hear("run.steer")
        guest.close()
        with pytest.raises(BoxLost):
            await within(steering)
        with pytest.raises(BoxLost):
            await link.wind_down(RUN, 1)


# --- what they ask ---------------------------------------------------------------------------------------------------

MORE = ThreadMessage("user", "alice", "wait", 9)
CHAT = {"role": "user", "text": "hi"}
ANSWERS: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = [
    ("run.finish", {"text": "done", "seen": 1}, Finished([MORE]), {"steers": [asdict(MORE)]}),
    (
        "run.finish",
        {"text": "done", "seen": 1},
        {"steers": (MORE, SAID)},  # what the engine has may hold dataclasses and leave defaults out
        {"steers": [asdict(MORE), {**SAID, "attachments": []}]},
    ),
    (
        "thread.read",
        {"before": 9, "limit": 200},
        ThreadPage([MORE], True),
        {"messages": [asdict(MORE)], "more": True},
    ),
    ("thread.summarise", {"cursor": 3, "text": "so far"}, None, {}),
    ("run.event", {"text": "at work"}, Done(), {}),
    ("blob.get", {"blob": "a" * 64, "n": 0}, BlobChunk("aGk=", 2), {"data_b64": "aGk=", "size": 2}),
    ("blob.put", {"blob": "a" * 64, "n": 0, "size": 2, "data_b64": "aGk="}, {}, {}),
    ("checkpoint.save", {"boundary": "final", "step": 1, "state": "s", "blobs": ["a" * 64]}, {}, {}),
    (
        "model.generate",
        {
            "model": "m",
            "call": 1,
            "messages": [CHAT],
            "blob": None,
            "tools": [{"name": "shell", "description": "d", "parameters": {"type": "object"}}],
        },
        Generated("hello", [], "length", Usage(3, 4)),
        {"text": "hello", "tool_calls": [], "stop": "length", "usage": {"input_tokens": 3, "output_tokens": 4}},
    ),
]


@pytest.mark.parametrize(("method", "params", "given", "wanted"), ANSWERS)
async def test_each_ask_reaches_the_engine_and_its_answer_the_loop(
    method: str, params: dict[str, Any], given: Any, wanted: dict[str, Any]
) -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        r.host.answers = {method: given}
        assert await asked(guest, 1, method, **params) == {"re": 1, "ok": wanted}
        assert [(run, name) for run, name, _ in r.host.asked] == [(RUN, method)]


async def test_an_answer_of_another_shape_is_a_fault_of_the_hosts_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        r.host.answers = {"run.finish": {"steers": [], "secret": 1}}
        with caplog.at_level(logging.ERROR):
            error = (await asked(guest, 1, "run.finish", text="", seen=1))["err"]
        assert error["code"] == "failed"
        assert "run.finish of run_a" in caplog.text


async def test_errors_of_the_engine_become_the_replys_error() -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        r.host.answers = {"run.finish": Conflict("it is final"), "run.fail": RuntimeError("a secret of the host")}
        reply = await asked(guest, 1, "run.finish", text="", seen=1)
        assert reply == {"re": 1, "err": {"code": "conflict", "message": "it is final"}}
        error = (await asked(guest, 2, "run.fail", code="x", message=""))["err"]
        assert error["code"] == "failed"
        assert "secret" not in error["message"]


async def test_a_step_that_is_repeated_with_other_content_is_answered_and_ends_nothing() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        step: dict[str, Any] = {"n": 1, "tool": "shell", "arguments": {"command": "true"}, "effect": "local"}
        r.host.answers = {"step.begin": Diverged("step 1 was another one")}
        error = (await asked(guest, 1, "step.begin", **{**step, "arguments": {"command": "rm"}}))["err"]
        assert error == {"code": "diverged", "message": "step 1 was another one"}
        r.host.answers = {"step.begin": StepBegun("run", None, "")}
        assert "ok" in await asked(guest, 2, "step.begin", **step)
        assert link.alive


async def test_an_answer_that_does_not_fit_is_told_to_the_loop() -> None:
    async with rig() as r:
        _, guest = await r.attach(runs={"run_a": "tok"})
        for number, size in enumerate((1 << 21, (1 << 20) - 60), start=1):  # beyond a frame; beyond a wrapped one
            r.host.answers = {"blob.get": BlobChunk("y" * size, size)}
            assert (await asked(guest, number, "blob.get", blob="a" * 64, n=0))["err"]["code"] == "too_large"


async def test_a_loop_over_its_rate_is_slowed_down_and_beyond_its_budget_told_so() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        began = time.monotonic()
        for number in range(1, 24):  # run.fail: 10 a second, bursts of 20, but a budget of 10
            error = (await asked(guest, number, "run.fail", code="x", message="")).get("err")
            assert (error is None) is (number <= 10), (number, error)
            assert error is None or error["code"] == "budget_exhausted"
        assert time.monotonic() - began >= 0.2  # the 21st to 23rd wait 100 ms each
        assert link.alive
        assert len(r.host.asked) == 10


# --- how they end ----------------------------------------------------------------------------------------------------


async def test_the_end_of_a_loop_is_told_once_and_acknowledged_after() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        r.host.held.clear()
        ended = {"run": "run_a", "code": None, "signal": 9}
        await guest.say(m="loop.ended", seq=1, p=ended)
        await within(both(link.cancel_run(RUN, 1.0), answer(guest, "run.cancel")))  # no ack yet
        r.host.held.set()
        assert (await guest.hear("ack"))["p"] == {"seqs": [1]}
        await guest.say(m="loop.ended", seq=1, p=ended)
        assert (await guest.hear("ack"))["p"] == {"seqs": [1]}
        await guest.say(m="loop.ended", seq=2, p={**ended, "run": "run_of_nobody"})
        assert (await guest.hear("ack"))["p"] == {"seqs": [2]}
        assert r.host.ended == [("run_a", None, 9)]


async def ended(guest: ScriptedGuest, seq: int, run: str = "run_a") -> None:
    await guest.say(m="loop.ended", seq=seq, p={"run": run, "code": 0, "signal": None})
    assert (await guest.hear("ack"))["p"] == {"seqs": [seq]}


async def test_a_run_that_has_finished_is_forgotten_when_its_loop_has_ended() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        assert "ok" in await asked(guest, 1, "run.finish", text="x", seen=1)
        assert "ok" in await asked(guest, 2, "run.finish", text="x", seen=1)  # twice: its first answer may be lost
        await ended(guest, 1)
        assert _remembered(link) == (0, 0, 0)
        assert r.host.ended == [("run_a", 0, None)]
        assert (await asked(guest, 3, "run.finish", text="x", seen=1))["err"]["code"] == "not_found"


async def test_a_run_that_was_steered_or_failed_goes_on_with_what_is_left_of_its_budget() -> None:
    async with rig() as r:
        link, guest = await r.attach(runs={"run_a": "tok"})
        r.host.answers = {"run.finish": Finished([MORE])}
        assert "ok" in await asked(guest, 1, "run.finish", text="x", seen=1)
        for number in range(2, 12):
            assert "ok" in await asked(guest, number, "run.fail", code="x", message="")
        await ended(guest, 1)
        start = {**RUN_START, "token": "tok2"}
        await within(both(link.start_run(start), answer(guest, "run.start", pid=12)))
        error = (await asked(guest, 1, "run.fail", token="tok2", code="x", message=""))["err"]
        assert error["code"] == "budget_exhausted"


async def test_many_runs_leave_nothing_behind() -> None:
    async with rig() as r:
        link, guest = await r.attach()
        for number in range(150):  # a guest may say loop.ended 200 times at once
            run = f"run_{number}"
            start = {**RUN_START, "run": run, "token": "tok"}
            await within(both(link.start_run(start), answer(guest, "run.start", pid=12)))
            assert "ok" in await asked(guest, 1, "run.finish", run=run, text="x", seen=1)
            await ended(guest, number + 1, run)
        await until(lambda: not r.broker._parts.tasks._all)
        assert _remembered(link) == (0, 0, 0)


def _remembered(link: WireLink) -> tuple[int, int, int]:
    assert link._record is not None and link._asks is not None
    return len(link._record.runs), len(link._asks._dialogues), len(link._buckets) - ("" in link._buckets._all)
