"""A box's processes as the host sees them: ids, groups, capabilities, filters, namespaces, cgroups. Reads /proc only.

Each function makes Tries of it: `done` for a process that lacks the wall. Used on boxes by rows, and on a process of
prove's own by their controls.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ringfence.bench.throwaway import Installation
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import NotHere, Tries

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
# Hard limits of a box (spawner/launch.py) as /proc/PID/limits names them; of open files and size each box has its own.
HARD = {
    "Max core file size": 1,
    "Max locked memory": 64 << 10,
    "Max pending signals": 1024,
    "Max msgqueue size": 800 << 10,
    "Max nice priority": 0,
    "Max realtime priority": 0,
}
BOX_SCORE, COMMAND_SCORE = 100, 200  # OOM: before what is not a box's; commands before the box's own processes
SECCOMP_FILTER = "2"  # of `Seccomp:` in /proc/PID/status, proc(5)


def lives(pid: int) -> bool:
    """Not ended, nor ended and not yet waited for."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def resident_mib(server: Installation) -> int:
    """Of the server's own process (/proc/PID/statm counts pages)."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # another child of the spawner's ended while it was looked at
            text = Path(f"/proc/{server.kernel_pid()}/statm").read_text()
            return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def status(pid: int) -> dict[str, str]:
    """Fields of /proc/PID/status; empty when the process has ended meanwhile."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def ended(pid: int) -> bool:
    """Whether no thread of it runs any more. One whose first thread alone has ended is shown as a zombie, too (proc(5), `Threads`)."""
    fields = status(pid)
    return not fields or (fields["State"][0] in "ZX" and int(fields["Threads"]) <= 1)


def inner(pids: Sequence[int]) -> list[int]:
    """Those within the box's pid namespace: all but bubblewrap's own process, which stays outside and only waits."""
    return [pid for pid in pids if len(status(pid).get("NSpid", "").split()) > 1]


def first(pids: Sequence[int]) -> int:
    """The box's PID 1. NotHere: there is none."""
    for pid in inner(pids):
        if status(pid).get("NSpid", "").split()[-1:] == ["1"]:
            return pid
    raise NotHere("no first process of the box was there to look at")


def outer(pids: Sequence[int]) -> int:
    """Bubblewrap's own process, which waits for PID 1. NotHere: there is no PID 1."""
    return int(status(first(pids)).get("PPid", "0"))


def judged(pids: Sequence[int], lacks: Callable[[int], str | None]) -> Tries:
    """`lacks`: what a process has that it must not have; empty: nothing; None: it has ended. NotHere: there is none."""
    found = {f"process {pid}": said for pid in pids if (said := lacks(pid)) is not None}
    if not found:
        raise NotHere("no process of the box was there to look at")
    return Tries({name: f"{DONE} {said}" if said else "as it must be" for name, said in found.items()})


def _of_status(pids: Sequence[int], lacks: Callable[[dict[str, str]], str]) -> Tries:
    return judged(pids, lambda pid: lacks(fields) if (fields := status(pid)) else None)


def ids(pids: Sequence[int], uid: int) -> Tries:
    """All four uids and gids are the box's, and not 0."""

    def lacks(fields: dict[str, str]) -> str:
        seen = {*fields["Uid"].split(), *fields["Gid"].split()}
        return "" if seen == {str(uid)} and uid != 0 else f"ids {sorted(seen)}"

    return _of_status(pids, lacks)


def groups(pids: Sequence[int], uid: int) -> Tries:
    return _of_status(pids, lambda fields: " ".join(set(fields["Groups"].split()) - {str(uid)}))


def capabilities(pids: Sequence[int]) -> Tries:
    sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    return _of_status(pids, lambda fields: ", ".join(f"{s} {fields[s]}" for s in sets if int(fields[s], 16)))


def filters(pids: Sequence[int]) -> Tries:
    def lacks(fields: dict[str, str]) -> str:
        wrong = [] if fields["Seccomp"] == SECCOMP_FILTER else [f"Seccomp {fields['Seccomp']}"]
        return ", ".join(wrong + ([] if fields["NoNewPrivs"] == "1" else ["NoNewPrivs 0"]))

    return _of_status(pids, lacks)


def namespaces(pids: Sequence[int], strangers: Sequence[int]) -> Tries:
    """No namespace is one of the strangers'. NotHere: this account may not look."""
    theirs = {inode for pid in strangers for inode in _inodes(pid)}
    if not theirs:
        raise NotHere("this account may not look at namespaces of others")

    def lacks(pid: int) -> str | None:
        own = _inodes(pid)
        return ", ".join(sorted(own & theirs)) if own else None

    return judged(pids, lacks)


def _inodes(pid: int) -> set[str]:
    found = set()
    for name in NAMESPACES:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{name}"))
        except OSError:
            continue
    return found


def cgroup(pids: Sequence[int], box: str, count: int) -> Tries:
    """The process is in a leaf of the box's directory in each of the `count` hierarchies that have one. One that has ended and waits
    to be collected is shown in the root of each v1 hierarchy (kernel/cgroup/cgroup.c, proc_cgroup_show): it runs nothing."""

    def lacks(pid: int) -> str | None:
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return None
        inside = sum(f"/{box}/main" in line or f"/{box}/cmds" in line for line in lines)
        if inside < count and ended(pid):
            return None
        return "" if inside >= count else f"in a leaf of the box in {inside} of {count} hierarchies"

    return judged(pids, lacks)


def bounds(pids: Sequence[int], server: int) -> Tries:
    """Limits, umask, OOM score and session of each are the box's own, not those of the server's process `server`."""
    session = os.getsid(server)

    def lacks(pid: int) -> str | None:
        fields = status(pid)
        try:
            limits = _hard_limits(pid)
            score = int(Path(f"/proc/{pid}/oom_score_adj").read_text())
        except OSError:
            return None
        if not fields or "Umask" not in fields or not limits:
            return None  # it ends
        wrong = [f"{name} {limits[name]}" for name, most in HARD.items() if not 0 <= limits[name] <= most]
        wrong += ["core size 0, for which a handler is run"] if not limits["Max core file size"] and _handled() else []
        wrong += [f"OOM score {score}"] if score < _least_score(fields) else []
        return ", ".join(wrong + _inherited(fields, session))

    return judged(pids, lacks)


def _handled() -> bool:
    """A crash starts a program of the host's, but for a limit of 1 (core(5), fs/coredump.c)."""
    return Path("/proc/sys/kernel/core_pattern").read_text().startswith("|")


def _hard_limits(pid: int) -> dict[str, int]:
    """-1: unlimited."""
    limits = {}
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]:
        name, hard = line[:26].strip(), line[47:68].strip()
        limits[name] = int(hard) if hard.isdigit() else -1
    return limits


def _least_score(fields: dict[str, str]) -> int:
    return COMMAND_SCORE if fields["Name"] == "sleep" else BOX_SCORE


def _inherited(fields: dict[str, str], session: int) -> list[str]:
    sessions = fields.get("NSsid", "").split()
    wrong = ["the server's session"] if sessions[:1] == [str(session)] else []
    wrong += ["a session from outside the box"] if len(sessions) > 1 and sessions[-1] == "0" else []
    first = fields.get("NSpid", "").split()[-1:] in (
        ["1"],
        fields.get("Pid", "").split(),
    )  # PID 1, and what waits for it
    return wrong + ([f"umask {fields['Umask']}"] if first and fields["Umask"] != "0077" else [])


def with_a_group() -> Tries:
    """A process of prove's own that has kept a group, where prove may give it one."""
    if os.geteuid() != 0:
        raise NotHere("the control needs root")
    return _own(lambda pid: groups([pid], os.getegid()), extra_groups=[65533])


def ordinary(judge: Callable[[int], Tries]) -> Tries:
    """The same look at a process of prove's own, in no box."""
    return _own(judge)


def _own(judge: Callable[[int], Tries], extra_groups: Sequence[int] | None = None) -> Tries:
    process = subprocess.Popen(["/bin/sleep", "30"], extra_groups=extra_groups)
    try:
        return judge(process.pid)
    finally:
        process.kill()
        process.wait()
