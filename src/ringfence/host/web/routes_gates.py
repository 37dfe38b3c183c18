"""Gates: listing, showing and answering them. Shapes only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.ports import GateRow, GateView
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


@router.get("/tenants/{tenant}/gates")
async def gates(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    state: Annotated[list[str] | None, Query(max_length=6)] = None,
    run: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> GateList:
    """Newest first: one's own and those that are one's to answer. Without `state`: the open ones. The call is in `show` alone."""
    found = await engine.gates.ls(actor, tenant, state or [], run, limit)
    return GateList(gates=[GateRowShape(**_fields(each)) for each in found])


@router.get("/gates/{gate}")
async def gate_show(engine: CurrentEngine, actor: CurrentActor, gate: Name) -> GateShape:
    return shaped(await engine.gates.show(actor, gate))


@router.post("/gates/{gate}/answer")
async def gate_answer(engine: CurrentEngine, actor: CurrentActor, gate: Name, said: GateAnswered) -> GateShape:
    """Durable when it is answered; the run goes on. The same answer again is one. 409: another answer, expired, cancelled."""
    return shaped(await engine.gates.answer(actor, gate, said.answer, said.key))
