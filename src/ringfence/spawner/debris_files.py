"""Files that nobody needs any more: half of a box, half of a file, the socket of a box that is down, a copy of a release.

All of them lie where nobody but the spawner's owner writes. Must never take away what somebody has stored: a tree with
anything in it, or an image, is told and left.
"""

from __future__ import annotations

import contextlib
import os

from ringfence.spawner import disk_parts, paths, sweep
from ringfence.spawner.children import Children
from ringfence.spawner.config import Config
from ringfence.spawner.debris_disks import BESIDE
from ringfence.spawner.disk_holders import AT_ONCE
from ringfence.spawner.disk_parts import BESIDE_IMAGE, IMAGE, MADE
from ringfence.spawner.errors import Failed, NotFound, SpawnerError
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.paths import StateRoot
from ringfence.spawner.registry import CONTROL_FILES, SOCKET, TEMPORARY
from ringfence.spawner.replies import Finding
from ringfence.spawner.tasks import Steps, pause

OF_SPAWNER = (".next_id.new", ".pool.json.new")
KEPT = 3  # newest copies of releases, so that a step back copies nothing; as at each `ringfence serve`
COPY_SECONDS = 3600.0  # a copy takes some seconds: what is half made for so long nobody goes on with
_LONGEST = 1 << 20  # bytes of a process's mounts or command line


def unreadable(box: str, error: SpawnerError | OSError) -> Finding:
    why = error.message if isinstance(error, SpawnerError) else str(error.strerror)
    return Finding("directory", box, "a directory among the boxes", f"not a box of this installation: {why}", 0, False)


def directory_left(state: StateRoot, box: str) -> Finding | None:
    """Of one without a record, in which nothing runs."""
    try:
        with paths.box_directory(state, box) as fd:
            if disk_parts.has(fd, "box.json"):
                return None
            names = set(os.listdir(f"/proc/self/fd/{fd}"))
            stored = IMAGE in names or disk_parts.mounted(fd) or ("tree" in names and not _is_empty(fd))
    except NotFound:
        return None
    except (SpawnerError, OSError) as error:
        return unreadable(box, error)
    if stored or names - {"tree", "ctl", "live.json", "disk.json", *TEMPORARY}:
        why = "the record box.json is missing, and something is stored in it: look at it, then take it away by hand"
        return Finding("directory", box, "a box's directory", why, 0, False)
    return Finding("directory", box, "a half made or half removed box", "it has no record and nothing in it", 0, True)


def _is_empty(box_fd: int) -> bool:
    with disk_parts.tree(box_fd) as tree:
        return sweep.is_empty(tree)


def copy_left(state: StateRoot, box: str) -> Finding | None:
    """Of a box into which nothing is being unpacked."""
    with contextlib.suppress(SpawnerError, OSError), paths.box_directory(state, box) as fd:
        if not any(disk_parts.has(fd, name) for name in (BESIDE, BESIDE_IMAGE)):
            return None
        size = 0
        with contextlib.suppress(FileNotFoundError):
            size = os.stat(BESIDE_IMAGE, dir_fd=fd, follow_symlinks=False).st_blocks * 512
        return Finding(
            "copy", box, "a second tree", "who unpacked it, or put it in the place of the other, was killed", size, True
        )
    return None


def socket_left(state: StateRoot, box: str) -> Finding | None:
    """Of a box that does not run."""
    with contextlib.suppress(SpawnerError, OSError), paths.box_directory(state, box) as fd:
        control = paths.open_control(fd)
        try:
            if disk_parts.has(control, SOCKET):
                return Finding("socket", box, "its control socket", "nobody listens: the box does not run", 0, True)
        finally:
            os.close(control)
    return None


def temporary_left(state: StateRoot, box: str) -> Finding | None:
    """Of a box that nothing is being done with. `box` "": of the spawner itself."""
    with contextlib.suppress(SpawnerError, OSError):
        if not box:
            return _temporary(box, _present(state.spawner, OF_SPAWNER), 0)
        with paths.box_directory(state, box) as fd:
            found, size = _present(fd, TEMPORARY), 0
            if MADE in found:
                size = os.stat(MADE, dir_fd=fd, follow_symlinks=False).st_blocks * 512
            control = paths.open_control(fd)
            try:
                found += _present(control, _OF_CONTROL)
            finally:
                os.close(control)
            return _temporary(box, found, size)
    return None


_OF_CONTROL = tuple(name for name in CONTROL_FILES if name.startswith("."))


def _temporary(box: str, found: list[str], size: int) -> Finding | None:
    if not found:
        return None
    return Finding("temporary", box, ", ".join(found), "it never got its name: who wrote it was killed", size, True)


def _present(dir_fd: int, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if disk_parts.has(dir_fd, name)]


def take_temporary(state: StateRoot, box: str) -> None:
    if not box:
        remove(state.spawner, OF_SPAWNER)
        return
    with paths.box_directory(state, box) as fd:
        remove(fd, TEMPORARY)
        with contextlib.suppress(Failed):  # a half-made box has no ctl yet
            control = paths.open_control(fd)
            try:
                remove(control, _OF_CONTROL)
            finally:
                os.close(control)


def remove(dir_fd: int, names: tuple[str, ...]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=dir_fd)


# --- copies of releases -----------------------------------------------------------------------------------------------


def releases_left(config: Config) -> Steps[list[str]]:
    """Names of copies that neither a process nor a mount has, that are not this server's, nor among the newest KEPT; and of
    those whose copying was cut short."""
    folder, own = os.path.split(config.runtime)
    with os.scandir(folder) as entries:
        ages = {
            entry.name: entry.stat(follow_symlinks=False).st_mtime
            for entry in entries
            if entry.is_dir(follow_symlinks=False)
        }
    whole = sorted((name for name in ages if not name.startswith(".")), key=ages.__getitem__)
    now = os.stat("/proc/self").st_ctime  # as registry.py: the spawner has no clock port
    cut_short = [name for name in ages if name.startswith(".") and now - ages[name] > COPY_SECONDS]
    old = {name for name in whole[:-KEPT] if name != own}
    return sorted(cut_short + list(old - (yield from _in_use(old)) if old else cut_short))


def _in_use(names: set[str]) -> Steps[set[str]]:
    """Those that the mounts or the command line of a process show. A box that outlived its server has its guest from one."""
    used: set[str] = set()
    for count, pid in enumerate((name for name in os.listdir("/proc") if name.isdigit()), start=1):
        for kind in ("mountinfo", "cmdline"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/{kind}", "rb") as file:
                text = file.read(_LONGEST)
                used |= {name for name in names - used if name.encode() in text}
        if count % AT_ONCE == 0:
            yield from pause(0.0)
    return used


def take_release(config: Config, name: str, children: Children) -> Steps[None]:
    """Raises Failed, OSError."""
    folder = os.open(os.path.dirname(config.runtime), paths.DIRECTORY | os.O_NOFOLLOW)
    try:
        fd = open_beneath(folder, name.encode(), paths.DIRECTORY)
        try:
            yield from sweep.empty(fd, os.geteuid(), children, groups=config.mode != "shared")
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)
    finally:
        os.close(folder)
