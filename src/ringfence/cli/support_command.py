"""`ringfence support-bundle`: one file for whoever is to help, with or without a server. Own command: what is in it is made in
host.install."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ringfence.cli import say_it
from ringfence.cli.calls import call
from ringfence.cli.options import Json
from ringfence.client.client import Client
from ringfence.client.errors import ApiError, Invalid, from_answer


def support_bundle(
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="A name that is free; default: one with the time.")
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="The server's log: its last 2,000 lines; - is stdin.")
    ] = None,
    json: Json = False,
) -> None:
    """Pack what a helper must know and nothing that is anybody's: health, versions, settings that are no secret, counts."""
    from ringfence.cli.export_command import new_file
    from ringfence.host.install import support

    target = Path(output or f"ringfence-support-{_now()}.tar.gz")
    if os.path.lexists(target):
        raise Invalid("invalid", f"{target} exists: a bundle overwrites nothing", "name another file: --output FILE")
    data = support.made(os.environ, status=lambda: _asked(lambda client: client.status()), audit=_audit, log=log)
    if not isinstance(data, bytes):
        raise from_answer(data, data["status"])
    with new_file(target) as file:
        file.write(data)
    facts = {"file": str(target), "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if json:
        say_it.as_json(facts)
    else:
        say_it.line(f"{say_it.plain(str(target))}: {len(data)} bytes, sha256 {facts['sha256']}")
        say_it.note("manifest.json in it says what is in it, and why that is no secret; look before you send it")


def _asked(work: Callable[[Client], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Of the running server; where there is none, only why."""
    try:
        return call(work)
    except ApiError as error:
        return {"ok": False, "code": error.code}


def _audit() -> dict[str, Any]:
    """By the server, else by a process of its account."""
    from ringfence.host.install import db_commands

    answer = _asked(lambda client: client.audit_verify())
    return answer if "rows" in answer else db_commands.audit(os.environ, None, {"verb": "verify"})


def _now() -> str:
    return datetime.now().strftime("%Y%m%d-%H%M%S")  # noqa: TID251
