"""Which boxes there are and whose ids they have: box.json of each, next_id, and the pool of ids for disposable kinds.

A home gets a block of 8 ids that is never used again. Disposable kinds take one id from the pool and give it back only
after a sweep has shown nothing of it (threats M08). Must never hand out an id before it is on disk that it is spent.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import cast, get_args

from ringfence.spawner import paths, trust
from ringfence.spawner.config import BLOCK, Config
from ringfence.spawner.disk_parts import BESIDE_IMAGE, IMAGE, MADE, RECORD
from ringfence.spawner.errors import Failed, NotFound, Refused, Unavailable
from ringfence.spawner.paths import StateRoot
from ringfence.spawner.protocol import BOX_ID, BoxKind

DISK_FILES = (IMAGE, BESIDE_IMAGE, MADE, RECORD, f".{RECORD}.new")
_WRITTEN = ("machine-id", trust.CERTIFICATE, trust.ADDED, trust.BUNDLE)  # into ctl/, each by way of a new file
SOCKET = "host.sock"
TEMPORARY = (
    ".box.json.new",
    ".live.json.new",
    f".{RECORD}.new",
    MADE,
)  # each is renamed in the moment that it is whole
CONTROL_FILES = (SOCKET, *_WRITTEN, *(f".{name}.new" for name in _WRITTEN))


@dataclass(frozen=True, slots=True)
class Entry:
    """One box, as in its box.json."""

    box: str
    installation: str
    kind: BoxKind
    uid: int  # first of its ids; the box runs as this one
    ids: int  # how many
    created: str  # UTC, ISO 8601


def _stamp() -> str:
    # The spawner has no clock port; the date is for people and decides nothing.
    return datetime.fromtimestamp(os.stat("/proc/self").st_ctime, UTC).isoformat(timespec="seconds")


class Registry:
    """Opened once by the spawner, which alone writes it. All methods raise Refused for damaged or foreign state."""

    def __init__(self, config: Config, state: StateRoot) -> None:
        self._config = config
        self._state = state

    def get(self, box: str) -> Entry:
        """NotFound; Refused: another installation's, or ids outside the range."""
        with paths.box_directory(self._state, box) as fd:
            entry = self._read(fd, box)
        if entry is None:
            raise NotFound("no such box")
        return entry

    def names(self) -> list[str]:
        """Directories that look like boxes, sorted; each must still pass get()."""
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._state.boxes)
        try:
            return sorted(name for name in os.listdir(fd) if BOX_ID.match(name))
        finally:
            os.close(fd)

    def provision(self, box: str, kind: BoxKind) -> tuple[Entry, bool]:
        """(entry, made now), recorded and with its tree. Repairs a box that was half made when the power went."""
        entry, created = self.record(box, kind)
        self.furnish(entry)
        return entry, created

    def furnish(self, entry: Entry) -> None:
        """The tree and the other parts of a box that is recorded."""
        with paths.box_directory(self._state, entry.box) as fd:
            paths.make_box(fd, entry.uid, paths.parts(entry.kind))

    def record(self, box: str, kind: BoxKind) -> tuple[Entry, bool]:
        """(entry, made now): directory and record, without the tree."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(box, 0o711, dir_fd=self._state.boxes)
        with paths.box_directory(self._state, box) as fd:
            entry = self._read(fd, box)
            created = entry is None
            if entry is None:
                entry = self._new(box, kind)
                os.chmod(f"/proc/self/fd/{fd}", 0o711)  # mkdir was under the umask
                paths.write_file(fd, "box.json", json.dumps(asdict(entry)).encode(), 0o644)
                paths.sync_directory(self._state.boxes)
            elif entry.kind != kind:
                raise Refused(f"the box is of kind {entry.kind}, not {kind}")
        return entry, created

    def forget(self, entry: Entry, *, clean: bool) -> None:
        """Removes what is left of the box's directory, whose tree is empty. `clean`: a sweep showed nothing of the id,
        so that a disposable one may go back to the pool. Whatever step it dies at, it can be asked again."""
        with paths.box_directory(self._state, entry.box) as fd:
            _strip(fd)
            _remove_files(fd, "box.json")
            paths.sync_directory(fd)
        # Only now that no record on disk has the id: dying in between costs an id, the other order gives one to two.
        if clean and entry.kind != "home" and self._config.mode != "shared":
            self._write_pool([*self._pool(), entry.uid])
        self.clear(entry.box)

    def clear(self, box: str) -> None:
        """Removes a directory that has no record: half made or half removed, so nothing of a box is in it."""
        try:
            with paths.box_directory(self._state, box) as fd:
                if paths.read_file(fd, "box.json") is not None:
                    return
                _remove_files(fd, ".box.json.new")
        except NotFound:
            return
        os.rmdir(box, dir_fd=self._state.boxes)
        paths.sync_directory(self._state.boxes)

    def discard(self, box: str) -> None:
        """`clear`, also of one whose record was taken by hand. OSError: something is stored in it."""
        with contextlib.suppress(NotFound), paths.box_directory(self._state, box) as fd:
            if paths.read_file(fd, "box.json") is not None or IMAGE in os.listdir(f"/proc/self/fd/{fd}"):
                raise Refused("it is a box, or has a disk image", "ringfence user rm --purge U")
            _strip(fd)
        self.clear(box)

    def has_run(self, box: str) -> bool:
        """Whether a process is on record there."""
        try:
            os.stat(f"{box}/live.json", dir_fd=self._state.boxes, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def ids(self) -> dict[str, int]:
        """How many were given out, are free to be given again, and are left; those that boxes hold are among the given."""
        first, last = self._config.ids
        if self._config.mode == "shared":
            return {"given": 1, "free": 0, "left": 0}
        data = paths.read_file(self._state.spawner, "next_id")
        following = int(data) if data else first
        return {"given": following - first, "free": len(self._pool()), "left": max(0, last + 1 - following)}

    def _read(self, box_fd: int, box: str) -> Entry | None:
        data = paths.read_file(box_fd, "box.json")
        if data is None:
            return None
        try:
            entry = Entry(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise Refused("box.json is damaged", "ringfence doctor") from error
        self._check(entry, box)
        return entry

    def _check(self, entry: Entry, box: str) -> None:
        first, last = self._config.ids
        if entry.installation != self._config.installation or entry.box != box:
            raise Refused("the box belongs to another installation")
        if type(entry.uid) is not int or type(entry.ids) is not int or entry.kind not in get_args(BoxKind):
            raise Refused("box.json is damaged", "ringfence doctor")
        if not (first <= entry.uid and 1 <= entry.ids <= BLOCK and entry.uid + entry.ids - 1 <= last):
            raise Refused(f"the box's id {entry.uid} is outside {first}-{last}")

    def _new(self, box: str, kind: BoxKind) -> Entry:
        if self._config.mode == "shared":
            uid, count = self._config.ids[0], 1
        elif kind == "home":
            uid, count = self._spend(BLOCK), BLOCK
        else:
            uid, count = self._from_pool(), 1
        return Entry(box, self._config.installation, kind, uid, count, _stamp())

    def _spend(self, count: int) -> int:
        """The first of `count` ids that were never used; spent on disk before it is returned."""
        first, last = self._config.ids
        data = paths.read_file(self._state.spawner, "next_id")
        following = int(data) if data else first
        if following < first or following + count - 1 > last:
            raise Unavailable(f"all ids of {first}-{last} are spent", "widen the range: ringfence doctor")
        paths.write_file(self._state.spawner, "next_id", str(following + count).encode(), 0o600)
        return following

    def _from_pool(self) -> int:
        """An id of the pool, taken off it on disk. An empty pool is filled with a new block."""
        free = self._pool()
        if not free:
            first = self._spend(BLOCK)
            free = list(range(first, first + BLOCK))
        self._write_pool(free[1:])
        return free[0]

    def _pool(self) -> list[int]:
        data = paths.read_file(self._state.spawner, "pool.json", 1 << 20)
        return cast("list[int]", json.loads(data)) if data else []

    def _write_pool(self, ids: list[int]) -> None:
        paths.write_file(self._state.spawner, "pool.json", json.dumps(ids).encode(), 0o600)


def take_socket(box_fd: int) -> None:
    """That of a box that is down, where nobody listens."""
    with contextlib.suppress(Failed):  # a half-made box has no ctl yet
        control = paths.open_control(box_fd)
        try:
            _remove_files(control, SOCKET)
        finally:
            os.close(control)


def _strip(fd: int) -> None:
    """All of a box's directory but its record; its tree is empty. OSError: it is not."""
    _remove_files(fd, "live.json", ".live.json.new", *DISK_FILES)
    if "ctl" in os.listdir(f"/proc/self/fd/{fd}"):
        control = paths.open_control(fd)
        try:
            _remove_files(control, *CONTROL_FILES)
        finally:
            os.close(control)
        os.rmdir("ctl", dir_fd=fd)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir("tree", dir_fd=fd)


def _remove_files(dir_fd: int, *names: str) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=dir_fd)
