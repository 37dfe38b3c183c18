"""Rows about what keeps the server itself alive and answerable, and what is known of its walls. Looks; changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.host.install import cgroups, prove_record, tries
from ringfence.host.install.hostfacts import Row
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.settings import Settings

OOM_SCORE = -900  # what the spawner gives itself and the kernel as root


def freeze(root: bool, proc: Path = Path("/proc/self")) -> Row:
    """Whether a box can be stood still: cgroup.freeze, or the v1 freezer where there is no unified tree."""
    text = cgroups.text(proc / "mountinfo")
    unified, v1 = cgroups.mounts(text, frozenset({"freezer"}))
    if root and unified is not None:
        return Row("freeze", True, "recommended", "cgroup.freeze of the unified tree")
    if root and v1:
        return Row("freeze", True, "recommended", "the v1 freezer: there is no unified tree")
    if not root and cgroups.row(False, proc).ok:
        return Row("freeze", True, "recommended", "cgroup.freeze of the delegated cgroup")
    remedy = "mount -t cgroup2 none /sys/fs/cgroup/unified" if root else cgroups.DELEGATE
    return Row("freeze", False, "recommended", "a box cannot be frozen: pause means stop", remedy)


def oom_score(root: bool) -> Row:
    """Whether the kernel's OOM killer can be told to take the server last."""
    if not root:
        return Row(
            "oom-score", True, "info", "an ordinary account's server is as likely to be killed as its boxes' host"
        )
    if tries.in_child(_lower) == 0:
        return Row("oom-score", True, "info", f"server and kernel process run with oom_score_adj {OOM_SCORE}")
    found = "this root lacks CAP_SYS_RESOURCE: server and kernel process keep their oom_score_adj"
    remedy = "systemctl edit ringfence  (AmbientCapabilities=CAP_SYS_RESOURCE); docker run --cap-add SYS_RESOURCE"
    return Row("oom-score", False, "info", found, remedy)


def _lower() -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(OOM_SCORE))


def server_memory(root: bool) -> Row:
    """Who but root can read the server's memory, and with it what the vault holds. An ordinary user owns the user namespace that
    the server is started in, and with it every right over its processes (user_namespaces(7)); a box has none of them."""
    if root:
        return Row("server-memory", True, "recommended", "an account of the server's own, and it is not dumpable")
    found = "your other programs can read this server's memory, key and state, so all stored credentials; boxes cannot"
    return Row("server-memory", False, "recommended", found, "run it as root, which gives it an account of its own")


def core_pattern(path: Path = Path("/proc/sys/kernel/core_pattern")) -> Row:
    """Whether a crash starts a program of the host's root (core(5)). It is not started for a box's programs, unless one of
    them asks for it by lowering its own limit."""
    try:
        handler = path.read_text().strip()
    except OSError:
        handler = ""
    if not handler.startswith("|"):
        return Row("core-pattern", True, "info", "a crash starts no program of the host")
    program = (handler[1:].split() or ["a program"])[0][:80]
    found = f"a program that lowers its RLIMIT_CORE to 0 and crashes has {program} run as root, also in a box"
    return Row("core-pattern", False, "info", found, "sysctl -w kernel.core_pattern=core")


def python_in_box(path: str) -> Row:
    """Boxes see the host's /usr and nothing else of it, so the interpreter must lie there."""
    real = os.path.realpath(path)
    if real.startswith("/usr/") and os.path.realpath(os.path.dirname(path)).startswith("/usr/"):
        return Row("python-in-box", True, "required", f"{path}, which boxes see")
    remedy = 'apt-get install -y python3, then python = "/usr/bin/python3" in ringfence.toml'
    return Row("python-in-box", False, "required", f"{path} ({real}) is not below /usr: no box could start it", remedy)


def prove(settings: Settings, home: Path) -> Row:
    """What the last `ringfence prove` is worth to this boot, version and profile."""
    try:
        record = prove_record.read(Layout(home))
        verdict = prove_record.verdict(record, prove_record.current(settings))
    except RingfenceError as error:
        return Row("prove", False, "info", error.message, error.remedy)
    if verdict.open:
        return Row("prove", False, "info", verdict.why, "ringfence prove")
    held = len({row.id for row in record.rows if row.status == "held"}) if record is not None else 0
    return Row("prove", True, "info", f"{held} rows held, none open, on this boot and version")
