"""The record of the last `ringfence prove`, and what it is worth to a server that is about to start.

H/prove/last.json, of the state's owner: {"boot_id", "version", "profile_digest", "rows": [{"id", "status"}], "at"}. A
record speaks for one boot, one version and one profile of walls only. Must never be believed when anybody but the owner
could have written it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ringfence.host.install import atomic, owned
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.errors import Refused
from ringfence.host.kernel.settings import ACCEPT, Settings, is_row
from ringfence.host.kernel.version import VERSION

Status = Literal["held", "open", "not_applicable"]
MAX_RECORD_BYTES = 1 << 20  # a row has some 40 bytes: room for 26 000
LEAST_HELD = 20  # a record of fewer rows held is one of `prove --only`, which says little
UNPROVED = "unproved"
_PACKAGE = Path(__file__).parents[2]
_MAKE_WALLS = ("bwrap", "python", "mode", "cgroup_parent", "disk")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class ProvedRow:
    id: str  # as in docs/threats.md: C06, D-1
    status: Status


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a record speaks for."""

    boot_id: str
    version: str
    profile_digest: str


@dataclass(frozen=True, slots=True)
class Record:
    stamp: Stamp
    rows: tuple[ProvedRow, ...]
    at: str  # ISO 8601, UTC; for people

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self.stamp), "rows": [asdict(row) for row in self.rows], "at": self.at}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands between a host and the profile production. `open`: ids to accept or to mend, empty when it is proven."""

    open: tuple[str, ...]
    why: str  # one line, empty when proven

    def beyond(self, accepted: Collection[str]) -> tuple[str, ...]:
        """The ids that nobody has accepted."""
        return tuple(one for one in self.open if one not in accepted)


def current(settings: Settings) -> Stamp:
    """Of this boot, this package and these settings. `settings.mode` may still be `auto`: root or not is in it."""
    return Stamp(_BOOT.read_text().strip(), VERSION, profile_digest(settings))


def walls(settings: Settings) -> dict[str, object]:
    """What of the settings makes walls, and what this host may lack: what `prove` tries an installation with."""
    lacks = [one for one in settings.accept if one in ACCEPT and one != UNPROVED]
    return {**{key: getattr(settings, key) for key in _MAKE_WALLS}, "accept": lacks}


def profile_digest(settings: Settings, package: Path = _PACKAGE) -> str:
    """SHA-256 over whatever makes the walls: every file of the package (what goes into boxes, and what runs), bubblewrap's
    program and the interpreter, the account's rank, and of the settings mode, disk and cgroup_parent. Not what is
    accepted: that allows a weak host and makes none. Some 30 ms."""
    total = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(f"{path.relative_to(package)}\0{_digest(path)}\0".encode())
    programs = "".join(f"{path}\0{_digest(Path(path))}\0" for path in (settings.bwrap, settings.python))
    rank = "root" if os.geteuid() == 0 else "user"
    total.update(f"{programs}{rank}\0{settings.mode}\0{settings.disk}\0{settings.cgroup_parent}".encode())
    return total.hexdigest()


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "-"


def path_of(layout: Layout) -> Path:
    return layout.home / "prove" / "last.json"


def write(layout: Layout, stamp: Stamp, rows: Iterable[ProvedRow], at: str) -> Path:
    """Replaces the record; its path. For the state's owner, whose `init` has made the state. OSError."""
    path = path_of(layout)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    atomic.write_json(path, Record(stamp, tuple(rows), at).to_json(), mode=0o600)
    return path


def read(layout: Layout) -> Record | None:
    """None: there is none, or it is none. Refused: somebody else can write it; Invalid: it is no file of that kind."""
    path = path_of(layout)
    try:
        folder = os.lstat(path.parent)
        if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & 0o022:
            raise Refused(f"{path.parent} can be written by others", remedy=_anew(path.parent))
        return parse(owned.read_text(path, MAX_RECORD_BYTES, _anew(path)))
    except OSError:
        return None


def _anew(path: Path) -> str:
    """Never chown or chmod: what somebody else may have written would then be believed."""
    return f"rm -r {shlex.quote(str(path))}; ringfence prove"


def parse(text: str) -> Record | None:
    """None: it is no record."""
    try:
        raw = json.loads(text)
        rows = tuple(ProvedRow(str(row["id"]), row["status"]) for row in raw["rows"])
        if not all(is_row(row.id) and row.status in get_args(Status) for row in rows):
            return None  # an id goes into messages, and could hold what no terminal should see
        stamp = Stamp(str(raw["boot_id"]), str(raw["version"]), str(raw["profile_digest"]))
        return Record(stamp, rows, str(raw["at"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def verdict(record: Record | None, now: Stamp) -> Verdict:
    """Which ids stand open. `unproved`: no record of this boot, version and profile, or one of a few rows only."""
    if record is None:
        return Verdict((UNPROVED,), "no `ringfence prove` has run here")
    if record.stamp.boot_id != now.boot_id:
        return Verdict((UNPROVED,), f"the last `ringfence prove` ({record.at}) was before this boot")
    if record.stamp.version != now.version:
        return Verdict((UNPROVED,), f"the last `ringfence prove` was of version {record.stamp.version}")
    if record.stamp.profile_digest != now.profile_digest:
        return Verdict(
            (UNPROVED,), "the walls were changed since the last `ringfence prove` (code, bubblewrap, settings)"
        )
    held = len({row.id for row in record.rows if row.status == "held"})
    if held < LEAST_HELD:
        return Verdict((UNPROVED,), f"the last `ringfence prove` had {held} rows held: run it without --only")
    found = tuple(dict.fromkeys(row.id for row in record.rows if row.status == "open"))
    return Verdict(found, f"open in the last `ringfence prove`: {', '.join(found)}" if found else "")
