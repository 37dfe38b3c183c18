"""The state tree: refuses a place that others could exchange, makes what is missing, mends owners and modes.

Never follows a link, never deletes, never loosens a mode. Running it twice changes nothing the second time.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from ringfence.host.install import atomic
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.errors import Refused, Unavailable
from ringfence.host.kernel.ids import box_id

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Account:
    """Ids that the kernel runs with."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Installation:
    id: str  # 16 base32 characters
    ids: tuple[int, int]  # first and last host id of the installation; (0, 0) when an ordinary user runs it
    created_at: str  # ISO 8601, UTC


def check_place(home: Path, owner: int) -> None:
    """Refused: the state directory or a folder above it is a link, belongs to somebody else, or can be renamed by others.

    Whoever may rename a component may put a tree of his own where the server looks for its configuration.
    """
    for path in (home, *home.parents):
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # nothing yet, or below what is no folder: the walk up comes to that
        except OSError as error:
            raise Refused(
                f"{path} cannot be looked at: {error.strerror}", remedy="export RINGFENCE_HOME=/path/to/state"
            ) from error
        _check_component(path, status, owner, is_home=path == home)


def _check_component(path: Path, status: os.stat_result, owner: int, *, is_home: bool) -> None:
    what = "the state directory" if is_home else "a folder above the state directory"
    if stat.S_ISLNK(status.st_mode):
        raise Refused(
            f"{what}, {path}, is a symbolic link",
            remedy=f"use the real path: export RINGFENCE_HOME={os.path.realpath(path)}",
        )
    if not stat.S_ISDIR(status.st_mode):
        raise Refused(f"{what}, {path}, is no folder", remedy="export RINGFENCE_HOME=/path/to/state")
    owners = {owner} if is_home else {0, owner}
    if status.st_uid not in owners:
        raise Refused(
            f"{what}, {path}, belongs to uid {status.st_uid}, not to uid {owner}",
            remedy=f"chown {owner} {path}, or take another RINGFENCE_HOME",
        )
    loose = status.st_mode & (stat.S_IWOTH | (0 if _own_group(status, owner) else stat.S_IWGRP))
    sticky = status.st_mode & stat.S_ISVTX and not is_home  # others cannot rename in it what they do not own
    if loose and not sticky:
        raise Refused(
            f"{what}, {path}, can be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            remedy=f"chmod go-w {path}",
        )


def _own_group(status: os.stat_result, owner: int) -> bool:
    """Debian gives each user a group of the same number; with umask 002 its folders are writable by that group."""
    return owner != 0 and status.st_uid == owner and status.st_gid == os.getegid() == owner


def check_reachable(home: Path, account: Account) -> None:
    """Refused: a folder above the state directory cannot be entered by the kernel's account."""
    for path in home.parents:
        status = os.lstat(path)
        if status.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == account.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not status.st_mode & bit:
            raise Refused(
                f"{path} (mode {stat.S_IMODE(status.st_mode):04o}) cannot be entered by the server's account, "
                f"uid {account.uid}",
                remedy=f"chmod o+x {path}, or take a RINGFENCE_HOME that is not below it, such as /var/lib/ringfence",
            )


def load(layout: Layout) -> Installation | None:
    """What `make` wrote; None: nothing yet. Unavailable: unreadable or not ours."""
    try:
        raw = json.loads(atomic.read(layout.installation))
        first, last = raw["ids"]
        return Installation(str(raw["id"]), (int(first), int(last)), str(raw["created_at"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"{layout.installation} cannot be read: {error}",
            remedy="restore it from a backup; it holds the installation's id",
        ) from error


def make_home(layout: Layout, owner: int) -> None:
    """The state root alone, after its place was checked."""
    check_place(layout.home, owner)
    try:
        layout.home.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        layout.home.mkdir(exist_ok=True, mode=0o711)
    except OSError as error:
        raise Unavailable(
            f"{layout.home} cannot be made: {error.strerror}", remedy="export RINGFENCE_HOME=/path/to/state"
        ) from error
    check_place(layout.home, owner)
    layout.home.chmod(0o711)


def make_tree(layout: Layout, kernel: Account) -> None:
    """Every folder of the state with its owner and mode, and the key of the audit."""
    me = Account(os.geteuid(), os.getegid())
    for name, owner, mode in (
        ("db", kernel, 0o700),
        ("vault", kernel, 0o700),
        ("snapshots", kernel, 0o700),
        ("logs", kernel, 0o700),
        ("run", kernel, 0o750),
        ("boxes", me, 0o711),
        ("spawner", me, 0o700),
        ("runtime", me, 0o755),
    ):
        _folder(layout.home / name, owner, mode)
    _key(layout.audit_key, kernel, "the audit of before cannot be verified (ringfence audit verify)")


def make_master_key(layout: Layout, kernel: Account) -> None:
    """With the installation, and never again: in the place of a lost one a new one would open nothing that is stored, and
    say so to nobody. A server without it starts with a sealed vault."""
    atomic.create(layout.master_key, secrets.token_bytes(KEY_BYTES), mode=0o600, owner=(kernel.uid, kernel.gid))


def _folder(path: Path, owner: Account, mode: int) -> None:
    """The root of the state is not writable by anyone else, so the name cannot be exchanged under the open."""
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{path} is no folder of its own", remedy=f"move it away: mv {path} {path}.old") from error
    try:
        status = os.fstat(fd)
        if (status.st_uid, status.st_gid) != (owner.uid, owner.gid):
            os.fchown(fd, owner.uid, owner.gid)
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _key(path: Path, kernel: Account, without: str) -> None:
    """Made once. `without`: what a lost one means."""
    if atomic.create(path, secrets.token_bytes(KEY_BYTES), mode=0o600, owner=(kernel.uid, kernel.gid)):
        return
    try:
        size = len(atomic.read(path, KEY_BYTES))
    except (OSError, ValueError):
        size = -1
    if size != KEY_BYTES:
        raise Unavailable(
            f"{path} is not a key of {KEY_BYTES} bytes",
            remedy=f"restore it from a backup: without it, {without}",
        )


def make_installation(layout: Layout, ids: tuple[int, int]) -> Installation:
    """Writes installation.json, once. Called last: a state without it is a half-made one, and is made again."""
    # The wall clock is for people only here: nothing is decided by it.
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made = Installation(box_id(secrets.randbits(80)), ids, created)
    atomic.write_json(
        layout.installation, {"id": made.id, "ids": list(made.ids), "created_at": made.created_at}, mode=0o644
    )
    return made
