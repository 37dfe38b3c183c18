"""Credentials, bindings and the vault. Shapes only: the engine decides who may. A value passes through once, inwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter

from ringfence.host.kernel.outward.credentials import Binding, Scheme, Use
from ringfence.host.kernel.outward.reaches import places
from ringfence.host.kernel.outward.renewals import Renewal, Turn
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import BindingWish
from ringfence.host.web import shapes_secrets as shapes
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.ports_outward import SecretView
from ringfence.host.web.shaping import unb64

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["secrets"])
OF_TENANT = "/tenants/{tenant}/secrets"
OF_USER = "/tenants/{tenant}/users/{user}/secrets"
ONE = OF_USER + "/{secret}"


@router.get(OF_TENANT)
async def secrets_all(engine: CurrentEngine, actor: CurrentActor, tenant: Name) -> shapes.SecretList:
    """Of the tenant and all its users, for operators."""
    return _listed(await engine.secrets.all(actor, tenant))


@router.put(OF_TENANT + "/{secret}")
async def secret_set_tenant(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, secret: Name, new: shapes.NewTenantSecret
) -> shapes.SecretShape:
    """Each user of the tenant may bind it. There already: its next version."""
    wish = _wish(new.binding) if new.binding is not None else None
    value = Secret(unb64(new.value_b64, "value_b64"))
    return _shaped(
        await engine.secrets.set_tenant(actor, tenant, secret, value, user=new.user, wish=wish, oauth=new.oauth)
    )


@router.delete(OF_TENANT + "/{secret}")
async def secret_revoke_tenant(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, secret: Name
) -> shapes.Revoked:
    return shapes.Revoked(revoked=(await engine.secrets.revoke_tenant(actor, tenant, secret)).id)


@router.get(OF_USER)
async def secrets(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> shapes.SecretList:
    """What the user may bind: own, then the tenant's, then what was granted. Never a value."""
    return _listed(await engine.secrets.ls(actor, tenant, user))


@router.put(ONE)
async def secret_set(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name, new: shapes.NewSecret
) -> shapes.SecretShape:
    """A new one, or the next version: placeholders stay as they are. With a binding it is bound too."""
    wish = _wish(new.binding) if new.binding is not None else None
    value = Secret(unb64(new.value_b64, "value_b64"))
    return _shaped(
        await engine.secrets.set(actor, tenant, user, secret, value, shared=new.shared, wish=wish, oauth=new.oauth)
    )


@router.delete(ONE)
async def secret_revoke(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name
) -> shapes.Revoked:
    """For good. No worker has the value any more when this answers."""
    return shapes.Revoked(revoked=(await engine.secrets.revoke(actor, tenant, user, secret)).id)


@router.put(ONE + "/grants/{to}", status_code=204)
async def secret_grant(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name, to: Name
) -> None:
    await engine.secrets.grant(actor, tenant, user, secret, to, granted=True)


@router.delete(ONE + "/grants/{to}", status_code=204)
async def secret_grant_end(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name, to: Name
) -> None:
    await engine.secrets.grant(actor, tenant, user, secret, to, granted=False)


@router.post(ONE + "/bindings", status_code=201)
async def secret_bind(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name, new: shapes.NewBinding
) -> shapes.BindingList:
    """`secret`: a name or an id, of those that the user sees."""
    made = await engine.secrets.bind(actor, tenant, user, secret, _wish(new))
    return shapes.BindingList(bindings=[binding_shape(each) for each in made])


@router.put(ONE + "/reach")
async def secret_reach(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name, new: shapes.NewBinding
) -> shapes.SecretShape:
    """Of a shared one: whoever it is granted to may bind it there too."""
    return _shaped(await engine.secrets.reach(actor, tenant, user, secret, _wish(new)))


@router.delete(ONE + "/reach")
async def secret_reach_end(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, secret: Name
) -> shapes.SecretShape:
    """Nobody but its owner may bind it any more; what others have bound ends."""
    return _shaped(await engine.secrets.reach(actor, tenant, user, secret, None))


@router.put(OF_TENANT + "/{secret}/reach")
async def secret_reach_tenant(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, secret: Name, new: shapes.NewBinding
) -> shapes.SecretShape:
    """Each user of the tenant may bind it there too."""
    return _shaped(await engine.secrets.reach_tenant(actor, tenant, secret, _wish(new)))


@router.delete(OF_TENANT + "/{secret}/reach")
async def secret_reach_tenant_end(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, secret: Name
) -> shapes.SecretShape:
    return _shaped(await engine.secrets.reach_tenant(actor, tenant, secret, None))


@router.delete("/tenants/{tenant}/users/{user}/ca", status_code=204)
async def ca_forget(engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name) -> None:
    """The user's boxes get another at their next start."""
    await engine.vault.forget_ca(actor, tenant, user)


@router.post("/vault/restored")
async def vault_restored(engine: CurrentEngine, actor: CurrentActor) -> shapes.Restored:
    """The store was put back by another host: what is older in it is right."""
    return shapes.Restored(generation=await engine.vault.restored(actor))


@router.delete("/tenants/{tenant}/users/{user}/bindings/{binding}")
async def secret_unbind(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, binding: Name
) -> shapes.Unbound:
    """`binding`: an id, or a credential's name for all of its."""
    return shapes.Unbound(unbound=list(await engine.secrets.unbind(actor, tenant, user, binding)))


@router.get("/vault")
async def vault(engine: CurrentEngine, actor: CurrentActor) -> shapes.VaultShape:
    return shapes.VaultShape.model_validate(await engine.vault.status(actor))


@router.post("/vault/rotate")
async def vault_rotate(engine: CurrentEngine, actor: CurrentActor) -> shapes.Rotated:
    """Wraps every value by the present key. May be cut off anywhere and asked again."""
    return shapes.Rotated.model_validate(await engine.vault.rotate(actor))


def _wish(new: shapes.NewBinding) -> BindingWish:
    return BindingWish(
        recipe=new.recipe,
        host=new.host,
        header=new.header,
        scheme=None if new.scheme is None else Scheme(new.scheme),
        query=new.query,
        ports=tuple(new.ports),
        methods=frozenset(new.methods),
        paths=tuple(new.paths),
        environment=None if new.environment is None else tuple(new.environment),
        use=Use(new.use),
        shape=new.shape,
        uses=new.uses,
        ranges=new.ranges,
    )


def _listed(found: Sequence[SecretView]) -> shapes.SecretList:
    return shapes.SecretList(secrets=[_shaped(each) for each in found])


def _shaped(view: SecretView) -> shapes.SecretShape:
    noun = view.credential
    return shapes.SecretShape(
        id=noun.id,
        name=noun.name,
        scope=noun.owner.value,
        user=view.user,
        version=noun.version,
        kind=noun.kind,
        created_at=noun.created_at,
        updated_at=noun.updated_at,
        granted=list(view.granted),
        bindings=[binding_shape(each) for each in view.bindings],
        reach=[binding_shape(each) for each in places(noun)],
        renewal=None if view.renewal is None else _renewal(view.renewal),
    )


def _renewal(noun: Renewal) -> shapes.RenewalShape:
    state: Literal["asking", "failing", "refused"] = "failing"
    if noun.turn is not Turn.LATER:
        state = "asking" if noun.turn is Turn.BUSY else "refused"
    return shapes.RenewalShape(state=state, why=noun.why, again_at=noun.again_at)


def binding_shape(noun: Binding) -> shapes.BindingShape:
    return shapes.BindingShape(
        id=noun.id,
        host=noun.host,
        ports=list(noun.ports),
        methods=sorted(noun.methods),
        paths=list(noun.paths),
        positions=[
            shapes.PositionShape(header=each.header, scheme=each.scheme.value, query=each.query)
            for each in noun.positions
        ],
        use=noun.use.value,
        environment=list(noun.environment),
        shape=noun.shape,
        uses=noun.uses,
        recipe=noun.recipe,
        ranges=noun.ranges,
    )
