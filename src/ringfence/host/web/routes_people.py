"""Tenants, users, tokens. Shapes only: the engine decides who may."""

from __future__ import annotations

from fastapi import APIRouter

from ringfence.host.web import shapes, shaping
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name

router = APIRouter(prefix="/v1/tenants", route_class=KnownFirst, tags=["people"])


@router.get("")
async def tenants(engine: CurrentEngine, actor: CurrentActor) -> shapes.TenantList:
    return shapes.TenantList(tenants=[shaping.tenant(each) for each in await engine.people.tenants(actor)])


@router.post("", status_code=201)
async def tenant_add(engine: CurrentEngine, actor: CurrentActor, new: shapes.NewTenant) -> shapes.TenantShape:
    return shaping.tenant(await engine.people.tenant_add(actor, new.name))


@router.delete("/{tenant}", status_code=204)
async def tenant_remove(engine: CurrentEngine, actor: CurrentActor, tenant: Name) -> None:
    await engine.people.tenant_remove(actor, tenant)


@router.get("/{tenant}/users")
async def users(engine: CurrentEngine, actor: CurrentActor, tenant: Name) -> shapes.UserList:
    return shapes.UserList(users=[shaping.user(each) for each in await engine.people.users(actor, tenant)])


@router.post("/{tenant}/users", status_code=201)
async def user_add(engine: CurrentEngine, actor: CurrentActor, tenant: Name, new: shapes.NewUser) -> shapes.UserShape:
    return shaping.user(await engine.people.user_add(actor, tenant, new.name, new.kind, new.owner))


@router.get("/{tenant}/users/{user}")
async def user_show(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.UserShape:
    found = await engine.people.user(actor, tenant, user)
    return shaping.user(found, await engine.people.models_used(found))


@router.delete("/{tenant}/users/{user}", status_code=204)
async def user_remove(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, purge: bool = False
) -> None:
    await engine.people.user_remove(actor, tenant, user, purge)


@router.get("/{tenant}/users/{user}/tokens")
async def tokens(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.TokenList:
    found = await engine.people.tokens(actor, tenant, user)
    return shapes.TokenList(tokens=[shaping.token(each) for each in found])


@router.post("/{tenant}/users/{user}/tokens", status_code=201)
async def token_add(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, new: shapes.NewToken
) -> shapes.TokenMade:
    made, secret = await engine.people.token_add(
        actor, tenant, user, [str(scope) for scope in new.scopes], new.note, new.ttl_seconds
    )
    return shaping.token_made(made, secret)


@router.delete("/{tenant}/users/{user}/tokens/{token}", status_code=204)
async def token_remove(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, token: Name) -> None:
    await engine.people.token_remove(actor, tenant, user, token)
