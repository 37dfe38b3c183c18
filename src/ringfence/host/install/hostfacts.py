"""What this host can enforce, one function a fact; each row says what was found and the command that mends it.

Looks and tries; changes nothing on the host. The spawner checks again what it relies on and has the last word.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ringfence.host.install import tries

Level = Literal["required", "recommended", "info"]
LEAST_KERNEL, GOOD_KERNEL = (5, 14), (6, 12)  # cgroup.kill; pidfs (6.9) and Landlock's signal scope (6.12)
LEAST_BWRAP, FIXED_BWRAP = (0, 8), (0, 12)
NOBODY = 65534
INSTALL_BWRAP = "apt-get install -y bubblewrap"
REINSTALL_BWRAP = "apt-get install --reinstall -y bubblewrap"


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    ok: bool
    level: Level  # required: nothing starts without it
    found: str
    remedy: str = ""  # a command to copy, "" when there is nothing to mend

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def setting(name: str, proc: Path = Path("/proc/sys")) -> str | None:
    """A sysctl's value; None: this kernel has none of that name."""
    try:
        return (proc / name.replace(".", "/")).read_text().strip()
    except OSError:
        return None


def numbers(text: str) -> tuple[int, ...]:
    """(6, 18) of "6.18.44-xyz"; (0, 8, 0) of "bubblewrap 0.8.0"."""
    match = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def kernel() -> Row:
    release = os.uname().release
    version = numbers(release)[:2]
    if version < LEAST_KERNEL:
        return Row(
            "kernel", False, "required", f"Linux {release}, older than 5.14", "apt-get dist-upgrade, then reboot"
        )
    if version < GOOD_KERNEL:
        text = f"Linux {release}: before 6.12 a command can signal the agent loop of its own box"
        return Row("kernel", True, "required", text, "apt-get dist-upgrade, then reboot")
    return Row("kernel", True, "required", f"Linux {release}")


def _sysctl(line: str) -> str:
    name, _, value = line.partition("=")
    return f"sysctl -w {line} && echo '{name} = {value}' > /etc/sysctl.d/90-ringfence.conf"


def userns(uid: int | None) -> Row:
    """Tries to make one, as `uid` when this is root."""
    number = tries.in_child(tries.user_namespace, uid)
    if number == 0:
        return Row("user-namespaces", True, "required", "an unprivileged account can make user namespaces")
    why = errno.errorcode.get(number, str(number))
    if setting("user.max_user_namespaces") == "0":
        found, remedy = "user.max_user_namespaces is 0", _sysctl("user.max_user_namespaces=15000")
    elif setting("kernel.unprivileged_userns_clone") == "0":
        found, remedy = "kernel.unprivileged_userns_clone is 0", _sysctl("kernel.unprivileged_userns_clone=1")
    elif setting("kernel.apparmor_restrict_unprivileged_userns") == "1":
        found = "kernel.apparmor_restrict_unprivileged_userns is 1: AppArmor lets only named programs use them"
        remedy = "see the row apparmor"
    elif number == errno.ENOSPC:
        found, remedy = "the limit user.max_user_namespaces is reached", _sysctl("user.max_user_namespaces=15000")
    else:
        found = "refused, as in a container whose filter denies unshare"
        remedy = "run on the host itself, or allow it for this container (docker: --security-opt seccomp=unconfined)"
    return Row("user-namespaces", False, "required", f"{found} ({why})", remedy)


def apparmor(root: bool, sandbox_works: bool) -> Row:
    """Ubuntu 24.04 lets an unconfined program make user namespaces that have no power, unless a profile names it."""
    if setting("kernel.apparmor_restrict_unprivileged_userns") != "1":
        return Row("apparmor", True, "info", "AppArmor does not restrict user namespaces here")
    load = (
        "cp deploy/apparmor/ringfence-bwrap /etc/apparmor.d/ringfence-bwrap && "
        "apparmor_parser -r /etc/apparmor.d/ringfence-bwrap"
    )
    text = "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)"
    if root:
        found = f"{text}; bubblewrap {'has' if sandbox_works else 'lacks'} a profile that grants them"
        return Row("apparmor", sandbox_works, "required", found, "" if sandbox_works else load)
    # An ordinary user's server makes a namespace by itself before bubblewrap does, so a profile for bubblewrap is too little.
    switch = _sysctl("kernel.apparmor_restrict_unprivileged_userns=0")
    return Row("apparmor", False, "required", f"{text}, also for this account's server", f"as root: {switch}")


def bubblewrap(path: str, euid: int) -> Row:
    """There, ours or root's, nobody else's to change, not setuid, new enough."""
    try:
        status = os.stat(path)
    except OSError:
        return Row("bubblewrap", False, "required", f"{path} is missing", INSTALL_BWRAP)
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IXUSR:
        return Row("bubblewrap", False, "required", f"{path} is no program", REINSTALL_BWRAP)
    if status.st_mode & (stat.S_ISUID | stat.S_ISGID):
        found = f"{path} is setuid: its own bugs would then run as root"
        return Row("bubblewrap", False, "required", found, f"chmod u-s,g-s {path}")
    for part in (Path(os.path.realpath(path)), *Path(os.path.realpath(path)).parents):
        loose = _writable_by_others(part, euid)
        if loose:
            return Row("bubblewrap", False, "required", loose, f"chown root:root {part} && chmod go-w {part}")
    version = bwrap_version(path)
    text = ".".join(map(str, version)) or "of unknown version"
    if version < LEAST_BWRAP:
        found = f"{path} is {text}, older than 0.8"
        return Row("bubblewrap", False, "required", found, "apt-get install --only-upgrade -y bubblewrap")
    return Row("bubblewrap", True, "required", f"{path} {text}")


def _writable_by_others(path: Path, euid: int) -> str:
    status = path.stat()
    if status.st_uid not in (0, euid):
        return f"{path} belongs to uid {status.st_uid}: whoever that is could exchange the program"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        return f"{path} is writable by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def bwrap_version(path: str) -> tuple[int, ...]:
    """(): it does not run."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, env={}, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ()
    return numbers(done.stdout)


def bwrap_cve(path: str) -> Row:
    """CVE-2026-87766: a link planted in a user's tree makes the next start create files outside of it."""
    version = bwrap_version(path)
    if not version or version >= FIXED_BWRAP:
        return Row("bubblewrap-cve", True, "info", "not affected by CVE-2026-87766")
    found = (
        f"bubblewrap {'.'.join(map(str, version))} has CVE-2026-87766; boxes are laid out so that it reaches nothing: "
        "nothing is mounted or made below a user's tree, which is bound last, under the box's own id"
    )
    return Row(
        "bubblewrap-cve", False, "recommended", found, "apt-get install --only-upgrade -y bubblewrap  (0.12 or later)"
    )


def sandbox(path: str, uid: int | None) -> Row:
    """Starts /usr/bin/true under bubblewrap, as an account without rights."""
    flags = "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --ro-bind /usr /usr --symlink usr/lib /lib"
    command = [
        path,
        *flags.split(),
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "/usr/bin/true",
    ]
    try:
        done = _run_as(command, uid)
    except (OSError, subprocess.SubprocessError) as error:
        return Row("sandbox", False, "required", f"{path} does not run: {error}", INSTALL_BWRAP)
    if done.returncode == 0:
        return Row("sandbox", True, "required", "bubblewrap starts a program in namespaces of its own")
    words = done.stderr.strip().splitlines()[-1][:300] if done.stderr.strip() else f"exit {done.returncode}"
    return Row("sandbox", False, "required", f"bubblewrap fails: {words}", "see the rows user-namespaces and apparmor")


def _run_as(command: Sequence[str], uid: int | None) -> subprocess.CompletedProcess[str]:
    def run(other: int | None, groups: list[int] | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, env={}, cwd="/", timeout=20, check=False,
            stdin=subprocess.DEVNULL, user=other, group=other, extra_groups=groups,
        )  # fmt: skip

    if uid is not None and tries.in_child(lambda: tries.become_id(uid)) == 0:
        return run(uid, [])
    return run(None, None)


def id_range(ids: tuple[int, int]) -> Row:
    """Root of a container may lack the host ids that boxes get."""
    if all(tries.in_child(lambda one=one: tries.become_id(one)) == 0 for one in ids):  # type: ignore[misc]
        return Row("ids", True, "required", f"host ids {ids[0]}-{ids[1]} can be used")
    found = f"host ids {ids[0]}-{ids[1]} do not exist here: this root is the root of a user namespace"
    return Row("ids", False, "required", found, "run as root of the host, or as an ordinary user")


def python(path: str, euid: int) -> Row:
    """Server and boxes run by the system's interpreter, so it must be the kind that the package was installed with."""
    try:
        # Two comparisons: 99 % are the same file, which needs no start of an interpreter.
        if os.path.realpath(path) == os.path.realpath(getattr(sys, "_base_executable", sys.executable)):
            version: tuple[int, ...] = sys.version_info[:2]
        else:
            code = "import sys; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run(
                [path, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=20, check=True
            )
            version = numbers(done.stdout)
        loose = _writable_by_others(Path(os.path.realpath(path)), euid)
    except (OSError, subprocess.SubprocessError):
        remedy = 'apt-get install -y python3, then python = "/usr/bin/python3" in ringfence.toml'
        return Row("python", False, "required", f"the key python: {path} does not run", remedy)
    if loose:
        return Row("python", False, "required", loose, "apt-get install --reinstall -y python3-minimal")
    text = ".".join(map(str, version))
    if version != sys.version_info[:2]:
        mine = ".".join(map(str, sys.version_info[:2]))
        found = f"{path} is {text}, and ringfence was installed with {mine}"
        return Row("python", False, "required", found, f"install it with {path}: make clean setup")
    return Row("python", True, "required", f"{path} {text}")


def landlock() -> Row:
    abi = tries.landlock_abi()
    if abi >= 6:
        return Row("landlock", True, "recommended", f"ABI {abi}")
    if abi:
        found = (
            f"ABI {abi}: files and tracing are fenced; before ABI 6 a command can signal the agent loop of its own box"
        )
        return Row("landlock", False, "recommended", found, "a kernel from 6.12 on: apt-get dist-upgrade, then reboot")
    remedy = "add landlock to the lsm= list of the kernel's command line, then reboot; or accept no-landlock"
    return Row("landlock", False, "recommended", "none: commands of one box can reach its agent loop", remedy)


def pidfs() -> Row:
    if tries.pidfs():
        return Row("pidfs", True, "info", "processes are known by an inode of their own")
    found = "none (Linux 6.9): a process is known by pid and start time"
    return Row("pidfs", False, "info", found, "a kernel from 6.9 on: apt-get dist-upgrade, then reboot")


def nftables() -> Row:
    number = tries.in_child(tries.nf_tables)
    if number == 0:
        return Row("nf-tables", True, "recommended", "usable in a box's network namespace")
    found = f"not usable ({errno.errorcode.get(number, number)}): a box's network namespace has a loopback only"
    return Row("nf-tables", False, "recommended", found, "modprobe nf_tables, or accept no-nft")


def seccomp() -> Row:
    actions = setting("kernel.seccomp.actions_avail") or ""
    if "errno" in actions.split():
        return Row("seccomp", True, "required", "filters work")
    return Row(
        "seccomp",
        False,
        "required",
        "this kernel has no seccomp filters",
        "a kernel with CONFIG_SECCOMP_FILTER: apt-get install -y linux-image-amd64, then reboot",
    )


def tiocsti() -> Row:
    if setting("dev.tty.legacy_tiocsti") == "0":
        return Row("tiocsti", True, "info", "dev.tty.legacy_tiocsti is 0")
    text = "dev.tty.legacy_tiocsti is on or unknown; boxes have sessions of their own and a filter against it"
    return Row("tiocsti", True, "info", text, _sysctl("dev.tty.legacy_tiocsti=0"))


def git() -> Row:
    if shutil.which("git", path="/usr/local/bin:/usr/bin:/bin"):
        return Row("git", True, "recommended", "there, so boxes have it")
    return Row("git", False, "recommended", "missing: boxes use the host's /usr", "apt-get install -y git")


def disk(home: Path) -> Row:
    """Free space where the state lies, or will lie."""
    place = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{free >> 20} MiB free at {place}"
    return Row(
        "disk", free >= 2 << 30, "recommended", text, "" if free >= 2 << 30 else f"make room (2 GiB): df -h {place}"
    )
