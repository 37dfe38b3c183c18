"""Gates as people see and answer them.

A gate is for the acting user, or the owner of a user that is no person. An operator sees that it is there, never what is
asked, and never answers; who acts as somebody by `--as` answers as that user, which is recorded and shown. Each answer is in
the audit before it counts, and again when it did not. Must never make an answer of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ringfence.host.engine.doors import Doors, refuse
from ringfence.host.engine.parts import Parts
from ringfence.host.engine.questions import TO_MEND
from ringfence.host.engine.redaction import REMOVED
from ringfence.host.kernel.access import Action, Answer, Relation, decide
from ringfence.host.kernel.errors import Conflict, Invalid, KeyReused, NotFound, Refused, RingfenceError
from ringfence.host.kernel.gates import (
    ANSWERS,
    MENDING,
    Gate,
    GateAnswer,
    GateId,
    GateState,
    answer_of,
    answerer,
    may_answer,
)
from ringfence.host.kernel.ids import RunId, UserId
from ringfence.host.kernel.people import Actor
from ringfence.host.kernel.policy import ADVICE, WALL
from ringfence.host.kernel.shown import call_text, oddities

MAX_LIST = 1000
KEY_CHARACTERS = 200
NOT_TAKEN = "gate.answer_refused"  # in the audit, behind an answer that did not count


@dataclass(frozen=True, slots=True)
class GateRow:
    """As one of a list: a thousand calls of 128 KiB are nothing that anybody reads."""

    gate: Gate  # without arguments and macs; without what else the actor may not see
    tenant: str
    user: str
    answerer: str  # a name, or REMOVED
    answered_by: str | None
    thread: str
    equal: int  # other open gates of the same user that ask for the very same call
    answers: list[str]  # that it takes
    means: str  # a wall, or advice


@dataclass(frozen=True, slots=True)
class GateView(GateRow):
    call: str | None  # the whole call, escaped; None: not to be seen
    odd: list[str]  # what was escaped in it


class Gates:
    def __init__(self, parts: Parts, doors: Doors, wake: Callable[[], None]) -> None:
        """`wake`: there may be work to claim."""
        self._parts, self._doors, self._wake = parts, doors, wake
        self._pen = parts.pen
        self._log = logging.getLogger("ringfence.engine")

    async def disown(self) -> None:
        """Once, when the server has come up: questions that were asked under another gate.key take no answer, so they are
        asked anew. One that cannot be read holds up no other."""
        for gate in await self._parts.store.gates.open_here():
            try:
                if await self._parts.store.gates.disown(gate, self._pen.genuine):
                    self._log.warning("gate %s was asked under another gate.key: it is asked anew", gate)
                    self._wake()
            except RingfenceError as error:
                self._log.error("gate %s: %s", gate, error)

    async def ls(
        self, actor: Actor, tenant: str, states: Collection[str], run: str | None, limit: int
    ) -> list[GateRow]:
        """Newest first: the actor's own and those that are the actor's to answer; an operator who acts for nobody sees that
        the tenant's are there. `states`: empty = open ones. Invalid."""
        if not 1 <= limit <= MAX_LIST:
            raise Invalid(f"a limit of {limit} is not allowed", remedy=f"ask for 1 to {MAX_LIST}")
        row = await self._doors.tenant(Action.TENANT_SEE, actor, tenant)
        wanted = _states(states)
        gates = self._parts.store.gates
        if run is not None:
            found = [gate for gate in await gates.of_run(RunId(run)) if gate.state in wanted and gate.tenant == row.id]
        elif actor.user is not None and not actor.operator:
            found = [gate for gate in await gates.of_users([actor.user.id], wanted, limit) if gate.tenant == row.id]
        else:
            found = await gates.of_tenant(row.id, wanted, limit)
        seen = [gate for gate in found if decide(Action.GATE_SEE, actor, towards(actor, gate)).answer is Answer.ALLOW]
        names = await self._names(tenant)
        threads = {thread.id: thread.name for thread in await self._parts.store.threads.of_tenant(row.id)}
        equal = await self._open_of({gate.user for gate in seen[:limit] if _whole(actor, gate)})
        return [self._row(actor, gate, tenant, names, threads.get(gate.thread, ""), equal) for gate in seen[:limit]]

    async def show(self, actor: Actor, gate_id: str) -> GateView:
        gate, _ = await self._seen(actor, gate_id)
        return await self._shown(actor, gate)

    async def answer(self, actor: Actor, gate_id: str, said: str, key: str | None) -> GateView:
        """Durable when it returns, and the run queued. The same answer again is one. Refused: not the actor's to answer.
        Invalid: no answer to it. Conflict: it has another answer, has expired, was cancelled. KeyReused."""
        gate, relation = await self._seen(actor, gate_id)
        verdict = decide(Action.GATE_ANSWER, actor, relation)
        if verdict.answer is not Answer.ALLOW:
            refuse(verdict)
        problem = may_answer(actor, gate)
        if problem or actor.user is None:
            raise Refused(problem, remedy="ask whom the gate is for: ringfence gate show")
        answer = answer_of(gate, said)
        if answer is None:
            takes = ", ".join(each.value for each in ANSWERS[gate.kind])
            raise Invalid(f"{said[:40]!r} is no answer to a gate of kind {gate.kind.value}", remedy=f"answer {takes}")
        given = await self._given(actor, actor.user.id, gate, answer, _checked(key))
        return await self._shown(actor, given)

    async def _given(self, actor: Actor, by: UserId, gate: Gate, answer: GateAnswer, key: str | None) -> Gate:
        store = self._parts.store
        details = {"answer": answer.value, "run": gate.run, "n": gate.n, "tool": gate.tool, "digest": gate.digest}
        await store.audit.record(actor, Action.GATE_ANSWER.value, f"gate:{gate.id}", details)
        try:
            return await self._counted(actor, by, gate, answer, key)
        except (Conflict, KeyReused) as error:
            await store.audit.record(actor, NOT_TAKEN, f"gate:{gate.id}", {**details, "why": error.message})
            raise

    async def _counted(self, actor: Actor, by: UserId, gate: Gate, answer: GateAnswer, key: str | None) -> Gate:
        via = f"as {actor.via}" if actor.impersonated else actor.via
        given, repeated = await self._parts.store.gates.answer(
            gate.id, answer, by, via, key or f"{by}/{answer.value}", self._pen.answer, self._pen.genuine
        )
        if not repeated:
            self._log.info("gate %s of run %s: %s", gate.id, gate.run, answer.value)
            self._wake()
            if given.state is GateState.EXPIRED:
                raise Conflict(
                    f"gate {gate.id} takes no answer any more: {given.reason}",
                    remedy=f"ringfence gate show {gate.id}",
                    state=given.state.value,
                )
        return given

    # --- seeing --------------------------------------------------------------------------------------------------

    async def _seen(self, actor: Actor, gate_id: str) -> tuple[Gate, Relation]:
        self._doors.proven(actor)
        absent = NotFound(f"no such gate: {gate_id!r}", remedy="ringfence gate ls")
        try:
            gate = await self._parts.store.gates.get(GateId(gate_id))
        except NotFound:
            raise absent from None
        relation = towards(actor, gate)
        if decide(Action.GATE_SEE, actor, relation).answer is not Answer.ALLOW:
            raise absent
        return gate, relation

    async def _shown(self, actor: Actor, gate: Gate) -> GateView:
        thread = await self._parts.store.threads.by_id(gate.thread)
        tenants = {tenant.id: tenant.name for tenant in await self._parts.store.tenants.all()}
        tenant = tenants.get(gate.tenant, REMOVED)
        names = await self._names(tenant)
        equal = await self._open_of({gate.user})
        row = self._row(actor, gate, tenant, names, thread.name, equal)
        fields = {name: getattr(row, name) for name in GateRow.__slots__}
        if not _whole(actor, gate):
            return GateView(**fields, call=None, odd=[])
        call, odd = await asyncio.to_thread(_rendered, gate)
        return GateView(**fields, call=call, odd=odd)

    async def _open_of(self, users: Collection[UserId]) -> Mapping[tuple[str, ...], int]:
        """How many of their gates that are open ask for the same, whatever part of them is listed."""
        found = await self._parts.store.gates.of_users(users, [GateState.OPEN], MAX_LIST) if users else []
        return Counter(map(_same, found))

    async def _names(self, tenant: str) -> Mapping[UserId, str]:
        return {user.id: user.name for user in await self._parts.store.users.all(tenant)}

    def _row(
        self,
        actor: Actor,
        gate: Gate,
        tenant: str,
        names: Mapping[UserId, str],
        thread: str,
        equal: Mapping[tuple[str, ...], int],
    ) -> GateRow:
        """`equal`: how many gates that are open ask for the same."""
        whole = _whole(actor, gate)
        bare: dict[str, Any] = {} if whole else {"shown": _to_mend(gate), "digest": "", "sealed": "", "reason": ""}
        by = None if gate.answered_by is None else names.get(gate.answered_by, REMOVED)
        answers = [answer.value for answer in ANSWERS[gate.kind]] if gate.state is GateState.OPEN else []
        return GateRow(
            gate=replace(gate, arguments={}, mac="", answer_mac="", **bare),
            tenant=tenant,
            user=names.get(gate.user, REMOVED),
            answerer=names.get(answerer(gate), REMOVED),
            answered_by=by,
            thread=thread,
            equal=max(equal.get(_same(gate), 0) - (gate.state is GateState.OPEN), 0) if whole else 0,
            answers=answers,
            means=WALL if gate.wall else ADVICE,
        )


def towards(actor: Actor, gate: Gate) -> Relation:
    if actor.user is not None and actor.user.id == gate.user:
        return Relation.SELF
    if actor.user is not None and gate.owner is not None and actor.user.id == gate.owner:
        return Relation.OWNER
    return Relation.OPERATOR if actor.operator else Relation.STRANGER


def _whole(actor: Actor, gate: Gate) -> bool:
    return decide(Action.GATE_DETAIL, actor, towards(actor, gate)).answer is Answer.ALLOW


def _to_mend(gate: Gate) -> dict[str, Any]:
    """What is missing and what mends it: for the operator, who can. Nothing of the call."""
    return {name: gate.shown[name] for name in TO_MEND if name in gate.shown} if gate.kind in MENDING else {}


def _rendered(gate: Gate) -> tuple[str, list[str]]:
    """For a thread: a large call takes as long as many small requests."""
    return call_text(gate.tool, gate.arguments), oddities(gate.tool, gate.arguments)


def _same(gate: Gate) -> tuple[str, ...]:
    """Of gates that ask for the very same."""
    return (gate.user, gate.digest, gate.kind)


def _states(said: Collection[str]) -> list[GateState]:
    try:
        return [GateState(each) for each in said] or [GateState.OPEN]
    except ValueError as error:
        raise Invalid(str(error), remedy=", ".join(state.value for state in GateState)) from None


def _checked(key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= KEY_CHARACTERS and key.isprintable()):
        raise Invalid(f"an idempotency key has 1 to {KEY_CHARACTERS} characters", remedy="take a UUID")
    return key
