"""`ringfence uninstall`: takes an installation away, so that nothing of it is left on the host, and nothing of another is touched.

Every step finds what is there by itself, so that one that was killed anywhere is finished by asking again: what tells whose things are
(installation.json, then the entry of the host's registry) goes last, and not before all else has gone. Boxes and their trees are taken
away by a spawner, as always; where none can work, root does it by the installation's own ids and names. Never follows a link, never
crosses a mount: what somebody mounted below the state is unmounted by who may, and else keeps the state. Never goes by a name that
another installation could have. Backups, what a restore has moved aside, and a database server are not its to take.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.host.install import accounts, atomic, jobs, prepare, state, vault_keys
from ringfence.host.install.layout import ROOT_HOME, Layout, home_of
from ringfence.host.install.state import Installation
from ringfence.host.install.taking_away import take_away
from ringfence.host.kernel.errors import Conflict, Refused, RingfenceError, Unavailable

UNITS = Path("/etc/systemd/system")
PROFILE = Path("/etc/apparmor.d/ringfence-bwrap")
CGROUPS = Path("/sys/fs/cgroup")
SERVER_SECONDS = 25.0  # the spawner gives the kernel 10
PATIENCE = 10.0
_OURS = frozenset(
    {"boxes", "db", "images", "logs", "prove", "ringfence.toml", "run", "runtime", "snapshots", "spawner", "vault"}
)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PATH = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Found:
    """What is there of an installation. `ids` (0, 0): an ordinary user's."""

    layout: Layout
    installation: Installation | None  # None: the state is gone, or was never whole
    ids: tuple[int, int]

    @property
    def root(self) -> bool:
        return self.ids != (0, 0)


def find(environment: Mapping[str, str]) -> Found:
    """Unavailable: nothing at all."""
    layout = Layout(home_of(environment, os.geteuid()))
    state.check_place(layout.home, os.geteuid())
    there = state.load(layout)
    if there is not None:
        return Found(layout, there, there.ids)
    _check_ours(layout)
    number = accounts.slice_of(layout.home) if os.geteuid() == 0 else None
    if number is None and not layout.home.exists():
        raise Unavailable(f"there is no installation at {layout.home}", remedy="export RINGFENCE_HOME=/path/to/state")
    return Found(layout, None, accounts.ids_of(number) if number is not None else (0, 0))


def _check_ours(layout: Layout) -> None:
    """Refused: a folder without an id, and with something in it that no state has. It is somebody's, named by mistake."""
    odd = sorted({path.name for path in layout.home.iterdir()} - _OURS) if layout.home.is_dir() else []
    if odd:
        raise Refused(
            f"{layout.home} is no state of ringfence: it has no installation.json, and {odd[0]!r} in it",
            remedy="export RINGFENCE_HOME=/path/to/state",
        )


def plan(found: Found) -> dict[str, Any]:
    """What there is to take away. Looks only."""
    home, there = found.layout.home, found.installation
    takes = [str(home)] if home.exists() else []
    takes += [str(path) for path in (*_cgroups(found), *_handed(found), *_units(found), *_profile(found))]
    if found.root:
        takes += [f"the entry of {home} in {accounts.REGISTRY}"]
        takes += [f"account and group {accounts.NAME}"] if _has_account(found) else []
    kept = sorted(str(path) for path in home.parent.glob(f"{home.name}.replaced-*"))
    kept += [f"what is mounted at {target}" for target in jobs.mounts(home) if not target.startswith(f"{home}/boxes/")]
    if there is not None and (text := _database(found)):
        kept.append(f"the database {text}")
    return {
        "home": str(home),
        "installation": there.id if there is not None else None,
        "server": server(found) or None,
        "boxes": len(_boxes(found)),
        "running": running(found),
        "takes": takes,
        "kept": kept,
    }


def stop_boxes(found: Found) -> list[str]:
    """Where no server runs."""
    if found.installation is None or not running(found):
        return []
    facts = jobs.done(jobs.ready_of(found.layout), "stop", {})
    return [str(box) for box in facts["stopped"]]


def purge(found: Found, *, force: bool) -> dict[str, Any]:
    """`plan`, `left`: what could not be taken away. Conflict: boxes run. Asked again, it goes on from wherever it was."""
    before = plan(found)
    if before["running"] and not force:
        raise Conflict(
            f"{len(before['running'])} boxes run",
            remedy="ringfence uninstall stops them; or end what they do: --purge --force",
            boxes=before["running"][:100],
        )
    left: list[str] = []
    for unit in _units(found):
        _quiet("systemctl", "disable", "--now", unit.name)
    _end_server(found)
    left += _without_boxes(found)
    if found.root:
        _kill(found)
        _without_mounts(found)
    left += [f"mount {target}" for target in jobs.mounts(found.layout.home)]
    for path in _handed(found):
        path.unlink(missing_ok=True)
    left += _without_cgroups(found)
    if not left:  # by the state the rest is found again
        left += _without_files(found)
    if not left:
        _without_host(found)
    return {**before, "left": left}


# --- looks -----------------------------------------------------------------------------------------------------------------


def server(found: Found) -> int:
    """Its pid; 0: none runs."""
    if not found.layout.lock.exists():
        return 0
    try:
        with prepare.no_server(found.layout):
            return 0
    except Unavailable as error:
        return int(error.details.get("pid", 0))


def running(found: Found) -> list[str]:
    """Boxes whose PID 1 is alive."""
    boot = _BOOT.read_text().strip()
    alive = []
    for box in _boxes(found):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(atomic.read(box / "live.json"))["identity"]
            if known["boot_id"] == boot and known["start_time"] == _start_time(int(known["pid"])):
                alive.append(box.name)
    return alive


def _start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def _boxes(found: Found) -> list[Path]:
    folder = found.layout.boxes
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _cgroups(found: Found) -> list[Path]:
    """Of each hierarchy, without the doubles that links make (cpu -> cpu,cpuacct); also below a delegated one."""
    if found.installation is None:
        return []
    name = f"ringfence-{found.installation.id}"
    near = {path.resolve() for pattern in (name, f"*/{name}") for path in CGROUPS.glob(pattern)}
    return sorted(near or {path.resolve() for path in CGROUPS.glob(f"**/{name}")})


def _handed(found: Found) -> list[Path]:
    """Keys of the vault that a start left in memory."""
    if found.installation is None:
        return []
    ours = {os.geteuid(), found.ids[0] if found.root else os.geteuid()}
    names = vault_keys.MEMORY.glob(f"ringfence-{found.installation.id}-*")
    return [path for path in names if path.lstat().st_uid in ours]


def _units(found: Found) -> Iterator[Path]:
    """Units that start this very installation."""
    if not found.root or not UNITS.is_dir():
        return
    for path in sorted(UNITS.glob("ringfence*.service")):
        with contextlib.suppress(OSError, ValueError):
            text = atomic.read(path).decode(errors="replace")
            lines = [line.strip() for line in text.splitlines()]
            if f"Environment=RINGFENCE_HOME={found.layout.home}" in lines:
                yield path


def _profile(found: Found) -> list[Path]:
    """Of bubblewrap, when no other installation needs it."""
    others = [home for home in accounts.homes() if home != found.layout.home and home.exists()]
    return [PROFILE] if found.root and PROFILE.is_file() and not others else []


def _has_account(found: Found) -> bool:
    return found.layout.home == ROOT_HOME and accounts.number_of_account() == found.ids[0]


def _database(found: Found) -> str:
    """Where it is no file of the state: without what a password would be."""
    try:
        url = prepare.read_settings(found.layout.settings, missing_ok=True).database
    except RingfenceError:
        return ""
    return f"{url.split('://')[0]}://...{url.rpartition('@')[2][-60:]}" if url and not url.startswith("sqlite:") else ""


# --- takes away --------------------------------------------------------------------------------------------------------------


def _end_server(found: Found) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        pid = server(found)
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + SERVER_SECONDS
        while server(found) and time.monotonic() < until:
            time.sleep(0.05)
    if server(found):
        raise Unavailable(f"the server does not end: pid {server(found)}", remedy="see why, then ask again")


def _without_boxes(found: Found) -> list[str]:
    """By a spawner, which ends their processes and deletes their trees as they themselves. What it cannot, root can."""
    if found.installation is None or not _boxes(found):
        return []
    try:
        facts = jobs.done(jobs.ready_of(found.layout), "clear", {})
        left = list(facts["left"])
    except RingfenceError as error:
        left = [f"boxes: {error.message}"]
    return [] if found.root else left


def _kill(found: Found) -> None:
    """Every process with an id of the installation."""
    until = time.monotonic() + PATIENCE
    while (pids := accounts.running_under(found.ids)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _without_mounts(found: Found) -> None:
    for target in jobs.unmounted(found.layout.home):
        _quiet("umount", "--lazy", target)


def _without_cgroups(found: Found) -> list[str]:
    until = time.monotonic() + PATIENCE
    while (tops := [path for path in _cgroups(found) if path.exists()]) and time.monotonic() < until:
        for top in tops:
            for path in sorted([top, *(each for each in top.rglob("*") if each.is_dir())], reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
        time.sleep(0.05)
    return [f"cgroup {path}" for path in tops]


def _without_files(found: Found) -> list[str]:
    """The state, its id last: what is left of it then is finished by the registry's entry alone."""
    home = found.layout.home
    if not home.exists():
        return []
    try:
        for path in sorted(home.iterdir()):
            if path == found.layout.installation:
                continue
            if path.is_dir() and not path.is_symlink():
                take_away(path)
            else:
                path.unlink()
        found.layout.installation.unlink(missing_ok=True)
        home.rmdir()
    except OSError as error:
        return [f"{error.filename or home}: {error.strerror}"]
    return []


def _without_host(found: Found) -> None:
    """What lies outside the state; the entry by which all of it is found again goes last."""
    for path in _units(found):
        path.unlink()
        _quiet("systemctl", "daemon-reload")
    for path in _profile(found):
        _quiet("apparmor_parser", "-R", str(path))
        path.unlink()
    if not found.root:
        return
    if _has_account(found):
        accounts.remove_account()
    accounts.forget(found.layout.home)
    for folder in (accounts.REGISTRY, accounts.REGISTRY.parent):
        with contextlib.suppress(OSError):  # others are in it
            folder.rmdir()


def _quiet(*command: str) -> None:
    """A program that a host may lack, and that has nothing to say."""
    with contextlib.suppress(OSError):
        subprocess.run(command, env=_PATH, stdin=subprocess.DEVNULL, capture_output=True, check=False)
