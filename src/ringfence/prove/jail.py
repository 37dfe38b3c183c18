"""Places for controls: no box at all, and the product's own bubblewrap profile with one wall left out.

Always as an id without rights, never as root: a control shows that an attempt works, and must not do what it attempts to
anybody. What runs here ends with this process or after its time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.prove.programs import COMMAND
from ringfence.prove.row import NotHere, ProgramFailed
from ringfence.spawner import etc_files, launcher_root, profile, seccomp

PYTHON = "/usr/bin/python3"
PLAIN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
SHM = RUN = 16 << 20
_SPAWNERS_OWN = {"--info-fd", "--block-fd"}  # talk between the spawner and bubblewrap


@dataclass(frozen=True, slots=True)
class Room:
    folder: Path  # for the sources; made here
    uid: int | None  # whose process it is; None: the caller's
    without: tuple[str, ...]
    extra: tuple[str, ...]
    environment: dict[str, str]  # of bubblewrap itself


def account(uid: int | None) -> dict[str, Any]:
    """Arguments of subprocess that give up root for `uid`."""
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


def bare(uid: int | None, text: str, seconds: float) -> str:
    """stdout of the payload's program. ProgramFailed."""
    return _run([PYTHON, "-I", "-c", COMMAND], text, seconds, env=PLAIN, cwd="/", **account(uid))


def loose(room: Room, text: str, seconds: float) -> str:
    """The same in bubblewrap. NotHere: this host lets nobody make the namespaces."""
    sources = _sources(room)
    table = _memory_file(seccomp.program())
    operations = profile.plan(launcher_root.host_links(), SHM, RUN, profile.Descriptors(table, 0, 0))
    words = [word for operation in operations for word in kept(operation, room.without, sources)]
    if "--unshare-net" not in room.without:
        words = ["--unshare-net", *words]
    listed = _memory_file(b"".join(word.encode() + b"\0" for word in ["--die-with-parent", *words, *room.extra]))
    command = ["/usr/bin/bwrap", "--args", str(listed), "--", PYTHON, "-I", "-c", COMMAND]
    try:
        return _run(
            command, text, seconds, env=room.environment, cwd="/", pass_fds=(table, listed), **account(room.uid)
        )
    except ProgramFailed as failure:
        if "namespace" in str(failure) or "ermission" in str(failure):
            raise NotHere(f"no control here: {failure}") from None
        raise
    finally:
        os.close(table)
        os.close(listed)


def kept(operation: profile.Operation, without: tuple[str, ...], sources: Path) -> list[str]:
    """The operation's arguments, its sources those of prove; none for one that is left out."""
    words = operation.arguments()
    if words[0] in _SPAWNERS_OWN or words[0] in without or " ".join(words) in without:
        return []
    if words[0] == "--as-pid-1" and "--unshare-pid" in without:
        return []
    return [
        word.replace(profile.SOURCE, str(sources), 1) if word.startswith(profile.SOURCE) else word for word in words
    ]


def _sources(room: Room) -> Path:
    """home, workspace and tmp of the control's id, and the generated part of /etc. Made once."""
    if (room.folder / "whole").exists():
        return room.folder
    partial = room.folder.with_name(f"{room.folder.name}.{os.urandom(6).hex()}")
    for name in ("home", "workspace", "tmp", "guest", "etc"):
        (partial / name).mkdir(parents=True)
    for name, text in etc_files.GENERATED.items():
        (partial / "etc" / name).write_text(text)
    shutil.copy("/etc/ld.so.cache", partial / "etc")
    partial.chmod(0o711)
    if room.uid is not None:
        for name in ("home", "workspace", "tmp"):
            os.chown(partial / name, room.uid, room.uid)
    (partial / "whole").touch()
    try:
        partial.rename(room.folder)
    except OSError:  # another row made it meanwhile
        shutil.rmtree(partial)
    return room.folder


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("prove")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _run(command: list[str], text: str, seconds: float, **options: Any) -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=seconds, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"a control took more than {seconds} s") from None
    if done.returncode != 0:
        raise ProgramFailed(f"a control ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return str(done.stdout)
