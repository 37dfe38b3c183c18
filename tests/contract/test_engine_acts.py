"""Who may do what to a thread and to a run of it, as one table through the engine: each act by each kind of actor."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.people import Actor, Scope
from ringfence.host.kernel.threads import Turn, TurnState
from ringfence.wire import messages as wire
from tests.support.engine_rig import OPERATOR, Rig, rig
from tests.support.fakes import Loop, native
from tests.support.store import newest

WHO = ("actor", "member", "stranger", "owner", "eve", "operator", "glass")


def _row(*answers: str) -> dict[str, str]:
    return dict(zip(WHO, answers, strict=True))


GLASS = Actor(user=None, operator=True, via="token:tok_glass", scopes=frozenset(Scope))
NOBODY = "not_found"
# Whom: stranger = a user of the tenant who is no member, owner = of an agent that is one, eve = of another tenant.
MAY: dict[str, dict[str, str]] = {
    # act           actor (SELF)  member     stranger  owner   eve     operator   glass
    "read": _row("ok", "ok", NOBODY, NOBODY, NOBODY, "refused", "ok"),
    "text": _row("shown", "shown", NOBODY, NOBODY, NOBODY, "hidden", "shown"),
    "steps": _row("shown", "hidden", NOBODY, NOBODY, NOBODY, "hidden", "hidden"),
    "detail": _row("shown", "hidden", NOBODY, NOBODY, NOBODY, "hidden", "hidden"),
    "watch": _row("ok", "ok", NOBODY, NOBODY, NOBODY, "ok", "ok"),
    "steer": _row("ok", "ok", NOBODY, NOBODY, NOBODY, "refused", "refused"),
    "cancel": _row("ok", "refused", NOBODY, NOBODY, NOBODY, "ok", "ok"),
    "redrive": _row("ok", "refused", NOBODY, NOBODY, NOBODY, "ok", "ok"),
    "break_glass": _row("refused", "refused", NOBODY, NOBODY, NOBODY, "ok", "ok"),  # last: it changes what is seen
}


async def broken(loop: Loop) -> None:
    """Does a step with a secret, then breaks down; a second attempt comes to its end."""
    token = loop.start["token"]
    if loop.start["epoch"] > 1:
        await native(loop)
        return
    await loop.ask("step.begin", wire.StepBegin(token, 1, "shell", {"command": "echo s3cret"}, "local"))
    await loop.ask("run.fail", wire.RunFail(token, "loop_failed", "s3cret broke"))


async def tried(r: Rig, actor: Actor, turn: Turn, act: str) -> str:
    """`ok`, `shown` or `hidden`, or the code of the error."""
    threads, runs = r.engine.threads, r.engine.runs
    assert turn.run is not None
    try:
        match act:
            case "read":
                assert "words" in str(await threads.messages(actor, "default", "t", None, 10))
                assert "words" in str(await threads.events(actor, "default", "t", 0, 100))
            case "text":
                return shown("words" in str(await threads.events(actor, "default", "t", 0, 100)))
            case "steps":
                seen = str((await runs.show(actor, turn.run)).steps) + str(await kept(r, actor, "step."))
                return shown("s3cret" in seen)
            case "detail":
                return shown("s3cret" in str(await kept(r, actor, "run.detail")))
            case "watch":
                (await threads.watch(actor, "default", "t")).close()
            case "steer":
                assert not (await threads.say(actor, "default", "t", "x", "steer", None)).steered
            case "break_glass":
                await threads.break_glass(actor, "default", "t", "a complaint")
            case "cancel":
                await runs.cancel(actor, turn.run)
            case "redrive":
                await runs.redrive(actor, turn.run)
            case _:
                raise AssertionError(act)
    except RingfenceError as error:
        return error.code
    return "ok"


def shown(found: bool) -> str:
    return "shown" if found else "hidden"


async def kept(r: Rig, actor: Actor, kind: str) -> list[dict[str, object]]:
    events = await r.engine.threads.events(actor, "default", "t", 0, 100)
    return [event["body"] for event in events if event["kind"].startswith(kind)]


@pytest.mark.parametrize("who", WHO)
async def test_who_may_do_what_to_a_thread_and_its_runs(tmp_path: Path, who: str) -> None:
    async with rig(tmp_path, people=("alice", "bob", "carol", "dora"), script=broken) as r:
        await r.store.tenants.add("other")
        await r.person("eve", "other")
        await r.engine.people.user_add(OPERATOR, "default", "robot", "agent", "dora")
        await r.engine.threads.add(r.actors["alice"], "default", "t", ["bob", "robot"], False)
        turn = await r.asked("alice", "words")
        assert turn.state is TurnState.FAILED
        names = {"actor": "alice", "member": "bob", "stranger": "carol", "owner": "dora", "eve": "eve"}
        if who == "glass":
            await r.engine.threads.break_glass(GLASS, "default", "t", "a complaint")
        actor = {"operator": OPERATOR, "glass": GLASS}[who] if who not in names else r.actors[names[who]]
        before = len(await newest(r.store.audit, 100))
        found = {act: await tried(r, actor, turn, act) for act in MAY}
        assert found == {act: answers[who] for act, answers in MAY.items()}
        recorded = [row["action"] for row in (await newest(r.store.audit, 100))[before:]]
        assert recorded == (["run.cancel", "run.redrive", "thread.break_glass"] if actor.operator else [])
