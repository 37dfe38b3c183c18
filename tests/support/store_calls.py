"""Calls of the host in a store: one that was approved and may have gone out, one that waits for its answer."""

from __future__ import annotations

from collections.abc import Mapping

from ringfence.host.engine.questions import Pen, approval, in_doubt, mending
from ringfence.host.kernel.canonical import digest
from ringfence.host.kernel.capabilities import Need, Sealed
from ringfence.host.kernel.dispatch import Dispatch, Owed, discharge, owed
from ringfence.host.kernel.effects import EffectState
from ringfence.host.kernel.gates import Call, GateAnswer, GateKind, Question
from ringfence.host.kernel.ids import RunId
from ringfence.host.kernel.people import User
from ringfence.host.kernel.policy import Policy, Rule, Verdict, decide
from ringfence.host.kernel.runs import Effect, Run
from tests.support.store import Team

KEY = b"k" * 32
TOOL, ARGUMENTS = "http.webhook", {"name": "pay", "body": {"amount": 5}}
ASK = Policy((Rule("http.*", Verdict.ASK),))
PEN = Pen(KEY)


def due(team: Team, run: Run, n: int) -> Owed:
    decision = decide(ASK, TOOL, ARGUMENTS, host=True)
    call = Call(run.id, n, TOOL, "", run.actor, "", "s" * 64)
    return owed(decision, call, ARGUMENTS, Effect.ONCE, team.clock.now(), 1 << 20)


async def asked(team: Team, user: User, text: str) -> Run:
    """A run of a thread of its own, parked at step 1."""
    thread = await team.store.threads.add(team.tenant.id, f"#{text}", [user.id], False)
    said = await team.store.turns.accept(thread.id, user.id, text, "queue", None)
    return await began(team, said.run.id)


async def began(team: Team, queued: RunId) -> Run:
    """Claimed, and parked at step 1."""
    run = next(one for one in await team.claim() if one.id == queued)
    sealed = digest(TOOL, ARGUMENTS, Effect.ONCE)
    await team.store.steps.begin(run.id, run.epoch, 1, TOOL, ARGUMENTS, sealed, Effect.ONCE)
    question = approval(due(team, run, 1), None, None, team.clock.now())
    await team.store.gates.ask(run.id, run.epoch, question, PEN.question)
    return run


async def answered(team: Team, run: Run, answer: GateAnswer = GateAnswer.ALLOW) -> Run:
    """So, and claimed again."""
    gate = (await team.store.gates.of_run(run.id))[-1]
    await team.store.gates.answer(gate.id, answer, run.actor, "token:1", "k", PEN.answer, PEN.genuine)
    return next(one for one in await team.claim() if one.id == run.id)


async def going(team: Team, run: Run) -> Dispatch:
    """By the run's newest gate."""
    gate = (await team.store.gates.of_run(run.id))[-1]
    return discharge(due(team, run, 1), notified=False, gate=gate, key=KEY, now=team.clock.now())


async def intended(team: Team, run: Run) -> EffectState:
    """The approval used for the intent; what the effect is then."""
    dispatch = await going(team, run)
    effect = await team.store.effects.intend(dispatch, run.epoch, PEN.usable_for(dispatch.call))
    return effect.state


async def approved(team: Team) -> Run:
    """At work, with a yes that nothing has used."""
    return await answered(team, await asked(team, team.alice, "approved"))


async def mended(team: Team) -> Run:
    """At work; its effect is intended, and what was missing for it is there, as a person says."""
    run = await approved(team)
    await intended(team, run)
    [row] = await team.store.effects.of_run(run.id)
    need = Need(GateKind.SETUP, "its key is not there", "put it there")
    await _parked(team, run, mending(row, Sealed("s" * 64, {}), need, None, team.clock.now()))
    return await answered(team, run, GateAnswer.DONE)


async def out(team: Team, answer: GateAnswer = GateAnswer.DONE) -> Run:
    """At work; its effect may have gone out, and a person has said what became of it."""
    run = await approved(team)
    await intended(team, run)
    row = await team.store.effects.mark(run.id, run.epoch, 1, EffectState.SENT)
    await _parked(team, run, in_doubt(row, {}, None))
    return await answered(team, run, answer)


async def _parked(team: Team, run: Run, question: Question) -> None:
    await team.store.gates.ask(run.id, run.epoch, question, PEN.question)


async def calls_of_all_kinds(team: Team) -> Mapping[str, str]:
    """name -> run: `sent` (an effect under way, by an approval), `parked` (an open question)."""
    run = await answered(team, await asked(team, team.alice, "sent"))
    await intended(team, run)
    await team.store.effects.mark(run.id, run.epoch, 1, EffectState.SENT)
    return {"sent": run.id, "parked": (await asked(team, team.bob, "parked")).id}
