"""What is left behind: found, proven to be this installation's and nobody's, and taken away one thing at a time.

A box that runs, and one that something is being done with, has nothing left behind but what a killed server's worker is. Looking
waits in between, so what it finds is proven once more in the moment that it is told, and again when it is taken away; between a
proof and its deed the spawner, which alone makes and starts boxes, does nothing else. Must never act on what it could not
prove: that is told, and left.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, replace

from ringfence.spawner import debris_cgroups, debris_disks, debris_files, images, protocol
from ringfence.spawner.answers import Answer
from ringfence.spawner.children import Children
from ringfence.spawner.copying import Copies
from ringfence.spawner.debris_disks import Device, Mount
from ringfence.spawner.debris_processes import Pids, Strays
from ringfence.spawner.disk_parts import IMAGE
from ringfence.spawner.disks import Disks
from ringfence.spawner.errors import Failed, NotFound, Refused, SpawnerError
from ringfence.spawner.paths import box_directory
from ringfence.spawner.protocol import BOX_ID
from ringfence.spawner.registry import Entry, Registry, take_socket
from ringfence.spawner.replies import Cleared, Finding, LeftBehind
from ringfence.spawner.sources import Host
from ringfence.spawner.start import Starter
from ringfence.spawner.tasks import Steps, pause
from ringfence.spawner.workers import Workers

# Of one reply, which has at most 64 KiB: 90 of 560 bytes and 500 ids of 20. Of a box there are some ten at most.
PAGE, BOXES, WORDS = 80, 500, 200
AT_ONCE = 64  # boxes between two pauses: some 8 ms


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one moment, which may be over."""

    pids: Pids
    cgroups: set[str]
    mounts: dict[str, list[Mount]]
    devices: dict[str, list[Device]]


class Debris:
    def __init__(
        self,
        host: Host,
        children: Children,
        registry: Registry,
        disks: Disks,
        starter: Starter,
        workers: Workers,
        copies: Copies,
        busy: Collection[str],
    ) -> None:
        """`busy`: boxes that something is being done with, as it is at each moment; but for taking something of it away."""
        self._host, self._children, self._registry, self._disks = host, children, registry, disks
        self._starter, self._copies, self._busy = starter, copies, busy
        self._strays = Strays(host.config, children, registry, workers)

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self, request: protocol.Debris) -> Steps[Answer]:
        self._children.collect()
        seen = self._seen((yield from self._strays.scan()))
        found = [] if request.after else (yield from self._of_none(seen.pids))
        names = {*self._registry.names(), *filter(BOX_ID.match, seen.cgroups), *seen.mounts, *seen.devices}
        rest = sorted(name for name in names if name > request.after)
        boxes, after = [], request.after
        for count, box in enumerate(rest[:BOXES], start=1):
            found += self._of_box(box, seen)
            boxes += [box] if self._entry(box) is not None else []
            after = box
            if len(found) >= PAGE:
                break
            if count % AT_ONCE == 0:
                yield from pause(0.0)
        ids = {} if request.after else self._ids()
        return Answer(LeftBehind(found, boxes, bool(rest) and after != rest[-1], after, ids))

    def _ids(self) -> dict[str, int]:
        ids = self._registry.ids()
        held = len(self._strays.held()[0])
        return ids | {"held": held, "spent": max(0, ids["given"] - held - ids["free"])}

    def _seen(self, pids: Pids) -> Seen:
        boxes = self._host.state.boxes
        return Seen(pids, self._host.cgroups.left(), debris_disks.mounts(boxes), debris_disks.devices(boxes))

    def _entry(self, box: str) -> Entry | None:
        """None: no record, or none that can be read."""
        try:
            return self._registry.get(box)
        except (SpawnerError, OSError):
            return None

    def _of_none(self, pids: Pids) -> Steps[list[Finding]]:
        found = self._strays.left_of_none(pids)
        if (files := debris_files.temporary_left(self._host.state, "")) is not None:
            found.append(files)
        if names := (yield from debris_files.releases_left(self._host.config)):
            what = f"{len(names)} cop{'y' if len(names) == 1 else 'ies'} of releases: {', '.join(names)[:200]}"
            found.append(Finding("release", "", what, "nothing runs from it, and it is none of the newest", 0, True))
        if (half := images.left(self._host.state)) is not None:
            found.append(half)
        return [_short(each) for each in found]

    def _of_box(self, box: str, seen: Seen) -> list[Finding]:
        """In the order in which it is to be taken away: what is in a cgroup ends with it, a device goes with its mount."""
        if box in self._busy or self._copies.under_way(box):
            return []
        try:
            entry = self._registry.get(box)
        except NotFound:
            entry = None
        except (SpawnerError, OSError) as error:  # whose it is nobody knows, nor whether it runs
            return [debris_files.unreadable(box, error)]
        alive = self._alive(box)
        state = self._host.state
        found: list[Finding | None] = []
        if not alive and box in seen.cgroups:
            found.append(debris_cgroups.left(self._host.cgroups, box, self._strays.may_kill))
        if entry is not None:
            found += [*self._strays.left(entry, alive, seen.pids), debris_files.temporary_left(state, box)]
        if not alive:
            if entry is not None:
                found += [debris_files.socket_left(state, box), debris_files.copy_left(state, box)]
            found += self._of_disk(box, entry, seen)
        if entry is None and not alive:
            found.append(debris_files.directory_left(state, box))
        return [_short(each) for each in found if each is not None]

    def _alive(self, box: str) -> bool:
        """Also of one whose record somebody has taken."""
        try:
            return self._starter.alive(box) is not None
        except NotFound:
            return False

    def _of_disk(self, box: str, entry: Entry | None, seen: Seen) -> list[Finding]:
        """Mounts and devices of another moment are no proof: what they show is looked for once more."""
        if not self._disk(box, entry, seen):
            return []
        return self._disk(box, entry, self._seen({}))

    def _disk(self, box: str, entry: Entry | None, seen: Seen) -> list[Finding]:
        boxes, there, behind = self._host.state.boxes, seen.mounts.get(box, []), seen.devices.get(box, [])
        found = [
            debris_disks.mount_left(box, entry is not None, self._has_image(box), there, behind),
            debris_disks.loop_left(box, boxes, there, behind),
        ]
        return [each for each in found if each is not None]

    def _has_image(self, box: str) -> bool:
        try:
            os.stat(f"{box}/{IMAGE}", dir_fd=self._host.state.boxes, follow_symlinks=False)
        except OSError:
            return False
        return True

    # --- taking away --------------------------------------------------------------------------------------------------

    def clear(self, request: protocol.Clear) -> Steps[Answer]:
        """What there is of the box and the kind. Refused: not ours. Failed, Busy: it is still there."""
        finding = yield from self._found(request)
        if finding is None:
            return Answer(Cleared(False))
        if not finding.ours:
            raise Refused(f"{finding.what}: {finding.why}", "ringfence sweep --dry-run")
        yield from self._take(request)
        left = yield from self._found(request)
        if left is not None:
            raise Failed(f"{left.what}: it stays, or is there again", "ringfence doctor")
        return Answer(Cleared(True))

    def _found(self, request: protocol.Clear) -> Steps[Finding | None]:
        self._children.collect()
        pids = yield from self._strays.scan()
        found = self._of_box(request.box, self._seen(pids)) if request.box else (yield from self._of_none(pids))
        return next((each for each in found if each.debris == request.debris), None)

    def _take(self, request: protocol.Clear) -> Steps[None]:
        box, state = request.box, self._host.state
        match request.debris:
            case "cgroup":
                yield from debris_cgroups.clear(self._host.cgroups, box, self._strays.may_kill)
            case "processes" | "worker":
                entry = self._registry.get(box) if box else None
                yield from self._strays.end(request.debris, entry, lambda: self._alive(box))
            case "socket":
                with box_directory(state, box) as fd:
                    take_socket(fd)
            case "temporary":
                debris_files.take_temporary(state, box)
            case "copy":
                yield from self._copies.throw_away(self._registry.get(box))
            case "mount":
                with box_directory(state, box) as fd:
                    self._disks.detach(fd)
            case "loop":
                yield from debris_disks.free_loops(state.boxes, box)
            case "directory":
                self._registry.discard(box)
            case "release":
                for name in (yield from debris_files.releases_left(self._host.config)):
                    yield from debris_files.take_release(self._host.config, name, self._children)
            case "image":
                yield from images.take_left(state, self._host.config, self._children)


def _short(finding: Finding) -> Finding:
    """In plain ASCII: a place that somebody has mounted something on may have any name."""
    what, why = ("".join(c if " " <= c <= "~" else "?" for c in text[:WORDS]) for text in (finding.what, finding.why))
    return replace(finding, what=what, why=why)
