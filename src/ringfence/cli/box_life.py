"""`ringfence box pause|resume|quarantine|release|upgrade`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.boxes import box as box
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant, User
from ringfence.client.errors import ApiError


@box.command("pause")
def pause(
    user: User,
    force: Annotated[
        bool, typer.Option("--force", help="Also while a run is at work in it: the run is parked.")
    ] = False,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Pause a box: every process in it stands still, its memory stays. The next use resumes it."""
    _print(call(lambda client: client.pause_box(user, force=force), tenant=tenant, act_as=act_as), json)


@box.command("resume")
def resume(user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Let a paused box go on."""
    _print(call(lambda client: client.resume_box(user), tenant=tenant, act_as=act_as), json)


@box.command("quarantine")
def quarantine(
    user: User,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; whoever is refused is told.")],
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Put a box into quarantine: it stands still, nothing is started in it, its user has no files, runs wait."""
    _print(call(lambda client: client.quarantine_box(user, reason), tenant=tenant), json)


@box.command("release")
def release(user: User, tenant: Tenant = "default", json: Json = False) -> None:
    """End a box's quarantine. Its next use resumes or starts it."""
    _print(call(lambda client: client.release_box(user), tenant=tenant), json)


@box.command("upgrade")
def upgrade(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Whose box; or --all.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every box of the tenant that runs, one after the other, idle ones first.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="End what is at work in it.")] = False,
    drain: Annotated[float, typer.Option(metavar="SECONDS", help="Wait so long for the end of what is at work.")] = 0.0,
    image: Annotated[
        str | None,
        typer.Option("--image", metavar="NAME|ID", help="What it has as its /usr from now on; also: host, default."),
    ] = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Start a box anew if it was started with something that is another now: release, packages of the host, image, limits."""
    if every == (user is not None):
        raise typer.BadParameter("name one user, or --all")
    if user is not None:
        answer = call(lambda client: client.upgrade_box(user, force=force, drain=drain, image=image), tenant=tenant)
        say_it.as_json(answer) if json else say_it.facts({"drifted": answer["drifted"], **answer["box"]})
        return
    boxes = _idle_first(call(lambda client: client.boxes(tenant=tenant)), image)
    rows = [_upgraded(each, force, 0.0, image) for each in boxes]  # one that is waited for is in nobody else's way
    if drain:
        pairs = list(zip(boxes, rows, strict=True))
        rows = [_upgraded(each, force, drain, image) if row["done"] == "busy" else row for each, row in pairs]
    if json:
        say_it.as_json({"boxes": rows})
    else:
        say_it.table(("USER", "DONE", "DRIFTED"), [(r["user"], r["done"], ", ".join(r["drifted"])) for r in rows])
    if any(row["done"] == "failed" for row in rows):
        raise typer.Exit(1)


def _idle_first(boxes: list[dict[str, Any]], image: str | None) -> list[dict[str, Any]]:
    """Those that run. Of those that do not, which have nothing to be started anew, the ones that may be bound to something else."""
    up, down = [], []
    for each in boxes:
        if each["observed"] in ("running", "paused"):
            up.append(each)
        elif each["image_bound"] and (image is not None or not each["image_wanted"] or each["image_bound"] != "host"):
            down.append(each)
    return [*down, *sorted(up, key=lambda each: (each["observed"] == "running", each["last_active_at"] or ""))]


def _upgraded(box: Mapping[str, Any], force: bool, drain: float, image: str | None) -> dict[str, Any]:
    """One that is at work is left, and said to be: `busy`."""
    row = {"user": box["user"], "tenant": box["tenant"], "drifted": [], "why": ""}
    try:
        answer = call(
            lambda client: client.upgrade_box(box["user"], force=force, drain=drain, image=image), tenant=box["tenant"]
        )
    except ApiError as error:
        return {**row, "done": "busy" if error.code == "conflict" else "failed", "why": error.message}
    return {**row, "done": "upgraded" if answer["drifted"] else "current", "drifted": answer["drifted"]}


def _print(answer: Mapping[str, Any], json: bool) -> None:
    say_it.as_json(answer) if json else say_it.facts(answer)
