"""Gates and policy over the real engine: what is judged anew before a try, questions of a lost key, lists, doubts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ringfence.host.capabilities.webhook import WebhookTool
from ringfence.host.engine import letting_out, sending
from ringfence.host.engine.gates import NOT_TAKEN
from ringfence.host.kernel.capabilities import Need, key_of, register
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.errors import Conflict
from ringfence.host.kernel.gates import ANEW, Gate, GateKind, GateState
from ringfence.host.kernel.policy import REDACTED, Obligations, Policy, Rule, Verdict
from ringfence.host.kernel.ports import Accepted
from ringfence.host.kernel.threads import TurnState
from ringfence.host.store import gate_asking
from ringfence.host.store.ledger import effects, gates
from ringfence.host.store.schema import runs, steps
from ringfence.wire import messages as wire
from tests.support.approving import lost_while_sent, newer, result, yes
from tests.support.engine_rig import Rig
from tests.support.fakes import Loop
from tests.support.paying import ALLOW, ASK, asked, parked, paying
from tests.support.receiver import Receiver
from tests.support.store import newest

PATIENCE = 30.0
OTHER_KEY = b"o" * 32


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three look-ups without their three seconds: receivers here are back at once, or never."""
    monkeypatch.setattr(sending, "PAUSE", 0.01)


def said_of(answer: Verdict, where: tuple[tuple[str, Any], ...] = (), **obligations: Any) -> Rule:
    return Rule("http.*", answer, where, Obligations(**obligations))


async def told(r: Rig, said: Accepted) -> dict[str, Any]:
    """The end of its first step, when the turn is over."""
    assert (await r.turn(said, PATIENCE)).state is TurnState.COMPLETED
    return await result(r, said)


def sent(outside: Receiver) -> int:
    return sum(outside.arrived.values())


class Missing:
    """A place whose key is not there until somebody says so."""

    def __init__(self) -> None:
        self.there = False

    def kind(self) -> Any:
        missing = self

        class Tool(WebhookTool):
            async def lacks(self, arguments: Any) -> Need | None:
                return None if missing.there else Need(GateKind.SETUP, "the key is missing", "put it there")

        return Tool


# --- judged anew before each try -------------------------------------------------------------------------------------


async def test_what_has_expired_while_it_was_mended_does_not_go_out(tmp_path: Path) -> None:
    """The intent was in time; the answer that lets it go on comes days later."""
    key, policy = Missing(), Policy((said_of(Verdict.ALLOW, expire_seconds=3600),))
    async with paying(tmp_path, policy, kind=key.kind()) as (r, outside):
        said, gate = await asked(r)
        assert gate.kind is GateKind.SETUP
        key.there = True

        await began_earlier(r, said, timedelta(hours=2))
        await yes(r, gate, said="done")
        end = await told(r, said)
        assert (end["reason"], end["effect"], sent(outside)) == ("refused", "not_done", 0)
        assert "earlier than this" in end["error"]


async def began_earlier(r: Rig, said: Accepted, by: timedelta) -> None:
    step = await r.store.steps.get(said.run.id, 1)
    assert step is not None
    change = sa.update(steps).where(steps.c.run == said.run.id).values(begun_at=step.begun_at - by)
    await r.store._database.write(lambda tx: tx.connection.execute(change))


@pytest.mark.parametrize("says", ["allow", "deny"])
async def test_a_rule_that_has_come_to_ask_is_asked_before_it_goes_out(tmp_path: Path, says: str) -> None:
    key = Missing()
    async with paying(tmp_path, ALLOW, kind=key.kind()) as (r, outside):
        said, gate = await asked(r)
        assert gate.kind is GateKind.SETUP
        r.with_parts["policy"] = ASK
        key.there = True
        await r.restart()
        await yes(r, gate, said="done")
        approval = await newer(r, said, gate)
        assert (approval.kind, approval.state, sent(outside)) == (GateKind.APPROVAL, GateState.OPEN, 0)
        await yes(r, approval, said=says)
        end = await told(r, said)
        assert (end["ok"], sent(outside)) == (says == "allow", int(says == "allow"))
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.gate, row.policy) == ((approval.id, ASK.digest) if says == "allow" else (None, ALLOW.digest))


async def test_a_rule_that_denies_by_now_wins(tmp_path: Path) -> None:
    key = Missing()
    async with paying(tmp_path, ALLOW, kind=key.kind()) as (r, outside):
        said, gate = await asked(r)
        r.with_parts["policy"] = Policy((*ALLOW.rules, said_of(Verdict.DENY)))
        key.there = True
        await r.restart()
        await yes(r, gate, said="done")
        assert ((await told(r, said))["reason"], sent(outside)) == ("refused", 0)


async def test_a_rule_that_redacts_more_by_now_lets_out_nothing_of_before(tmp_path: Path) -> None:
    key = Missing()
    async with paying(tmp_path, ALLOW, kind=key.kind()) as (r, outside):
        said, gate = await asked(r)
        r.with_parts["policy"] = Policy((said_of(Verdict.ALLOW, redact=("body.amount",)),))
        key.there = True
        await r.restart()
        await yes(r, gate, said="done")
        end = await told(r, said)
        assert ("redacts" in end["error"], sent(outside)) == (True, 0)


async def test_an_approval_is_not_asked_a_second_time_for_a_rule_that_asks_as_before(tmp_path: Path) -> None:
    """Another rule has changed: what was approved and used up stays so, and the intent is of the policy of now."""
    key = Missing()
    async with paying(tmp_path, ASK, kind=key.kind()) as (r, outside):
        said, approval = await asked(r)
        await yes(r, approval)
        gate = await newer(r, said, approval)
        now = r.with_parts["policy"] = Policy((*ASK.rules, Rule("other.*", Verdict.DENY)))
        key.there = True
        await r.restart()
        await yes(r, gate, said="done")
        assert ((await told(r, said))["ok"], sent(outside)) == (True, 1)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.gate, row.policy) == (approval.id, now.digest)


# --- redaction -------------------------------------------------------------------------------------------------------


async def test_a_rule_that_matches_by_what_it_redacts_lets_out_what_was_approved(tmp_path: Path) -> None:
    policy = Policy((said_of(Verdict.ASK, (("body.amount", 5),), redact=("body.amount",)),))
    async with paying(tmp_path, policy) as (r, outside):
        said, gate = await asked(r)
        assert gate.arguments["body"] == {"amount": REDACTED}
        await yes(r, gate)
        assert (await told(r, said))["ok"]
        assert list(outside.done.values()) == [{"amount": REDACTED}]


async def test_nobody_is_asked_about_what_could_not_go_out_redacted(tmp_path: Path) -> None:
    async with paying(tmp_path, Policy((said_of(Verdict.ASK, redact=("body",)),))) as (r, outside):
        said = await r.say("alice", "pay")
        end = await told(r, said)
        assert ("the policy redacts it" in end["error"], sent(outside)) == (True, 0)
        assert await r.store.gates.of_run(said.run.id) == []


# --- a key that was lost ---------------------------------------------------------------------------------------------


async def key_lost(r: Rig) -> None:
    r.with_parts["gate_key"] = OTHER_KEY
    await r.restart()


async def test_an_open_approval_of_a_lost_key_is_asked_anew(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)
        await key_lost(r)
        again = await newer(r, said, gate)
        old = await r.store.gates.get(gate.id)
        assert (old.state, old.reason, old.answer) == (GateState.EXPIRED, ANEW, None)
        assert (again.kind, again.digest, again.state) == (GateKind.APPROVAL, gate.digest, GateState.OPEN)
        await yes(r, again)
        assert ((await told(r, said))["ok"], sent(outside)) == (True, 1)


async def test_what_is_of_the_key_of_now_is_left_alone(tmp_path: Path) -> None:
    """The control: a restart alone asks nothing anew."""
    async with paying(tmp_path, ASK) as (r, _):
        said, gate = await asked(r)
        await r.restart()
        await r.engine.gates.disown()
        assert await r.store.gates.of_run(said.run.id) == [gate]


async def test_an_open_setup_of_a_lost_key_is_asked_anew(tmp_path: Path) -> None:
    key = Missing()
    async with paying(tmp_path, ALLOW, kind=key.kind()) as (r, outside):
        said, gate = await asked(r)
        await key_lost(r)
        again = await newer(r, said, gate)
        assert (again.kind, again.state) == (GateKind.SETUP, GateState.OPEN)
        key.there = True
        await yes(r, again, said="done")
        assert ((await told(r, said))["ok"], sent(outside)) == (True, 1)


async def in_doubt(r: Rig, outside: Receiver, text: str = "pay", thread: str = "t") -> tuple[Accepted, Gate]:
    """A call that was sent, of which nobody knows what became."""
    said = await lost_while_sent(r, outside, text=text, thread=thread)
    await r.until(said.run.id, lambda run: run.reason == "in_doubt", PATIENCE)
    gate = await parked(r, said)
    assert gate.kind is GateKind.IN_DOUBT
    return said, gate


@pytest.mark.parametrize("when", ["open", "answered"])
async def test_a_doubt_of_a_lost_key_is_asked_anew(tmp_path: Path, when: str) -> None:
    """Neither is it parked for ever, nor does an answer that cannot be told from a forged one end the run."""
    async with paying(tmp_path) as (r, outside):
        said, gate = await in_doubt(r, outside)
        if when == "answered":
            r.engine._work.drain()
            await yes(r, gate, said="done")
        await key_lost(r)
        again = await newer(r, said, gate)
        assert (again.kind, again.state, sent(outside)) == (GateKind.IN_DOUBT, GateState.OPEN, 1)
        assert (await r.store.gates.get(gate.id)).state is GateState.EXPIRED
        await yes(r, again, said="done")
        assert ((await told(r, said))["ok"], sent(outside)) == (True, 1)


# --- doubts ----------------------------------------------------------------------------------------------------------


async def test_a_doubt_is_asked_about_whatever_else_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_asking, "MAX_OPEN", 2)
    one = (("body.amount", 5),)
    policy = Policy((said_of(Verdict.ALLOW, one), Rule("shell", Verdict.ASK)))
    async with paying(tmp_path, policy) as (r, outside):
        for n in range(2):
            await parked(r, await r.say("alice", "$ true", f"t{n}"))
        said, gate = await in_doubt(r, outside, thread="doubt")
        assert (await r.store.runs.get(said.run.id)).reason == "in_doubt"
        more = await r.say("alice", "$ true", "more")
        await r.turn(more, PATIENCE)
        assert "2 questions wait" in (await result(r, more))["error"], "control: of the others there are enough"
        await yes(r, gate, said="done")
        assert (await told(r, said))["ok"]


@pytest.mark.parametrize(("answer", "wanted"), [("done", EffectState.DONE), ("not-done", EffectState.NOT_DONE)])
async def test_an_answer_counts_though_the_webhook_is_declared_no_more(
    tmp_path: Path, answer: str, wanted: EffectState
) -> None:
    async with paying(tmp_path) as (r, outside):
        said, gate = await in_doubt(r, outside)
        r.with_parts["capabilities"] = register([])
        await r.restart()
        await yes(r, gate, said=answer)
        end = await told(r, said)
        [row] = await r.store.effects.of_run(said.run.id)
        assert (row.state, end["effect"], sent(outside)) == (wanted, wanted.value, 1)
        assert (await r.store.gates.get(gate.id)).state is GateState.USED


async def test_a_loop_is_told_of_a_tool_that_it_has_used_and_that_is_declared_no_more(tmp_path: Path) -> None:
    starts: list[list[str]] = []

    async def script(loop: Loop) -> None:
        starts.append([tool["name"] for tool in loop.start["tools"]])
        arguments = {"name": "pay", "body": {"amount": 5}}
        await loop.ask("step.begin", wire.StepBegin(loop.start["token"], 1, "http.webhook", arguments, "host"))
        await loop.ask("run.finish", wire.RunFinish(loop.start["token"], "ok", 1 << 40))

    async with paying(tmp_path, script=script) as (r, outside):
        said, gate = await in_doubt(r, outside)
        r.with_parts["capabilities"] = register([])
        await r.restart()
        await yes(r, gate, said="done")
        assert (await r.turn(said, PATIENCE)).reply == "ok"
        fresh = await r.say("alice", "pay", "fresh")
        await r.turn(fresh, PATIENCE)
        assert starts[-2:] == [["http.webhook"], []], "and a run that has not used it is not"


# --- advice, lists, the audit ----------------------------------------------------------------------------------------


async def test_a_command_that_was_denied_is_not_asked_about_again_in_its_run(tmp_path: Path) -> None:
    policy = Policy((Rule("shell", Verdict.ASK, (("command", "*secret*"),)),))
    async with paying(tmp_path, policy) as (r, _):
        said = await r.say("alice", "$ echo secret\n$ echo secret\n$ echo other secret")
        gate = await parked(r, said)
        await yes(r, gate, said="deny")
        other = await newer(r, said, gate)
        assert other.arguments["command"] == "echo other secret", "control: another command is asked about"
        assert "the answer was no" in (await result(r, said, 2))["error"]
        assert [each.n for each in await r.store.gates.of_run(said.run.id)] == [1, 3]


async def test_a_list_has_no_calls_and_a_gate_has_its_own(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, _):
        said, gate = await asked(r)
        alice = r.actors["alice"]
        for run in (None, said.run.id):
            [row] = await r.engine.gates.ls(alice, "default", [], run, 10)
            assert (row.gate.id, row.gate.arguments, hasattr(row, "call")) == (gate.id, {}, False)
            assert (row.equal, row.user, row.gate.shown["place"]) == (0, "alice", "pay")
        view = await r.engine.gates.show(alice, gate.id)
        assert view.call is not None and '"amount": 5' in view.call


async def test_a_list_counts_equal_gates_that_it_does_not_show(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, _):
        said, first = await asked(r)
        await asked(r, thread="another")
        ls, alice = r.engine.gates.ls, r.actors["alice"]
        for listed in (ls(alice, "default", [], said.run.id, 10), ls(alice, "default", [], None, 1)):
            assert [row.equal for row in await listed] == [1]
        await yes(r, first, said="deny")
        shown = await ls(alice, "default", ["open", "denied"], None, 10)
        assert {row.gate.state: row.equal for row in shown} == {GateState.OPEN: 0, GateState.DENIED: 1}


async def test_who_answers_sees_the_host_of_a_place_and_not_its_path(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        _, gate = await asked(r)
        assert gate.shown == {"method": "POST", "to": f"http://127.0.0.1:{outside.port}", "place": "pay"}


async def test_an_answer_that_does_not_count_says_so_in_the_audit(tmp_path: Path) -> None:
    async with paying(tmp_path, ASK) as (r, _):
        said, gate = await asked(r)
        await yes(r, gate)
        await r.turn(said, PATIENCE)
        with pytest.raises(Conflict) as refused:
            await yes(r, gate, said="deny")
        assert refused.value.remedy == f"ringfence gate show {gate.id}"
        acts = [row for row in await newest(r.store.audit, 100) if row["subject"] == f"gate:{gate.id}"]
        assert [(row["action"], row["details"]["answer"]) for row in acts] == [
            ("gate.answer", "allow"),
            ("gate.answer", "deny"),
            (NOT_TAKEN, "deny"),
        ]


# --- whoever writes the database and has no key ----------------------------------------------------------------------


async def forged(r: Rig, gate: Gate, state: str) -> None:
    """The ledger and the gate as somebody without gate.key writes them; the run goes on as if it had been answered."""
    row = {
        "run": gate.run, "n": gate.n, "user": gate.user, "capability": gate.tool, "digest": gate.digest,
        "key": key_of(gate.run, gate.n, gate.digest), "arguments": dict(gate.arguments), "sealed": gate.sealed,
        "policy": gate.policy, "gate": gate.id, "state": "intended", "outcome": {}, "epoch": 1, "tries": 0,
        "intended_at": gate.created_at,
    }  # fmt: skip

    def work(tx: Any) -> None:
        tx.connection.execute(sa.insert(effects).values(row))
        at = gate.created_at if state == "used" else None
        tx.connection.execute(sa.update(gates).where(gates.c.id == gate.id).values(state=state, used_at=at))
        tx.connection.execute(sa.update(runs).where(runs.c.id == gate.run).values(state="queued"))

    await r.store._database.write(work)


@pytest.fixture(params=[True, False], ids=["wall", "control"])
def wall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """False: the ledger is believed, so that what these tests do gets things sent."""
    if not request.param:
        monkeypatch.setattr(letting_out, "altered", lambda *_: "")
        monkeypatch.setattr(letting_out, "unapproved", lambda *_: "")
    return bool(request.param)


async def of_refused(r: Rig) -> list[str]:
    return [row["details"]["why"] for row in await newest(r.store.audit, 100) if row["action"] == "effect.refused"]


@pytest.mark.parametrize("state", ["expired", "used"])
async def test_a_row_of_a_gate_that_nobody_answered_is_not_sent(tmp_path: Path, wall: bool, state: str) -> None:
    async with paying(tmp_path, ASK) as (r, outside):
        said, gate = await asked(r)

        async def forge() -> None:
            await forged(r, gate, state)

        await r.restart(forge)
        end = await told(r, said)
        assert (end["ok"], sent(outside)) == (not wall, int(not wall))
        assert (end.get("reason") == "refused", len(await of_refused(r))) == (wall, int(wall))


@pytest.mark.parametrize("policy", [ALLOW, ASK], ids=["allow", "ask"])
async def test_arguments_that_were_exchanged_in_the_ledger_are_not_sent(
    tmp_path: Path, wall: bool, policy: Policy
) -> None:
    key, other = Missing(), {"name": "pay", "body": {"amount": 45666}}
    async with paying(tmp_path, policy, kind=key.kind()) as (r, outside):
        said, gate = await asked(r)
        if policy is ASK:
            await yes(r, gate)
            gate = await newer(r, said, gate)
        change = sa.update(effects).where(effects.c.run == said.run.id).values(arguments=other)
        await r.store._database.write(lambda tx: tx.connection.execute(change))
        key.there = True
        await yes(r, gate, said="done")
        end = await told(r, said)
        assert list(outside.done.values()) == ([] if wall else [other["body"]])
        assert (end.get("reason") == "refused", len(await of_refused(r))) == (wall, int(wall))


async def test_a_place_that_is_no_text_ends_the_step_and_not_the_run(tmp_path: Path) -> None:
    async with paying(tmp_path) as (r, outside):
        end = await told(r, await r.say("alice", "odd place"))
        assert ("no such place" in end["error"], sent(outside)) == (True, 0)
