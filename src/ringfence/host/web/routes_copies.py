"""Copies of a box's files: made, seen, removed, put back, another user's; a box begun anew, archived, mended. Shapes only.

An export that is cut off (download.py) has no end that tar would take.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from ringfence.host.kernel.life.copies import How, Snapshot
from ringfence.host.web import shapes, shapes_copies, shaping
from ringfence.host.web.download import Download, while_present
from ringfence.host.web.login import CurrentActor, CurrentEngine, KnownFirst
from ringfence.host.web.names import Name
from ringfence.host.web.ports_copies import Changed
from ringfence.host.web.routes_boxes import BOX

router = APIRouter(prefix="/v1", route_class=KnownFirst, tags=["copies"])
_TAR: dict[str, Any] = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}


@router.post(f"{BOX}/snapshots", status_code=201)
async def box_snapshot(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, new: shapes_copies.NewSnapshot
) -> shapes_copies.TakenShape:
    taken = await engine.copies.snapshot(actor, tenant, user, new.name, force=new.force)
    return shapes_copies.TakenShape(snapshot=_shape(taken.snapshot), left_out=dict(taken.left_out))


@router.get(f"{BOX}/snapshots")
async def box_snapshots(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name
) -> shapes_copies.SnapshotList:
    found = await engine.copies.list(actor, tenant, user)
    return shapes_copies.SnapshotList(snapshots=[_shape(each) for each in found])


@router.delete(f"{BOX}/snapshots/{{snapshot}}", status_code=204)
async def box_snapshot_remove(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, snapshot: Name
) -> None:
    await engine.copies.remove(actor, tenant, user, snapshot)


@router.post(f"{BOX}/snapshots/{{snapshot}}/restore")
async def box_restore(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    user: Name,
    snapshot: Name,
    wanted: shapes_copies.Change | None = None,
) -> shapes_copies.ChangedShape:
    return _changed(await engine.copies.restore(actor, tenant, user, snapshot, _how(wanted)))


@router.post(f"{BOX}/clone/{{to}}")
async def box_clone(
    engine: CurrentEngine,
    actor: CurrentActor,
    tenant: Name,
    user: Name,
    to: Name,
    wanted: shapes_copies.Clone | None = None,
) -> shapes_copies.ChangedShape:
    copy = wanted.snapshot if wanted is not None else None
    return _changed(await engine.copies.clone(actor, tenant, user, to, copy, _how(wanted)))


@router.post(f"{BOX}/reset")
async def box_reset(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, wanted: shapes_copies.Reset | None = None
) -> shapes_copies.ChangedShape:
    keep_files = wanted is not None and wanted.keep_files
    return _changed(await engine.copies.reset(actor, tenant, user, _how(wanted), keep_files=keep_files))


@router.post(f"{BOX}/archive")
async def box_archive(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, wanted: shapes_copies.Archive | None = None
) -> shapes.BoxShape:
    how = How() if wanted is None else How(wanted.force, wanted.drain)
    return shaping.box(await engine.copies.archive(actor, tenant, user, how))


@router.post(f"{BOX}/recover")
async def box_recover(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, wanted: shapes_copies.Recover
) -> shapes_copies.MendedShape:
    how = How(wanted.force, wanted.drain)
    box, mended = await engine.copies.recover(actor, tenant, user, wanted.action, how)
    return shapes_copies.MendedShape(
        box=shaping.box(box),
        action=mended.action,
        found=mended.found,
        freed_bytes=mended.freed,
        removed=list(mended.removed),
    )


@router.get(
    f"{BOX}/export", response_class=StreamingResponse, responses={200: _TAR | {"description": "a tar of its files"}}
)
async def box_export(
    engine: CurrentEngine, actor: CurrentActor, tenant: Name, user: Name, force: bool = False
) -> Response:
    async with AsyncExitStack() as stack:
        presence = engine.people.presence(actor)
        stack.callback(presence.close)
        data = await stack.enter_async_context(engine.copies.export(actor, tenant, user, force=force))
        return Download(while_present(presence, data), "application/x-tar", stack.pop_all())


def _how(wanted: shapes_copies.Change | None) -> How:
    return How() if wanted is None else How(wanted.force, wanted.drain, wanted.keep)


def _changed(found: Changed) -> shapes_copies.ChangedShape:
    before = None if found.before is None else _shape(found.before)
    return shapes_copies.ChangedShape(box=shaping.box(found.box), before=before, left_out=dict(found.left_out))


def _shape(copy: Snapshot) -> shapes_copies.SnapshotShape:
    return shapes_copies.SnapshotShape(
        id=copy.id,
        name=copy.name,
        kind=copy.kind.value,
        created_at=copy.created_at,
        entries=copy.entries,
        bytes=copy.bytes,
        stored_bytes=copy.stored,
        image=copy.image,
    )
