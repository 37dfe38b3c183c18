"""Rules of the way out, what they come to, and what went out. Shapes only: the engine decides who may."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from ringfence.host.kernel.outward.rules import EgressRule, Verdict
from ringfence.host.kernel.outward.wishes import RuleWish
from ringfence.host.web import shapes_egress as shapes
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.ports_outward import RulesView, Tried
from ringfence.host.web.routes_secrets import binding_shape

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["egress"])
OF_TENANT = "/tenants/{tenant}/egress"
OF_USER = "/tenants/{tenant}/users/{user}/egress"


@router.get("/egress")
async def rules_of_all(engine: CurrentEngine, actor: CurrentActor) -> shapes.RuleList:
    """The installation's own, for operators."""
    return _listed(await engine.egress.ls(actor, "", ""))


@router.post("/egress", status_code=201)
async def rule_add_to_all(engine: CurrentEngine, actor: CurrentActor, new: shapes.NewRule) -> shapes.RuleList:
    return _listed(await engine.egress.add(actor, "", "", _wish(new)))


@router.delete("/egress/{rule}")
async def rule_remove_from_all(engine: CurrentEngine, actor: CurrentActor, rule: Name) -> shapes.RuleShape:
    return rule_shape(await engine.egress.remove(actor, "", "", rule))


@router.get(OF_TENANT)
async def rules_of_tenant(engine: CurrentEngine, actor: CurrentActor, tenant: Name) -> shapes.RuleList:
    """The tenant's own, for operators."""
    return _listed(await engine.egress.ls(actor, tenant, ""))


@router.post(OF_TENANT, status_code=201)
async def rule_add_to_tenant(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, new: shapes.NewRule
) -> shapes.RuleList:
    return _listed(await engine.egress.add(actor, tenant, "", _wish(new)))


@router.delete(OF_TENANT + "/{rule}")
async def rule_remove_from_tenant(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, rule: Name
) -> shapes.RuleShape:
    return rule_shape(await engine.egress.remove(actor, tenant, "", rule))


@router.get(OF_USER)
async def rules(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.RuleList:
    """Of all layers, as they count for the user."""
    return _listed(await engine.egress.ls(actor, tenant, user))


@router.post(OF_USER, status_code=201)
async def rule_add(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, new: shapes.NewRule
) -> shapes.RuleList:
    """In force in the user's box when this answers. `lint`: what is odd about the new ones."""
    return _listed(await engine.egress.add(actor, tenant, user, _wish(new)))


@router.delete(OF_USER + "/{rule}")
async def rule_remove(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, rule: Name
) -> shapes.RuleShape:
    return rule_shape(await engine.egress.remove(actor, tenant, user, rule))


@router.post("/tenants/{tenant}/users/{user}/egress-test")
async def egress_test(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, new: shapes.NewTest
) -> shapes.TestShape:
    """What would become of a request, and why. Nothing goes out."""
    return _tested(await engine.egress.test(actor, tenant, user, new.method, new.url))


@router.get("/tenants/{tenant}/users/{user}/egress-log")
async def egress_log(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    user: Name,
    since: datetime | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> shapes.LogShape:
    """Newest first. `since`: ISO 8601, UTC when it names no zone."""
    moment = since.replace(tzinfo=UTC) if since is not None and since.tzinfo is None else since
    found = await engine.egress_log.read(actor, tenant, user, moment, limit)
    facts = {"traffic": found.traffic, "rows": found.rows, "dropped": found.dropped, "until": found.until}
    return shapes.LogShape.model_validate({**facts, "more": found.more})


def _wish(new: shapes.NewRule) -> RuleWish:
    return RuleWish(
        answer=Verdict(new.answer),
        host=new.host,
        preset=new.preset,
        ports=None if new.ports is None else tuple(new.ports),
        methods=frozenset(new.methods),
        paths=tuple(new.paths),
        query=tuple((name, value) for name, value in new.query),
        plain=new.plain,
        websocket=new.websocket,
        passthrough=new.passthrough,
        forward_literal=new.forward_literal,
        up_bytes=new.up_bytes,
        down_bytes=new.down_bytes,
        note=new.note,
    )


def _listed(view: RulesView) -> shapes.RuleList:
    return shapes.RuleList(rules=[rule_shape(each) for each in view.rules], lint=list(view.lint))


def rule_shape(noun: EgressRule) -> shapes.RuleShape:
    return shapes.RuleShape(
        id=noun.id,
        layer=noun.layer.value,
        answer=noun.answer.value,
        host=noun.host,
        ports=list(noun.ports),
        methods=sorted(noun.methods),
        paths=list(noun.paths),
        query=[list(pair) for pair in noun.query],
        plain=noun.plain,
        mode=noun.mode.value,
        websocket=noun.websocket,
        forward_literal=noun.forward_literal,
        up_bytes=noun.up_bytes,
        down_bytes=noun.down_bytes,
        note=noun.note,
    )


def _maybe(rule: EgressRule | None) -> shapes.RuleShape | None:
    return None if rule is None else rule_shape(rule)


def _tested(view: Tried) -> shapes.TestShape:
    found, asked = view.explanation, view.explanation.asked
    return shapes.TestShape(
        answer=found.decision.answer.value,
        why=found.decision.why,
        mode=found.decision.mode.value,
        canonical=shapes.Canonical(
            host=asked.host,
            port=asked.port,
            tls=asked.tls,
            method=asked.method or "CONNECT",
            path=asked.path,
            websocket=asked.websocket,
        ),
        connection=found.connection.answer.value,
        layers=[
            shapes.LayerShape(
                layer=each.layer.value,
                answer=None if each.answer is None else each.answer.value,
                rule=_maybe(each.rule),
            )
            for each in found.layers
        ],
        rule=_maybe(found.decision.rule),
        missing=_maybe(found.decision.missing),
        credentials=[
            shapes.CredentialUse(name=view.credentials[each.credential], binding=binding_shape(each))
            for each in found.bindings
        ],
        notes=[*found.notes, *([view.note] if view.note else [])],
    )
