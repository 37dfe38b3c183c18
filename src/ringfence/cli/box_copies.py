"""`ringfence box snapshot|snapshots|snapshot-rm|restore|clone|reset|archive|recover`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.boxes import box as box
from ringfence.cli.calls import call
from ringfence.cli.export_command import kept
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.client import Client
from ringfence.client.errors import Invalid

Force = Annotated[bool, typer.Option("--force", help="End what is at work in the box.")]
Drain = Annotated[float, typer.Option(metavar="SEC", help="Wait so long for the end of what is at work.")]
Keep = Annotated[bool, typer.Option(" /--no-keep", help="Make no copy of the files that go.")]
Wanted = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id or name: ringfence box snapshots U.")]


@box.command("snapshot")
def snapshot(
    user: User,
    name: Annotated[str, typer.Option(metavar="N", help="A name, of one user each once.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Stop a box that is at work, where the host cannot make it stand still.")
    ] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Make a copy of a box's home and workspace. A running box stands still meanwhile."""
    answer = call(lambda client: client.snapshot(user, name=name, force=force), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json(answer)
        return
    say_it.facts(_shown(answer["snapshot"]))
    _left_out(answer)


@box.command("snapshots")
def snapshots(user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """List the copies of a box, oldest first."""
    found = call(lambda client: client.snapshots(user), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"snapshots": found})
        return
    rows = [
        (
            each["id"],
            each["name"] or "-",
            each["kind"],
            each["created_at"],
            each["entries"],
            say_it.size(each["bytes"]),
            say_it.size(each["stored_bytes"]),
        )
        for each in found
    ]
    say_it.table(("ID", "NAME", "KIND", "MADE", "ENTRIES", "CONTENT", "STORED"), rows)


@box.command("snapshot-rm")
def snapshot_rm(user: User, wanted: Wanted, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Remove a copy."""
    call(lambda client: client.remove_snapshot(user, wanted), tenant=tenant, act_as=act_as)
    if json:
        say_it.as_json({"removed": wanted})


@box.command("restore")
def restore(
    user: User,
    wanted: Wanted,
    force: Force = False,
    drain: Drain = 0.0,
    keep: Keep = True,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Put a copy in the place of a box's files. The box is stopped; what it had is copied first."""
    answer = call(
        lambda client: client.restore_box(user, wanted, force=force, drain=drain, keep=keep),
        tenant=tenant,
        act_as=act_as,
    )
    _changed(answer, json)


@box.command("clone")
def clone(
    user: Annotated[str, typer.Argument(metavar="FROM", help="Whose files.")],
    to: Annotated[str, typer.Argument(metavar="TO", help="Whose box gets them.")],
    wanted: Annotated[
        str | None, typer.Option("--snapshot", metavar="S", help="A copy of FROM; without: its files now.")
    ] = None,
    force: Force = False,
    drain: Drain = 0.0,
    keep: Keep = True,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Put one user's files in the place of another's. Identity and secrets stay each user's own."""
    answer = call(
        lambda client: client.clone_box(user, to, snapshot=wanted, force=force, drain=drain, keep=keep), tenant=tenant
    )
    _changed(answer, json)


@box.command("reset")
def reset(
    user: User,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Home and workspace stay; processes, /tmp and /run go.")
    ] = False,
    force: Force = False,
    drain: Drain = 0.0,
    keep: Keep = True,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Begin a box anew, with empty folders. The box is stopped; what it had is copied first."""
    answer = call(
        lambda client: client.reset_box(user, keep_files=keep_files, force=force, drain=drain, keep=keep),
        tenant=tenant,
        act_as=act_as,
    )
    _changed(answer, json)


@box.command("archive")
def archive(
    user: User,
    force: Force = False,
    drain: Drain = 0.0,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Stop a box and pack its files, until its next start unpacks them."""
    answer = call(lambda client: client.archive_box(user, force=force, drain=drain), tenant=tenant, act_as=act_as)
    say_it.as_json(answer) if json else say_it.facts(answer)


@box.command("recover")
def recover(
    user: User,
    fsck: Annotated[bool, typer.Option("--fsck", help="Check its disk and mend what is wrong.")] = False,
    free_space: Annotated[bool, typer.Option("--free-space", help="Empty /tmp and caches.")] = False,
    export: Annotated[
        str | None, typer.Option("--export", metavar="FILE", help="Write its files to a tar; it need not be usable.")
    ] = None,
    force: Force = False,
    drain: Drain = 0.0,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Mend a box that cannot be used, or save its files. The box is stopped, but for --export."""
    if fsck + free_space + (export is not None) != 1:
        raise typer.BadParameter("give one of --fsck, --free-space and --export FILE")
    if export is not None:
        _export(user, export, force, tenant, json)
        return
    action = "fsck" if fsck else "free-space"
    answer = call(lambda client: client.recover_box(user, action, force=force, drain=drain), tenant=tenant)
    if json:
        say_it.as_json(answer)
    else:
        say_it.facts({name: answer[name] for name in ("action", "found", "freed_bytes", "removed")})


def _export(user: str, output: str, force: bool, tenant: str, json: bool) -> None:
    target = Path(output)
    if os.path.lexists(target):
        raise Invalid("invalid", f"{output} exists: an export overwrites nothing", "name another file")

    async def work(client: Client) -> dict[str, Any]:
        async with client.export_box(user, force=force) as chunks:
            return await kept(chunks, target)

    answer = call(work, tenant=tenant)
    if json:
        say_it.as_json({"user": user, "tenant": tenant, **answer})
    else:
        say_it.line(f"{say_it.plain(output)}: {answer['size_bytes']} bytes, sha256 {answer['sha256']}")


def _changed(answer: Mapping[str, Any], json: bool) -> None:
    if json:
        say_it.as_json(answer)
        return
    before = answer["before"]
    shown = {name: answer["box"][name] for name in ("tenant", "user", "observed", "disk_bytes", "disk_limit_bytes")}
    say_it.facts({**shown, "before": before["id"] if before else "no copy was made"})
    _left_out(answer)


def _shown(copy: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy[name] for name in ("id", "name", "created_at", "entries", "bytes", "stored_bytes")}


def _left_out(answer: Mapping[str, Any]) -> None:
    if answer["left_out"]:
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(answer["left_out"].items()))
        say_it.note(f"not in the copy: {what}")
