"""Makes a minimal Debian system below a folder, by debootstrap, from where this host itself has its packages.

Signatures are checked whatever the mirror is. What it mounts is in a namespace of its own, and it ends with whoever asked, so that a
build that is killed leaves no mount and no process. Must never run as anybody but root, nor with an environment of its caller's.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.kernel.errors import Failed, Invalid, Refused, Unavailable

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SUITE = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}\Z")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]{0,100}\Z")
_MIRROR = re.compile(r"(https?|file)://[!-~]{1,500}\Z")
NEEDED = ("python3",)  # what PID 1 of a box is, beside the shell of every minimal system
_SET_DEATH = 1  # PR_SET_PDEATHSIG, linux/prctl.h


@dataclass(frozen=True, slots=True)
class Wish:
    suite: str
    include: tuple[str, ...] = ()
    mirror: str = ""  # "": the host's


def check(wish: Wish) -> None:
    """Before anything is made. Invalid, Refused, Unavailable."""
    if os.geteuid():
        raise Refused("only root makes a system by debootstrap", remedy="as root, or from a folder: --from DIR")
    if not _SUITE.match(wish.suite):
        raise Invalid(f"{wish.suite[:60]!r} is no suite", remedy="as in /etc/apt: --suite bookworm")
    for name in wish.include:
        if not _PACKAGE.match(name):
            raise Invalid(f"{name[:60]!r} is no package", remedy="--include git,make")
    if wish.mirror and not _MIRROR.match(wish.mirror):
        raise Invalid("the mirror is no address", remedy="--mirror https://HOST/debian")
    for program, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux")):
        if shutil.which(program, path=_PATH) is None:
            raise Unavailable(f"{program} is not on this host", remedy=f"apt-get install -y {package}")


def made(wish: Wish, target: Path) -> None:
    """Failed, with its last words."""
    mirror = wish.mirror or mirror_of(wish.suite)
    packages = ",".join(dict.fromkeys((*NEEDED, *wish.include)))
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "debootstrap"]
    command += [
        "--variant=minbase",
        "--merged-usr",
        "--force-check-gpg",
        f"--include={packages}",
        wish.suite,
        str(target),
        mirror,
    ]
    with tempfile.TemporaryFile() as log:
        done = subprocess.run(
            command, env=_environment(), cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
            start_new_session=True, preexec_fn=_ends_with_us,
        )  # fmt: skip
        if done.returncode == 0:
            return
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - 2000))
        words = log.read().decode(errors="replace").strip().splitlines()
    told = [line for line in words if line.startswith("E:")] or words or [f"exit {done.returncode}"]
    raise Failed(
        f"debootstrap of {wish.suite} did not work: {told[-1][:300]}",
        remedy="see that the suite, the packages and the mirror are there: apt-get update; --mirror URL",
    )


def mirror_of(suite: str) -> str:
    """Where the host's own packages of the suite come from, else of any. Unavailable: apt has no source."""
    fields = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    done = _asked("apt-get", "indextargets", "--format", fields, "Created-By: Packages")
    rows = [line.split() for line in done.splitlines() if len(line.split()) == 3]
    found = [uri for uri, release, part in rows if release == suite and part == "main"]
    # Of another suite: its mirror has this one too, unless it is one of updates alone.
    found += [
        uri for uri, release, part in rows if part == "main" and not re.search(r"[-/](security|updates)", release)
    ]
    if not found:
        raise Unavailable("apt has no source of packages on this host", remedy="name one: --mirror URL")
    return found[0]


def _environment() -> dict[str, str]:
    """apt's proxy too: debootstrap asks by wget(1)."""
    found = {"PATH": _PATH, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    for scheme in ("http", "https"):
        text = _asked("apt-config", "shell", "PROXY", f"Acquire::{scheme}::Proxy").strip()
        if value := text.removeprefix("PROXY=").strip("'"):
            found[f"{scheme}_proxy"] = value
    return found


def _asked(*command: str) -> str:
    env = {"PATH": _PATH, "LANG": "C.UTF-8"}
    try:
        return subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""


def _ends_with_us() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH, signal.SIGKILL, 0, 0, 0)
