"""Processes under this installation's ids that neither a running box nor this server has.

An id says whose a process is: the range is the installation's alone, and a home's block is never given to another box. What is
dead and not reaped counts as gone: whoever has to reap it is ended, or reaps it. In mode shared, where the id is a person's
own, there are none. Must never kill what runs under an id that was not given out, or that a box may have whose record cannot
be read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from ringfence.spawner import sweep
from ringfence.spawner.children import Children
from ringfence.spawner.config import Config
from ringfence.spawner.disk_holders import AT_ONCE
from ringfence.spawner.errors import Failed, NotFound, SpawnerError
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.replies import DebrisKind, Finding
from ringfence.spawner.tasks import Steps, pause
from ringfence.spawner.workers import Workers

SECONDS = 5.0  # a killed process ends within ms, unless it hangs in a file system
OF_BOX: tuple[DebrisKind, ...] = ("processes", "worker")
OF_NONE: tuple[DebrisKind, ...] = ("processes", "worker", "stranger")
_WHY = {
    "processes": "under the box's id, and the box does not run",
    "worker": "under the id of the box's worker, and no worker of this server",
}
_WHY_OF_NONE = {
    "processes": "under an id of a box that is no more",
    "worker": "under the id of this server's egress template, and not it",
    "stranger": "under an id of this installation's range that was never given out: not of its making",
}
Pids = dict[int, int]  # pid -> the first of its ids that is of this installation


class Strays:
    def __init__(self, config: Config, children: Children, registry: Registry, workers: Workers) -> None:
        self._config, self._children, self._registry, self._workers = config, children, registry, workers
        self._shared = config.mode == "shared"
        # In a user namespace everybody outside of it has this one (user_namespaces(7)), which is within its range.
        self._outside = _overflow() if config.mode == "subuid" else -1

    # --- whose ids ----------------------------------------------------------------------------------------------------

    def _ours(self, uid: int) -> bool:
        first, last = self._config.ids
        return uid != self._outside and (first <= uid <= last or uid == self._config.egress_id)

    def may_kill(self, pid: int) -> bool:
        """Of what is in a cgroup of ours: whether it is under an id of ours."""
        return self._shared or all(map(self._ours, sweep.uids_of(pid)))

    def held(self) -> tuple[set[int], bool]:
        """(every id that a box has, whether every record could be read)."""
        ids: set[int] = set()
        sure = True
        for name in self._registry.names():
            try:
                entry = self._registry.get(name)
                ids |= set(range(entry.uid, entry.uid + entry.ids))
            except NotFound:  # half made or half removed, else one whose record somebody has taken: see Registry.forget
                sure = sure and not self._registry.has_run(name)
            except (SpawnerError, OSError):
                sure = False
        return ids, sure

    # --- which there are ----------------------------------------------------------------------------------------------

    def scan(self) -> Steps[Pids]:
        """Candidates, of which the next functions look again."""
        found: Pids = {}
        if not self._shared:
            for count, name in enumerate(os.listdir("/proc"), start=1):
                self._add(name, found)
                if count % AT_ONCE == 0:
                    yield from pause(0.0)
        return found

    def _scan_now(self) -> Pids:
        found: Pids = {}
        for name in os.listdir("/proc"):
            self._add(name, found)
        return found

    def _add(self, name: str, found: Pids) -> None:
        uid = next(filter(self._ours, sweep.uids_of(int(name))), None) if name.isdigit() else None
        if uid is not None and self._in_reach(name):
            found[int(name)] = uid

    def _in_reach(self, pid: str) -> bool:
        """Another installation of the same account has the same subordinate ids, in a user namespace of its own, and what is in there
        this one could not end: its link is not ours to read then (ptrace(2), PTRACE_MODE_READ_FSCREDS)."""
        if self._outside < 0:
            return True
        try:
            os.readlink(f"/proc/{pid}/ns/user")
        except PermissionError:
            return False
        except OSError:  # it has ended
            pass
        return True

    def _there(self, pids: Pids) -> Pids:
        """Those that still are who they were, and nobody of this server's: a files helper, a deletion, the template, a worker."""
        return {
            pid: uid
            for pid, uid in pids.items()
            if uid in sweep.uids_of(pid)
            and not self._children.running(pid)
            and not self._workers.has(pid, parent_of(pid))
        }

    def of_box(self, kind: DebrisKind, entry: Entry, alive: bool, pids: Pids) -> Pids:
        if kind == "processes":
            mine = {pid: uid for pid, uid in pids.items() if uid == entry.uid and not alive}
        else:
            mine = {pid: uid for pid, uid in pids.items() if entry.uid < uid < entry.uid + entry.ids}
        return self._there(mine) if mine else {}

    def of_none(self, kind: DebrisKind, pids: Pids, held: set[int]) -> Pids:
        template = self._config.egress_id
        following = self._config.ids[0] + self._registry.ids()["given"]
        if kind == "worker":
            mine = {pid: uid for pid, uid in pids.items() if uid == template}
        else:
            of_nobody = {pid: uid for pid, uid in pids.items() if uid != template and uid not in held}
            mine = {pid: uid for pid, uid in of_nobody.items() if (uid < following) == (kind == "processes")}
        return self._there(mine) if mine else {}

    # --- told and ended -----------------------------------------------------------------------------------------------

    def left(self, entry: Entry, alive: bool, pids: Pids) -> list[Finding]:
        found = {kind: self.of_box(kind, entry, alive, pids) for kind in OF_BOX}
        return [Finding(kind, entry.box, some(list(pids)), _WHY[kind], 0, True) for kind, pids in found.items() if pids]

    def left_of_none(self, pids: Pids) -> list[Finding]:
        held, sure = self.held()
        told = []
        for kind in OF_NONE:
            if found := self.of_none(kind, pids, held):
                why, ours = _WHY_OF_NONE[kind], kind != "stranger"
                if kind == "processes" and not sure:
                    why, ours = (
                        "under an id without a box; but a box's record cannot be read, and it may be that box's",
                        False,
                    )
                told.append(Finding(kind, "", some(list(found)), why, 0, ours))
        return told

    def end(self, kind: DebrisKind, entry: Entry | None, alive: Callable[[], bool]) -> Steps[None]:
        """SIGKILL to those of the box, of none with no `entry`, each proven anew, until there is none. Failed: some stay."""
        until = time.monotonic() + SECONDS
        while pids := self._now(kind, entry, alive):
            if time.monotonic() > until:
                raise Failed(f"{some(list(pids))}: the kernel cannot end it", "ringfence doctor")
            for pid, uid in pids.items():
                sweep.kill_one(pid, range(uid, uid + 1))
            yield from pause(0.01)

    def _now(self, kind: DebrisKind, entry: Entry | None, alive: Callable[[], bool]) -> Pids:
        pids = self._scan_now()
        if entry is not None:
            return self.of_box(kind, entry, alive(), pids)
        held, sure = self.held()
        return self.of_none(kind, pids, held) if sure or kind != "processes" else {}


def _overflow() -> int:
    with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
        return int(file.read())


def parent_of(pid: int) -> int:
    """0: it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
    return 0


def named(pid: int) -> str:
    """For a message: plain ASCII, for whoever runs it chose the name."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb") as file:
        return f"{pid} ({''.join(chr(byte) if 0x20 <= byte < 0x7F else '?' for byte in file.read(16).rstrip())})"
    return str(pid)


def some(pids: list[int]) -> str:
    """The first of them by name, and how many there are."""
    shown = ", ".join(named(pid) for pid in sorted(pids)[:4])
    return f"{len(pids)} process{'' if len(pids) == 1 else 'es'}: {shown}{', ...' if len(pids) > 4 else ''}"
