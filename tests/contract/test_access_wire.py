"""What a box may say of whose run: every method of the wire, on the real engine, store and broker.

A loop is answered for its own run with its own token; for every other it is told what it would be told of a run that does
not exist, and the store is not asked. A method without a row in ASKS or SAYS fails.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from ringfence.host.broker.given import GivenRuns
from ringfence.host.engine.asks import Asks
from ringfence.host.engine.live import Held
from ringfence.host.kernel.ids import BoxId, RunId, ThreadId, UserId
from ringfence.host.kernel.runs import RunState
from ringfence.host.kernel.threads import Summary
from ringfence.host.store.summaries import find_summary
from ringfence.host.store.threads import find_thread
from ringfence.host.web.ports import ExecRequest
from ringfence.wire.messages import METHODS, Side
from tests.support.access_rig import ALICE, CAROL, At, Scene, absent, blob, found, scene
from tests.support.engine_rig import eventually
from tests.support.wired_guest import WiredGuest

DATA = b"canary-blob"
BLOB = blob(DATA)
CHAT: list[dict[str, Any]] = [{"role": "user", "text": "hello", "tool_calls": [], "tool_call_id": None}]
ASKS: dict[str, dict[str, Any]] = {
    "thread.read": {"before": 1 << 40, "limit": 200},
    "thread.summarise": {"text": "a summary", "cursor": 1},
    "model.generate": {"model": "scripted", "call": 1, "messages": CHAT, "blob": None, "tools": []},
    "run.event": {"text": "looking"},
    "blob.put": {"blob": BLOB, "n": 0, "size": len(DATA), "data_b64": base64.b64encode(DATA).decode()},
    "blob.get": {"blob": BLOB, "n": 0},
    "step.begin": {"n": 1, "tool": "read", "arguments": {}, "effect": "pure"},
    "step.end": {"n": 1, "result": {}},
    "checkpoint.save": {"boundary": "before_model", "step": 1, "state": "s", "blobs": [BLOB]},
    "run.finish": {"text": "the end", "seen": 1 << 40},
    "run.fail": {"code": "no_luck", "message": "it did not work"},
}
"""What a loop may ask, in an order in which each is answered."""
ENDS = ("run.finish", "run.fail")
SAYS = {
    "cmd.output": "of its own commands",
    "cmd.credit": "of its own commands",
    "cmd.ended": "of its own commands",
    "loop.ended": "of its own runs",
    "rewired": "never to the host",
    "steer": "never to the host",
    "wind_down": "never to the host",
}
"""What PID 1 may say, and of what."""


@dataclass(frozen=True)
class Claim:
    """Somebody's loop, by its wrapper and its token, in a box."""

    guest: WiredGuest
    run: str
    token: str


class Stage:
    """Alice's runs `live` (in the thread) and `side` (in the same box), carol's in the thread, and what is no more."""

    def __init__(self, s: Scene) -> None:
        self.s = s

    async def set(self) -> None:
        """Carol has spoken in the thread and had a command run, before alice's present run began."""
        s = self.s
        before = await s.at_work("carol", CAROL["text"])
        await s.command(before, 1, f"echo {CAROL['command']}")
        await s.finish(before, CAROL["reply"])
        self.carol = await s.at_work("carol", "and on")
        cursor = self.carol.guest.starts[self.carol.run]["messages"][0]["cursor"]
        await self.carol.does("thread.summarise", cursor=cursor, text=CAROL["summary"])
        await self.carol.does("checkpoint.save", boundary="before_model", step=0, state=CAROL["state"], blobs=[])
        await s.finish(s.runs["live"], "done")
        self.live = await s.at_work("alice", "go on")
        self.side = await s.at_work("alice", "elsewhere", "side")
        self.former = await s.fails("alice", "again")
        await s.engine.runs.redrive(s.actors["alice"], self.former.run)
        again = await self.former.guest.started(self.former.run)
        self.again = At(self.former.guest, self.former.run, again["token"], self.former.turn)
        # A run is given its box in the background: behind this, what the store is asked is asked by somebody's claim.
        await self.again.does("checkpoint.save", boundary="before_model", step=0, state="again", blobs=[])

    def strangers(self) -> dict[str, Claim]:
        alice, carol = self.live.guest, self.carol.guest
        return {
            "a run that does not exist": Claim(alice, absent(self.live.run), self.live.token),
            "with another run's token": Claim(alice, self.live.run, self.side.token),
            "by another run's name": Claim(alice, self.side.run, self.live.token),
            "with a token of another box": Claim(alice, self.live.run, self.carol.token),
            "by the name of a run of another box": Claim(alice, self.carol.run, self.live.token),
            "a run of another user in the thread": Claim(alice, self.carol.run, self.carol.token),
            "her run in another box": Claim(carol, self.live.run, self.live.token),
            "a run that has ended": Claim(alice, self.s.runs["done"].run, self.s.runs["done"].token),
            "with the token of an earlier attempt": Claim(alice, self.former.run, self.former.token),
        }


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    async with scene() as s:
        made = Stage(s)
        await made.set()
        yield made


# --- whose run -------------------------------------------------------------------------------------------------------


def test_every_method_has_a_row() -> None:
    assert {name for name, row in METHODS.items() if row.side is Side.LOOP} == set(ASKS)
    assert {name for name, row in METHODS.items() if row.side is Side.GUEST} == set(SAYS)


async def answered(here: Stage) -> list[str]:
    """Claims that are answered otherwise than a run that does not exist, or with a question to the store."""
    wrong = []
    for method, params in ASKS.items():
        for name, claim in here.strangers().items():
            with here.s.statements.counted() as asks:
                reply = await claim.guest.ask(claim.run, method, claim.token, **params)
            err = {"code": "not_found", "message": f"no such run: {claim.run!r}"}
            if {key: value for key, value in reply.items() if key != "re"} != {"err": err}:
                wrong.append(f"{method} for {name}: {reply}")
            if asks:
                wrong.append(f"{method} for {name}: {len(asks)} questions to the store")
    return wrong


async def test_a_loop_speaks_for_its_own_run_only() -> None:
    async with stage() as here:
        wrong = await answered(here)
        assert not wrong, "\n".join(wrong)
        for at in (here.live, here.carol):  # what was refused has changed nothing for those whose runs they are
            for method, params in ASKS.items():
                if method not in ENDS:
                    await at.does(method, **await own(here, at, method, params))
        await here.live.does("run.finish", **ASKS["run.finish"])
        await here.side.does("run.fail", **ASKS["run.fail"])
        await here.again.does("run.finish", **ASKS["run.finish"])
        states = [(await here.s.store.runs.get(RunId(at.run))).state for at in (here.live, here.side, here.again)]
        assert states == [RunState.COMPLETED, RunState.FAILED, RunState.COMPLETED]


async def own(here: Stage, at: At, method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method != "thread.summarise":
        return params
    page = await at.does("thread.read", **ASKS["thread.read"])
    return {**params, "cursor": page["messages"][0]["cursor"]}


async def test_after_its_end_a_run_is_no_more() -> None:
    """But for the loop that finished it and may have missed the answer: it says the same again, until it has ended."""
    async with stage() as here:
        live, told = here.live, {"code": "not_found", "message": f"no such run: {here.live.run!r}"}
        assert await live.does("run.finish", **ASKS["run.finish"]) == {"steers": []}
        for method, params in ASKS.items():
            if method not in ENDS:
                assert (await live.ask(method, **params))["err"] == told, method
        assert await live.does("run.finish", **ASKS["run.finish"]) == {"steers": []}
        assert (await live.ask("run.finish", text="other words", seen=1 << 40))["err"]["code"] == "conflict"
        assert (await live.guest.ask(live.run, "run.finish", here.side.token, **ASKS["run.finish"]))["err"] == told
        live.guest.end_loop(live.run)
        for method, params in ASKS.items():
            assert (await live.ask(method, **params))["err"] == told, method


async def test_blobs_are_of_one_run() -> None:
    async with stage() as here:
        await here.live.does("blob.put", **ASKS["blob.put"])
        await here.live.does("blob.get", **ASKS["blob.get"])
        for at in (here.side, here.carol):
            assert (await at.ask("blob.get", **ASKS["blob.get"]))["err"]["code"] == "not_found"
            asks = {**ASKS["model.generate"], "messages": [], "blob": BLOB}
            assert (await at.ask("model.generate", **asks))["err"]["code"] == "not_found"


# --- what it is given ------------------------------------------------------------------------------------------------

SPOKEN = {"name", "text", "path", "reply"}
"""What a thread's other members may know of alice: what she and the agent said, and which files she named."""


async def shown(here: Stage) -> list[str]:
    """Where a loop is given of another's what it may not, or not what it may."""
    wrong = []
    for at, other, spoken in ((here.carol, ALICE, SPOKEN), (here.live, CAROL, {"text", "reply"})):
        start = at.guest.starts[at.run]
        given = {
            "run.start": start,
            "thread.read": await at.does("thread.read", **ASKS["thread.read"]),
            "model.generate": await at.does("model.generate", **ASKS["model.generate"]),
            "step.begin": await at.does("step.begin", **ASKS["step.begin"]),
        }
        wanted = {"run.start": spoken, "thread.read": spoken}
        for method, answer in given.items():
            kinds = found(answer, other) - {"thread"}
            if kinds != wanted.get(method, set()):
                wrong.append(f"{method} of {start['actor']}: shows {sorted(kinds)}")
    return wrong


async def test_a_loop_is_given_what_was_said_and_nothing_that_others_did() -> None:
    async with stage() as here:
        assert await shown(here) == []
        mine = here.live.guest.starts[here.live.run]
        assert found(mine["summary"]) == {"summary"}  # the control: her own comes back to her
        again = await here.side.does("thread.read", **ASKS["thread.read"])
        assert not found(again, CAROL)  # another thread, in which carol has said nothing


# --- what PID 1 says -------------------------------------------------------------------------------------------------


async def test_a_box_ends_no_command_and_no_loop_of_another() -> None:
    async with stage() as here:
        s, alice, carol = here.s, here.live.guest, here.carol.guest
        request = ExecRequest([b"hold"], {}, None, None, "pipe", "keep")
        command = await s.engine.commands.run(s.actors["carol"], "default", "carol", request)
        key = carol.held[-1]["key"]
        alice.note("cmd.output", key=key, stream=1, data_b64=base64.b64encode(b"forged").decode())
        alice.note("cmd.credit", key=key, bytes=1 << 20)
        alice.end_command(key, "keep", b"forged")
        alice.report("loop.ended", run=here.carol.run, code=0, signal=None)
        await here.live.does("run.event", text="after that")  # the wire has an order: all of it was heard
        assert (await s.store.runs.get(RunId(here.carol.run))).state is RunState.RUNNING
        await here.carol.does("run.event", text="still there")
        carol.end_command(key, "keep", b"honest")
        outcome = await command.outcome()
        assert outcome.stdout is not None
        assert outcome.stdout.head == b"honest"
        await command.release()
        epoch = (await s.store.runs.get(RunId(here.carol.run))).epoch
        carol.end_loop(here.carol.run)  # the control: of its own runs it is believed
        await s.until(RunId(here.carol.run), lambda row: (row.state, row.epoch) != (RunState.RUNNING, epoch))


@pytest.mark.parametrize("method", [name for name, of in SAYS.items() if of == "never to the host"])
async def test_what_is_never_said_to_the_host_ends_the_wire(method: str) -> None:
    async with stage() as here:
        guest = here.live.guest
        before = guest.wires
        guest.note(method)
        await eventually(lambda: guest.wires == before + 1, "a new wire")
        await here.carol.does("run.event", text="not her trouble")


async def taken_over(here: Stage) -> dict[str, Any]:
    """Alice's box says on a new wire that it has carol's run, with her token; the answer to what it then asks."""
    guest, before = here.live.guest, here.live.guest.wires
    guest.claims = [{"run": at.run, "token": at.token} for at in (here.live, here.side, here.again, here.carol)]
    guest.drop()
    await eventually(lambda: guest.wires == before + 1, "a new wire")
    await here.live.does("run.event", text="here again")
    return await guest.ask(here.carol.run, "thread.read", here.carol.token, **ASKS["thread.read"])


async def test_a_box_cannot_take_a_run_of_another() -> None:
    async with stage() as here:
        row = await here.s.store.runs.get(RunId(here.carol.run))
        reply = await taken_over(here)
        assert reply["err"] == {"code": "not_found", "message": f"no such run: {here.carol.run!r}"}
        after = await here.s.store.runs.get(RunId(here.carol.run))
        assert (after.box, after.epoch, after.state) == (row.box, row.epoch, RunState.RUNNING)
        await here.carol.does("run.event", text="still hers")


# --- the walls can be missed -----------------------------------------------------------------------------------------


async def test_without_tokens_other_runs_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GivenRuns, "proves", lambda self, run, token: run in self)
    async with stage() as here:
        wrong = await answered(here)
    assert any("with another run's token" in line for line in wrong)
    assert not any("a run of another user" in line for line in wrong)  # that is the other wall's


async def test_without_its_box_a_run_is_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def held(self: Asks, box: BoxId, run: RunId) -> Held | None:
        return self._live.get(run)

    monkeypatch.setattr(Asks, "_held", held)
    async with stage() as here:
        assert "ok" in await taken_over(here)


async def test_a_summary_for_everybody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybodys(connection: Connection, thread: ThreadId, actor: UserId) -> Summary | None:
        everybody = sorted(find_thread(connection, thread).members)
        found_ones = [find_summary(connection, thread, member) for member in everybody]
        return next((one for one in found_ones if one is not None), None)

    for module in ("reads", "threads"):
        monkeypatch.setattr(f"ringfence.host.store.{module}.find_summary", anybodys)
    async with stage() as here:
        wrong = await shown(here)
    assert any(line.startswith("run.start of carol") and "summary" in line for line in wrong), json.dumps(wrong)
