"""`ringfence box`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import As, Json, Tenant, User

box = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Boxes: one for each user.")


@box.command("ls")
def ls(
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Only this tenant's; all without.")] = None,
    json: Json = False,
) -> None:
    """List the boxes."""
    found = call(lambda client: client.boxes(tenant=tenant))
    if json:
        say_it.as_json({"boxes": found})
        return
    rows = [
        (
            each["tenant"],
            each["user"],
            each["observed"],
            each["pids"],
            say_it.size(each["memory_bytes"]),
            "?" if each["disk_bytes"] < 0 else say_it.size(each["disk_bytes"]),
            each["driver"],
        )
        for each in found
    ]
    say_it.table(("TENANT", "USER", "STATE", "PIDS", "MEMORY", "DISK", "DRIVER"), rows)


@box.command("show")
def show(user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Show a box: state, use, limits."""
    _print(call(lambda client: client.box(user), tenant=tenant, act_as=act_as), json)


@box.command("start")
def start(user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Start a box. The first command does that by itself."""
    _print(call(lambda client: client.start_box(user), tenant=tenant, act_as=act_as), json)


@box.command("stop")
def stop(user: User, act_as: As = None, tenant: Tenant = "default", json: Json = False) -> None:
    """Stop a box: every process in it ends, its files stay, /tmp is emptied."""
    _print(call(lambda client: client.stop_box(user), tenant=tenant, act_as=act_as), json)


@box.command("limits")
def limits(
    user: User,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="For example 2GiB.")] = None,
    pids: Annotated[int | None, typer.Option(help="Processes and threads.")] = None,
    cpu: Annotated[float | None, typer.Option(help="Cores, for example 1.5.")] = None,
    nofile: Annotated[int | None, typer.Option(help="Open files of a process; from the next start on.")] = None,
    fsize: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of one file; from the next start on.")] = None,
    shm: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of /dev/shm; from the next start on.")] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Home, workspace and /tmp; an image only grows.")
    ] = None,
    inodes: Annotated[
        int | None, typer.Option(help="Files and folders; of an image they grow with the disk only.")
    ] = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Change a box's limits; without options, show them."""
    changes = {
        "memory": _bytes(memory),
        "pids": pids,
        "cpu_milli": _thousandths(cpu),
        "nofile": nofile,
        "fsize": _bytes(fsize),
        "shm": _bytes(shm),
        "disk": _bytes(disk),
        "inodes": inodes,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if given:
        answer = call(lambda client: client.set_limits(user, given), tenant=tenant)
    else:
        answer = call(lambda client: client.box(user), tenant=tenant)
    say_it.as_json(answer) if json else _print_limits(answer)


def _print_limits(answer: Mapping[str, Any]) -> None:
    """What is set; behind it what holds instead, and what does not hold yet."""
    instead, later = answer.get("effective", {}), answer.get("from_next_start", [])
    said = {}
    for name, value in answer["limits"].items():
        lower = f"  (another limit is lower: {instead[name]} holds)" if name in instead else ""
        said[name] = f"{value}{lower}{'  (from the next start of the box on)' if name in later else ''}"
    if answer.get("disk_by") == "image" and "inodes" in said:  # fewer or more than that were made, or have grown since
        said["inodes"] += f"  (the disk image has {answer['inode_limit']}, and more as it grows)"
    say_it.facts(said)


def _thousandths(cores: float | None) -> int | None:
    if cores is None:
        return None
    if not math.isfinite(cores):
        raise typer.BadParameter(f"{cores} is no number of cores; write for example 1.5")
    return round(cores * 1000)


def _bytes(text: str | None) -> int | None:
    """ "2GiB", "512 MiB", "1.5G" or bytes."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size; write for example 2GiB or 512MiB")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def _print(answer: Mapping[str, Any], json: bool) -> None:
    say_it.as_json(answer) if json else say_it.facts(answer)
