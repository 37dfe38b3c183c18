"""Gates: listing, showing and answering them. Shapes only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ringfence.host.kernel.outward.spelled import rule_to_json
from ringfence.host.kernel.policy import WALL
from ringfence.host.kernel.shown import call_text, oddities
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.ports import GateRow, GateView
from ringfence.host.web.ports_outward import HoldView
from ringfence.host.web.shapes import Request, Text

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["gates"])


class GateRowShape(BaseModel):
    """A question that parks a run, without the call that is asked about."""

    gate: str
    kind: str
    state: str
    reason: str
    tenant: str
    user: str
    answerer: str
    thread: str
    turn: str
    run: str
    n: int
    tool: str
    shown: dict[str, Any] = Field(description="what the call refers to")
    obligations: dict[str, Any]
    equal: int = Field(description="other open gates of the same user that ask for the very same call")
    wall: bool
    means: str = Field(description="whether this is a wall, or advice")
    answers: list[str]
    answer: str | None
    answered_by: str | None
    answered_via: str
    created_at: datetime
    expires_at: datetime | None
    answered_at: datetime | None
    used_at: datetime | None


class GateShape(GateRowShape):
    """With what is asked in `call`, whole and escaped; null for who may not see it."""

    call: str | None
    odd: list[str] = Field(description="characters of the call that are shown as escapes")


class GateList(BaseModel):
    gates: list[GateRowShape]


class GateAnswered(Request):
    answer: Annotated[Text, Field(max_length=40)]
    key: Annotated[Text, Field(min_length=1, max_length=200)] | None = None


def shaped(view: GateView) -> GateShape:
    return GateShape(**_fields(view), call=view.call, odd=list(view.odd))


def _fields(view: GateRow) -> dict[str, Any]:
    noun = view.gate
    return dict(
        gate=noun.id,
        kind=noun.kind.value,
        state=noun.state.value,
        reason=noun.reason,
        tenant=view.tenant,
        user=view.user,
        answerer=view.answerer,
        thread=view.thread,
        turn=noun.turn,
        run=noun.run,
        n=noun.n,
        tool=noun.tool,
        shown=dict(noun.shown),
        obligations=noun.obligations.to_json(),
        equal=view.equal,
        wall=noun.wall,
        means=view.means,
        answers=list(view.answers),
        answer=noun.answer.value if noun.answer is not None else None,
        answered_by=view.answered_by,
        answered_via=noun.answered_via,
        created_at=noun.created_at,
        expires_at=noun.expires_at,
        answered_at=noun.answered_at,
        used_at=noun.used_at,
    )


HOLD = "hld_"  # how the ids of holds begin


def _named(view: HoldView) -> dict[str, str]:
    """Of the request that `once` is for, what its rule does not say."""
    return {"query": view.hold.query} if view.hold.query else {}


def held(view: HoldView) -> GateShape:
    """A held connection as a gate: it belongs to a box, and maybe to a run, but to no step."""
    noun, rule = view.hold, None if view.rule is None else rule_to_json(view.rule)
    waits = not view.answer
    return GateShape(
        gate=noun.id,
        kind="hold",
        state="open" if waits else "denied" if view.answer == "deny" else "allowed",
        reason="",
        tenant=view.tenant,
        user=view.user,
        answerer=view.answerer,
        thread="",
        turn="",
        run=noun.who.run or "",
        n=0,
        tool="egress",
        shown={} if rule is None else {"host": rule["host"], "waiting": noun.waiting, **_named(view)},
        obligations={},
        equal=0,
        wall=True,
        means=WALL,
        answers=["once", "always", "deny"] if waits else [],
        answer=view.answer or None,
        answered_by=None,
        answered_via="",
        created_at=noun.asked_at,
        expires_at=None,
        answered_at=None,
        used_at=None,
        call=None if rule is None else call_text("egress", rule),
        odd=[] if rule is None else oddities("egress", rule),
    )


@router.get("/tenants/{tenant}/gates")
async def gates(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    state: Annotated[list[str] | None, Query(max_length=6)] = None,
    run: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> GateList:
    """Newest first: one's own and those that are one's to answer, connections that are held before the others. Without
    `state`: the open ones. The call is in `show` alone."""
    found = [GateRowShape(**_fields(each)) for each in await engine.gates.ls(actor, tenant, state or [], run, limit)]
    if not state or "open" in state:
        holds = [held(each).model_dump() for each in await engine.holds.ls(actor, tenant, run, limit)]
        found = [*(GateRowShape(**each) for each in holds), *found][:limit]
    return GateList(gates=found)


@router.get("/gates/{gate}")
async def gate_show(engine: CurrentEngine, actor: CurrentActor, gate: Name) -> GateShape:
    if gate.startswith(HOLD):
        return held(await engine.holds.show(actor, gate))
    return shaped(await engine.gates.show(actor, gate))


@router.post("/gates/{gate}/answer")
async def gate_answer(engine: CurrentEngine, actor: CurrentActor, gate: Name, said: GateAnswered) -> GateShape:
    """Durable when it is answered; the run goes on. The same answer again is one. 409: another answer, expired, cancelled. Of
    a hold: `once`, `always` (the rule is added) or `deny`; what was answered is not there any more."""
    if gate.startswith(HOLD):
        return held(await engine.holds.answer(actor, gate, said.answer))
    return shaped(await engine.gates.answer(actor, gate, said.answer, said.key))
