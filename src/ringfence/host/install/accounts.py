"""Root's installations: a slice of host ids each, and the `ringfence` account of the usual one.

Ids 1879048192-2147483646 are cut into slices of 2**20, one for each state root, registered below
/etc/ringfence/installations: file N holds the state root that has slice N. Two installations on one host therefore never
share a host id. A slice is never given to a new state while a process still runs under one of its ids, nor within a
minute of its entry being written: a state that is being made, or taken away, has no installation.json.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfence.host.install import atomic
from ringfence.host.install.layout import ROOT_HOME
from ringfence.host.kernel.errors import Unavailable

NAME = "ringfence"
FIRST, LAST = 1879048192, 2147483646  # 0x70000000; the last id below 2**31 - 1 is left alone: tools take it for -1
SLICE = 1 << 20  # 131,072 boxes of 8 ids, never reused
SLICES = (LAST - FIRST + 1) // SLICE  # 255
GRACE_SECONDS = 60.0  # `init` has its installation.json within one; `keep` begins it anew
REGISTRY = Path("/etc/ringfence/installations")


def ids_of(number: int) -> tuple[int, int]:
    """First and last id of slice `number`."""
    first = FIRST + number * SLICE
    return first, first + SLICE - 1


def running_under(ids: tuple[int, int], proc: Path = Path("/proc")) -> list[int]:
    """Pids of processes that have not ended, with a real, effective, saved or file-system uid within `ids`."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if "\nState:\tZ" in status:  # it has ended, and somebody is slow to wait for it
            continue
        uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
        if any(ids[0] <= int(uid) <= ids[1] for uid in uids):
            found.append(int(entry.name))
    return sorted(found)


@contextmanager
def _locked(registry: Path) -> Iterator[None]:
    registry.mkdir(parents=True, exist_ok=True, mode=0o755)
    fd = os.open(registry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _entries(registry: Path) -> dict[int, Path]:
    found = {}
    for path in registry.iterdir():
        if path.name.isdigit() and int(path.name) < SLICES:
            found[int(path.name)] = Path(atomic.read(path, 4096).decode(errors="surrogateescape").strip())
    return found


def take_slice(home: Path, *, registry: Path = REGISTRY, usual: Path = ROOT_HOME, proc: Path = Path("/proc")) -> int:
    """The slice of a state root that is about to be made; the same one when it is asked again.

    The usual state root has slice 0. Unavailable: no slice is free, or processes of an earlier state still run under it.
    """
    with _locked(registry):
        entries = _entries(registry)
        mine = [number for number, owner in entries.items() if owner == home]
        if mine or home == usual:
            number = min(mine, default=0)
            pids = running_under(ids_of(number), proc)
            if pids:
                raise Unavailable(
                    f"processes of an earlier installation at {home} still run: {_some(pids)}",
                    remedy=f"kill -9 {_some(pids)}",
                )
            _register(registry, number, home)
            return number
        for number in range(1, SLICES):
            owner = entries.get(number)
            gone = owner is None or not ((owner / "installation.json").exists() or _fresh(registry / str(number)))
            if gone and not running_under(ids_of(number), proc):
                _register(registry, number, home)
                return number
    raise Unavailable(f"all {SLICES} slices of host ids are taken", remedy=f"remove an installation; see {registry}")


def _fresh(entry: Path) -> bool:
    return abs(time.time() - entry.stat().st_mtime) < GRACE_SECONDS  # noqa: TID251  against a file's time


def homes(*, registry: Path = REGISTRY) -> list[Path]:
    """State roots that have a slice, whether or not they are still there."""
    if not registry.is_dir():
        return []
    with _locked(registry):
        return sorted(_entries(registry).values())


def slice_of(home: Path, *, registry: Path = REGISTRY) -> int | None:
    """The number of the state root's slice, whether or not it is still there."""
    if not registry.is_dir():
        return None
    with _locked(registry):
        return min((number for number, owner in _entries(registry).items() if owner == home), default=None)


def keep(home: Path, *, registry: Path = REGISTRY) -> None:
    """Nobody else gets the state root's slice within the next minute, whether or not the state is still there."""
    if not registry.is_dir() or os.geteuid() != 0:
        return
    with _locked(registry):
        for number, owner in _entries(registry).items():
            if owner == home:
                os.utime(registry / str(number))


def forget(home: Path, *, registry: Path = REGISTRY) -> None:
    """Takes the state root's slice out of the registry, once nothing of the state is there any more."""
    if home.exists() or not registry.is_dir() or os.geteuid() != 0:
        return
    with _locked(registry):
        for number, owner in _entries(registry).items():
            if owner == home:
                (registry / str(number)).unlink()


def _some(pids: list[int]) -> str:
    return " ".join(map(str, pids[:20]))


def _register(registry: Path, number: int, home: Path) -> None:
    data = os.fsencode(home) + b"\n"
    if not atomic.create(registry / str(number), data, mode=0o644):
        atomic.write(registry / str(number), data, mode=0o644)


def ensure_account(uid: int) -> str:
    """Makes group and system user `ringfence` with this number. A note for people: what was found or done.

    Unavailable: the name has another number. A host without useradd goes on by number alone.
    """
    taken = [entry for entry in (_number_of_user(), _number_of_group()) if entry not in (None, uid)]
    if taken:
        raise Unavailable(
            f"the account {NAME} exists with id {taken[0]}, not {uid}",
            remedy=f"userdel {NAME}; groupdel {NAME}; or take another state directory: export RINGFENCE_HOME=...",
        )
    if _number_of_user() == uid and _number_of_group() == uid:
        return f"account {NAME}, id {uid}"
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    groupadd, useradd = shutil.which("groupadd", path=path), shutil.which("useradd", path=path)
    if groupadd is None or useradd is None:
        return f"no useradd here: the server runs as id {uid} without a name, and only root reaches its socket"
    if _number_of_group() is None:
        _run([groupadd, "--gid", str(uid), NAME])
    # --no-log-init: /var/log/lastlog is sparse but indexed by id; some tools would copy 500 GiB of holes.
    if _number_of_user() is None:
        home = ["--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
        _run([useradd, "--no-log-init", "--uid", str(uid), "--gid", NAME, *home, "--comment", "ringfence server", NAME])
    return f"account {NAME}, id {uid}, made"


def number_of_account() -> int | None:
    """Of the account by that name; None: there is none."""
    return _number_of_user() if _number_of_user() is not None else _number_of_group()


def remove_account() -> None:
    """Unavailable: it cannot be."""
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    if _number_of_user() is not None:
        _run([shutil.which("userdel", path=path) or "userdel", NAME])
    if _number_of_group() is not None:  # userdel takes the group of the same name with it where login.defs(5) says so
        _run([shutil.which("groupdel", path=path) or "groupdel", NAME])


def _number_of_user() -> int | None:
    try:
        return pwd.getpwnam(NAME).pw_uid
    except KeyError:
        return None


def _number_of_group() -> int | None:
    try:
        return grp.getgrnam(NAME).gr_gid
    except KeyError:
        return None


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(
            f"{command[0]} failed: {done.stderr.strip()[:500]}", remedy="run it by hand: " + " ".join(command)
        )
