"""The support bundle: what whoever is to help must know of this installation, and nothing that is anybody's.

Made of parts, each by itself: one that cannot be had says so in words of ours, and keeps no other from being there. Every part passes
kernel.life.support but the settings and what this file itself finds of the host, which are picked by name. It must never
open the database, a key, a file of a box, or the environment; a process of the kernel's account counts rows.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sqlite3
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ringfence.host.install import commands, database, prepare, state
from ringfence.host.install.layout import Layout, home_of
from ringfence.host.kernel.errors import Invalid, RingfenceError
from ringfence.host.kernel.life.support import LEFT_OUT, Words
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.version import VERSION

LOG_LINES = 2000
_LOG_BYTES = 16 << 20  # of the end of a file that are read: 8 KiB a line
_LINE_BYTES = 64 << 10  # a line that is longer has a traceback of somebody else's
_WORDS = ("mode", "disk")  # settings that are one of few words
_BOX = re.compile(r"[a-z2-7]{16}")
_CGROUP_FILES = ("memory.max", "memory.limit_in_bytes", "pids.max", "cpu.max", "cpu.cfs_quota_us", "cgroup.controllers")
SAFE = {
    "versions.json": "of this program, Python, SQLite and the kernel",
    "doctor.json": "what this host can enforce: words of the program's own source, and numbers",
    "status.json": "health of the server's parts: words of the program's own source, and numbers",
    "settings.json": "numbers, switches and one of few words each; of texts only whether they are set",
    "database.json": "counts of rows, names of tables and columns, states of boxes; no text that is in a row",
    "audit.json": "whether the record is whole: numbers and ids of chains; no row of it",
    "host.json": "mounts and cgroups of this installation, sizes of its folders; no name of a file of a box",
    "log.jsonl": "sentences of the program's own source, with what stood in them left out but for numbers and ids",
}

Part = Callable[[], Any]


def made(
    environment: Mapping[str, str], *, status: Callable[[], Any], audit: Callable[[], Any], log: str | None
) -> bytes | dict[str, Any]:
    """As `bundle`, or `{"error": {"code", "message", "remedy", "details"}, "status": HTTP status}`."""
    try:
        return bundle(environment, status=status, audit=audit, log=log)
    except RingfenceError as error:
        return {"error": error.as_json(), "status": error.http_status}


def bundle(
    environment: Mapping[str, str], *, status: Callable[[], Any], audit: Callable[[], Any], log: str | None
) -> bytes:
    """A .tar.gz. `status`, `audit`: the running server's answers; they raise RingfenceError or OSError where there is none.
    Invalid: where there could be an installation is no place for one; `log` cannot be read."""
    layout = Layout(home_of(environment, os.geteuid()))
    lines = None if log is None else _last_lines(log)
    words = Words(_sources(), _ids(layout))
    parts: dict[str, Part] = {
        "versions.json": _versions,
        "doctor.json": lambda: words.plain(json.loads(commands.run_doctor(environment, as_json=True).out)),
        "status.json": lambda: words.plain(status()),
        "settings.json": lambda: picked(prepare.read_settings(layout.settings, missing_ok=True)),
        "database.json": lambda: words.plain(
            database.work(database.find(environment, None), "support", {}, held=False)
        ),
        "audit.json": lambda: words.plain(audit()),
        "host.json": lambda: _host(layout),
    }
    made = {name: _document(_tried(words, part)) for name, part in parts.items()}
    if lines is not None:
        made["log.jsonl"] = b"".join(json.dumps(words.line(line)).encode() + b"\n" for line in lines)
    return _packed(made)


def _tried(words: Words, part: Part) -> Any:
    try:
        return part()
    except RingfenceError as error:
        return {"missing": words.text(error.message), "code": error.code}
    except (OSError, ValueError) as error:
        return {"missing": LEFT_OUT, "code": type(error).__name__}


def _packed(made: Mapping[str, bytes]) -> bytes:
    manifest = {
        "format": 1,
        "safe": "made of what is known to be no secret: numbers, words of the program's own source, ids that it made. Whatever "
        "somebody wrote, named or stored is left out as a whole, not searched for",
        "parts": {name: {"bytes": len(data), "holds": SAFE[name]} for name, data in made.items()},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, data in {"manifest.json": _document(manifest), **made}.items():
            info = tarfile.TarInfo(f"support/{name}")
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _document(facts: Any) -> bytes:
    return json.dumps(facts, indent=2).encode() + b"\n"


# --- what our source says, and what is known to be ours --------------------------------------------------------------


def _sources() -> list[tuple[str, str]]:
    top = Path(__file__).parents[3]
    rooms = (top / "ringfence" / "host", top / "ringfence" / "spawner")
    files = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    return [(str(path.relative_to(top)), path.read_text()) for path in files]


def _ids(layout: Layout) -> set[str]:
    """Of this installation and of boxes whose folders there are."""
    return {VERSION, *_folders(layout.boxes), *filter(None, [_installation(layout)])}


def _installation(layout: Layout) -> str:
    """ "": there is none, or it is not for this account to see."""
    try:
        found = state.load(layout)
    except (RingfenceError, OSError):
        return ""
    return "" if found is None else found.id


def _folders(place: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(place) if _BOX.fullmatch(name))
    except OSError:
        return []


# --- parts -----------------------------------------------------------------------------------------------------------


def _versions() -> dict[str, Any]:
    names = os.uname()
    return {
        "ringfence": VERSION,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": names.sysname,
        "kernel": names.release,
        "machine": names.machine,
        "root": os.geteuid() == 0,
        "libc": " ".join(platform.libc_ver()),
        "bits": sys.maxsize.bit_length() + 1,
    }


def picked(settings: Settings) -> dict[str, Any]:
    """By type: numbers and switches; by name: words of few; of anything else only whether, or how often, it is set."""
    return {field.name: _picked(field.name, getattr(settings, field.name)) for field in fields(settings)}


def _picked(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        if name == "database":
            return value.partition(":")[0] if value.startswith(("sqlite:", "postgresql:")) else "default"
        return value if name in _WORDS else bool(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _picked(field.name, getattr(value, field.name)) for field in fields(value)}
    if name == "accept":
        return [each for each in value if isinstance(each, str)]
    return len(value)


def _last_lines(log: str) -> list[str]:
    """`-`: of stdin. Invalid."""
    try:
        with open(0 if log == "-" else log, "rb", closefd=log != "-") as file:
            if file.seekable():
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            lines = deque((line[:_LINE_BYTES] for line in file), LOG_LINES)
    except OSError as error:
        raise Invalid(
            f"{log} cannot be read: {error.strerror}", remedy="--log FILE, or --log - and its lines on stdin"
        ) from error
    return [line.decode(errors="replace") for line in lines]


def _host(layout: Layout) -> dict[str, Any]:
    home = str(layout.home)
    facts: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }
    facts["load"] = list(os.getloadavg())
    facts["folders"] = {
        name: _folder(layout.home / name) for name in ("", "db", "vault", "run", "boxes", "spawner", "runtime")
    }
    facts["boxes"] = len(_folders(layout.boxes))
    mounts = [found for line in _lines("/proc/self/mountinfo") if (found := _mount(line, home)) is not None]
    facts["mounts"] = mounts
    facts["cgroups"] = [
        found for line in _lines("/proc/self/mountinfo") for found in _cgroups(line, _installation(layout))
    ]
    return facts


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _folder(path: Path) -> dict[str, Any]:
    try:
        found, room = os.stat(path), os.statvfs(path)
    except OSError as error:
        return {"missing": type(error).__name__}
    return {
        "mode": f"{found.st_mode & 0o7777:o}",
        "owner": found.st_uid,
        "group": found.st_gid,
        "free_bytes": room.f_bavail * room.f_frsize,
        "free_inodes": room.f_favail,
    }


def _mount(line: str, home: str) -> dict[str, Any] | None:
    """Below the state directory: where from there as far as it is a box's folder, its kind and options."""
    left, _, right = line.partition(" - ")
    words, kind = left.split(), right.split()[:1]
    if len(words) < 6 or not kind or not (words[4] == home or words[4].startswith(f"{home}/")):
        return None
    parts = words[4][len(home) :].strip("/").split("/")
    shown = [
        part if part in ("boxes", "spawner", "run", "db") or _BOX.fullmatch(part) else "-" for part in parts if part
    ]
    return {"at": "/".join(shown), "kind": kind[0], "options": words[5]}


def _cgroups(line: str, installation: str) -> list[dict[str, Any]]:
    left, _, right = line.partition(" - ")
    words, kind = left.split(), right.split()[:1]
    if not installation or len(words) < 6 or kind not in (["cgroup"], ["cgroup2"]):
        return []
    place = Path(words[4]) / f"ringfence-{installation}"
    return [_cgroup(2 if kind == ["cgroup2"] else 1, place)] if place.is_dir() else []


def _cgroup(version: int, place: Path) -> dict[str, Any]:
    values = {name: " ".join(_lines(str(place / name)))[:200] for name in _CGROUP_FILES if (place / name).exists()}
    try:
        boxes = len([name for name in os.listdir(place) if _BOX.fullmatch(name)])
    except OSError:
        boxes = -1
    return {"version": version, "name": place.name, "hierarchy": place.parent.name, "boxes": boxes, "values": values}
