"""The basic doctor: every fact as a row, in the order in which one would mend them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from ringfence.host.install import accounts, cgroups, hostfacts, hostfacts_disk, hostfacts_server, subids, webhook_keys
from ringfence.host.install.hostfacts import Row
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.settings import Settings


def required(settings: Settings) -> list[Row]:
    """Rows without which no box may start; what `serve` refuses for. Fast: some 50 ms."""
    euid = os.geteuid()
    unprivileged = hostfacts.NOBODY if euid == 0 else None
    rows = [
        hostfacts.kernel(),
        hostfacts.python(settings.python, euid),
        hostfacts_server.python_in_box(settings.python),
        hostfacts.bubblewrap(settings.bwrap, euid),
    ]
    works = False
    if rows[-1].ok:
        sandbox = hostfacts.sandbox(settings.bwrap, unprivileged)
        works = sandbox.ok
        rows += [_user_namespaces(euid, unprivileged, works), hostfacts.apparmor(euid == 0, works), sandbox]
    else:
        rows += [hostfacts.userns(unprivileged), hostfacts.apparmor(euid == 0, True)]
    if euid == 0:
        rows.append(hostfacts.id_range(accounts.ids_of(0)))
    rows.append(hostfacts.seccomp())
    return rows


def _user_namespaces(euid: int, unprivileged: int | None, sandbox_works: bool) -> Row:
    """Under root only bubblewrap makes them, so where it may, a host that denies them to all others is fine."""
    row = hostfacts.userns(unprivileged)
    if not row.ok and euid == 0 and sandbox_works:
        return Row(row.id, True, "required", "bubblewrap can make user namespaces; other programs cannot")
    return row


def examine(settings: Settings, home: Path) -> list[Row]:
    root = os.geteuid() == 0
    return [
        *required(settings),
        hostfacts.bwrap_cve(settings.bwrap),
        *([] if root else [_subordinate_ids()]),
        cgroups.row(root),
        hostfacts_server.freeze(root),
        hostfacts_server.oom_score(root),
        hostfacts_server.server_memory(root),
        hostfacts_server.core_pattern(),
        hostfacts.landlock(),
        hostfacts.pidfs(),
        hostfacts.nftables(),
        hostfacts.tiocsti(),
        hostfacts.git(),
        hostfacts.disk(home),
        hostfacts_disk.limits(settings, root),
        *filter(None, [hostfacts_disk.promised(home)]),
        *webhook_keys.rows(settings, Layout(home)),
        hostfacts_server.prove(settings, home),
    ]


def my_name() -> str:
    """The account's name; newuidmap wants one, so a number alone gets no own ids."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _subordinate_ids() -> Row:
    choice = subids.choose(my_name(), os.getuid())
    if choice.uids is not None:
        return Row(
            "subuids", True, "recommended", f"{choice.uids.count} from {choice.uids.start} on: a host id for each box"
        )
    return Row("subuids", False, "recommended", f"{choice.lacks}: all boxes would share one host id", choice.remedy)


def missing(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.level == "required" and not row.ok]


def as_text(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        mark = "ok  " if row.ok else {"required": "FAIL", "recommended": "weak", "info": "note"}[row.level]
        lines.append(f"{mark}  {row.id:<16}  {row.found}")
        if row.remedy and not row.ok:
            lines.append(f"      {'':<16}  -> {row.remedy}")
    return "\n".join(lines) + "\n"
