"""All commands as one typer application, of which only the asked part is imported. Runs it; knows usage errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ringfence.cli import say_it

OWN = frozenset({"init", "serve", "doctor", "config", "bench", "prove"})


def run(words: list[str], as_json: bool) -> int:
    """The exit code; raises what a command raises."""
    try:
        command = typer.main.get_command(assemble(words[0] if words else ""))
        result = command.main(args=words, prog_name="ringfence", standalone_mode=False)
    except typer.Abort:
        return 130
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer's own end for it would say 1
            raise end.__context__ from None
        raise
    except typer.TyperException as error:
        return _usage(error, words, as_json)
    return result if isinstance(result, int) else 0


def _usage(error: typer.TyperException, words: list[str], as_json: bool) -> int:
    code = int(getattr(error, "exit_code", 2))
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{text}\n")
        return code
    plain = " ".join(word for word in words[:2] if not word.startswith("-"))
    return say_it.error("usage", text, f"see: ringfence {plain} --help", {}, as_json, code)


def assemble(first: str) -> typer.Typer:
    """The application with the commands of the first word; with all of them when it names none."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)
    app.callback()(_about)
    mounts = {
        "exec": _mount_exec,
        "status": _mount_status,
        "usage": _mount_usage,
        "support-bundle": _mount_support,
        "sweep": _mount_sweep,
        "tenant": _mount_people,
        "user": _mount_people,
        "token": _mount_people,
        "files": _mount_files,
        "box": _mount_boxes,
        "say": _mount_talk,
        "thread": _mount_talk,
        "events": _mount_talk,
        "run": _mount_runs,
        "gate": _mount_gates,
        "approve": _mount_gates,
        "deny": _mount_gates,
        "db": _mount_db,
        "backup": _mount_backup,
        "image": _mount_image,
        "uninstall": _mount_uninstall,
        "audit": _mount_audit,
        "secret": _mount_secrets,
        "vault": _mount_vault,
        "egress": _mount_egress,
    } | dict.fromkeys(OWN, _mount_own)
    if first in mounts:
        mounts[first](app)
    else:
        for mount in dict.fromkeys(mounts.values()):
            mount(app)
    return app


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say_it.line(f"ringfence {version('ringfence')}")
        raise typer.Exit


def _about(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """One shared agent for a team, one walled box per person."""


def _mount_exec(app: typer.Typer) -> None:
    from ringfence.cli import exec_command

    app.command("exec")(exec_command.exec_command)


def _mount_status(app: typer.Typer) -> None:
    from ringfence.cli import status

    app.command("status")(status.status)


def _mount_usage(app: typer.Typer) -> None:
    from ringfence.cli import usage_command

    app.command("usage")(usage_command.usage)


def _mount_sweep(app: typer.Typer) -> None:
    from ringfence.cli import sweep_command

    app.command("sweep")(sweep_command.sweep)


def _mount_support(app: typer.Typer) -> None:
    from ringfence.cli import support_command

    app.command("support-bundle")(support_command.support_bundle)


def _mount_people(app: typer.Typer) -> None:
    from ringfence.cli import people

    app.add_typer(people.tenant, name="tenant")
    app.add_typer(people.user, name="user")
    app.add_typer(people.token, name="token")


def _mount_files(app: typer.Typer) -> None:
    from ringfence.cli import files

    app.add_typer(files.files, name="files")


def _mount_boxes(app: typer.Typer) -> None:
    from ringfence.cli import box_copies as box_copies
    from ringfence.cli import box_life
    from ringfence.cli import box_logs as box_logs

    app.add_typer(box_life.box, name="box")


def _mount_talk(app: typer.Typer) -> None:
    from ringfence.cli import events_command, say_command, threads

    app.command("say")(say_command.say)
    app.command("events")(events_command.events)
    app.add_typer(threads.thread, name="thread")


def _mount_runs(app: typer.Typer) -> None:
    from ringfence.cli import runs

    app.add_typer(runs.run, name="run")


def _mount_audit(app: typer.Typer) -> None:
    from ringfence.cli import audit_command

    app.add_typer(audit_command.audit, name="audit")


def _mount_secrets(app: typer.Typer) -> None:
    from ringfence.cli import secret_command

    app.add_typer(secret_command.secret, name="secret")


def _mount_vault(app: typer.Typer) -> None:
    from ringfence.cli import vault_command

    app.add_typer(vault_command.vault, name="vault")


def _mount_egress(app: typer.Typer) -> None:
    from ringfence.cli import egress_command

    app.add_typer(egress_command.egress, name="egress")


def _mount_db(app: typer.Typer) -> None:
    from ringfence.cli import db_command

    app.add_typer(db_command.db, name="db")


def _mount_backup(app: typer.Typer) -> None:
    from ringfence.cli import backup_command

    app.add_typer(backup_command.backup, name="backup")


def _mount_image(app: typer.Typer) -> None:
    from ringfence.cli import image_command

    app.add_typer(image_command.image, name="image")


def _mount_uninstall(app: typer.Typer) -> None:
    from ringfence.cli import uninstall_command

    app.command("uninstall")(uninstall_command.uninstall)


def _mount_gates(app: typer.Typer) -> None:
    from ringfence.cli import gate_command

    app.add_typer(gate_command.gate, name="gate")
    app.command("approve")(gate_command.approve)
    app.command("deny")(gate_command.deny)


def _mount_own(app: typer.Typer) -> None:
    from ringfence.cli import own_mount

    app.command("init")(own_mount.init)
    app.command("serve")(own_mount.serve)
    app.command("doctor")(own_mount.doctor)
    app.command("prove")(own_mount.prove)
    app.add_typer(own_mount.config, name="config")
    app.add_typer(own_mount.bench, name="bench")
