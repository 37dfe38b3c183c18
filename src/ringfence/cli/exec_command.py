"""`ringfence exec U -- CMD` in the full command tree: help, usage errors, and words that exec_words does not take."""

from __future__ import annotations

from typing import Annotated

import typer

from ringfence.cli import exec_run
from ringfence.cli.exec_words import ExecWords
from ringfence.cli.options import As, Json, Tenant, User


def exec_command(
    user: User,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The command, after --.")],
    timeout: Annotated[float | None, typer.Option(metavar="SEC", help="End it after so many seconds.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A variable; repeat it for more.")] = None,
    cwd: Annotated[str | None, typer.Option(metavar="D", help="The folder to run in; the box's HOME.")] = None,
    act_as: As = None,
    tenant: Tenant = "default",
    json: Json = False,
) -> int:
    """Run a command in U's box."""
    return exec_run.run(ExecWords(user, command, timeout, env or [], cwd, act_as, tenant, json))
