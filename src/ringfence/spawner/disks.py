"""The disk of each box: made, mounted, grown, counted, taken away.

A box with a disk.img has its tree in it; one whose tree is marked as its project has a quota; every other is only counted
(also one that was made before this host could do better). The image and its mount outlive the spawner: whoever comes next
finds them, and after a boot mounts them again. Whatever step it dies at, asking again goes on from there. Must never
mount, or look for an image, anywhere but in a box's own directory, which no box can write.
"""

from __future__ import annotations

import contextlib
import os

from ringfence.spawner import (
    disk_growth,
    disk_making,
    disk_mending,
    disk_parts,
    disk_tools,
    disk_use,
    paths,
    project_quota,
    superblock,
    syscalls,
)
from ringfence.spawner.children import Children
from ringfence.spawner.disk_parts import IMAGE
from ringfence.spawner.disk_use import Use, Volume
from ringfence.spawner.errors import Busy, Failed, NoSpace, SpawnerError
from ringfence.spawner.protocol import Limits
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.sources import Host
from ringfence.spawner.tasks import Steps

RESERVE = 1 << 30  # bytes of the volume that no new box may take; 1/20 of a small one
BROKEN = 20  # are named; a reply has a bounded size
LONGEST_STACK = 8  # mounts on one tree; there is one


class Disks:
    def __init__(self, host: Host, children: Children) -> None:
        self._host = host
        self._children = children
        # inode of a box's directory -> why its image could not be mounted, or not anew
        self._problems: dict[int, str] = {}
        self._holders: dict[int, str] = {}  # the same -> who of the host keeps it from that

    # --- made -----------------------------------------------------------------------------------------------------

    def prepare(self, entry: Entry, limits: Limits) -> Steps[None]:
        """Before the tree gets its content. A box that has a tree already keeps what it has."""
        with paths.box_directory(self._host.state, entry.box) as box:
            if not disk_parts.has(box, IMAGE) and disk_parts.untouched(box):
                if self._host.disk != "accounting":
                    self.room()
                if self._host.disk == "image":
                    disk_making.record(box, limits)
                    yield from disk_making.make(self._children, box, limits, IMAGE)
                elif self._host.disk == "quota":
                    _make_project(box, entry, limits)
            self.attach(box)

    def room(self, what: str = "for a new box") -> None:
        """NoSpace: what the volume has is kept back."""
        free, size = self._space()
        if free < _reserve(size):
            text = f"{free >> 20} MiB are free where the boxes lie, and {_reserve(size) >> 20} MiB are kept back"
            raise NoSpace(f"no room {what}: {text}", "make room on that volume: df -h")

    # --- mounted --------------------------------------------------------------------------------------------------

    def attach(self, box: int) -> None:
        """Mounts the image, if there is one and it is not mounted. Cheap otherwise. Raises SpawnerError."""
        if not disk_parts.has(box, IMAGE) or disk_parts.mounted(box):
            return
        with contextlib.suppress(FileExistsError):
            os.mkdir("tree", 0o700, dir_fd=box)
        try:
            disk_making.mount(box, IMAGE, disk_parts.tree_path(box))
        except OSError as error:
            text = f"the box's disk image cannot be mounted: {error.strerror}"
            self._problems[os.fstat(box).st_ino] = text
            raise Failed(text, "check it, and mend what is wrong: ringfence box recover USER --fsck") from error
        self.forget(box)

    def forget(self, box: int) -> None:
        """What is known to be wrong with its image."""
        inode = os.fstat(box).st_ino
        self._problems.pop(inode, None)
        self._holders.pop(inode, None)

    def renew(self, box: int) -> Steps[None]:
        """`attach`, for a box of which no process lives: a tree that an error made read-only is mounted anew, once nobody
        has its file system any more. Raises SpawnerError; Busy: somebody goes on having it, and is named."""
        if disk_parts.has(box, IMAGE) and disk_parts.mounted(box):
            inode = os.fstat(box).st_ino
            if disk_parts.takes_writes(box):
                self.forget(box)
                return
            try:
                with disk_parts.image(box) as image:
                    yield from disk_growth.alone(box, image)
            except Busy as error:
                self.attach(box)
                self._problems[inode] = f"{disk_use.STUCK}, and could not be mounted anew: {error.message}"
                self._holders[inode] = error.of_host
                raise
        self.attach(box)

    def detach(self, box: int) -> None:
        """Whatever is mounted on the tree, also what has no image any more."""
        for _ in range(LONGEST_STACK):
            if not disk_parts.mounted(box):
                return
            syscalls.umount(disk_parts.tree_path(box), syscalls.MNT_DETACH)
        raise Failed("the box's disk image stays mounted", "ringfence doctor")

    def apart(self, entry: Entry) -> bool:
        """Takes an image away from its tree: what was in it goes with the image. False: the tree is not in one."""
        with paths.box_directory(self._host.state, entry.box) as box:
            self.detach(box)  # whoever still has its files keeps an image that no name leads to any more
            self.forget(box)
            return disk_parts.has(box, IMAGE)

    def tidy(self, registry: Registry) -> None:
        """Mounts on trees of boxes that are no more, which would hold their image and its device for ever."""
        for name in registry.names():
            with contextlib.suppress(SpawnerError, OSError), paths.box_directory(self._host.state, name) as box:
                if not disk_parts.has(box, "box.json") or (disk_parts.mounted(box) and not disk_parts.has(box, IMAGE)):
                    self.detach(box)
                elif disk_parts.has(box, IMAGE) and not disk_parts.mounted(box) and (text := self._problem(box)):
                    self._problems[os.fstat(box).st_ino] = text

    # --- changed --------------------------------------------------------------------------------------------------

    def resize(self, entry: Entry, limits: Limits, *, running: bool) -> Steps[None]:
        """Raises Refused, Busy, NoSpace."""
        with paths.box_directory(self._host.state, entry.box) as box:
            if disk_parts.has(box, IMAGE):
                yield from self._resize_image(box, limits, running)
            elif self.of_project(box, entry):
                with disk_parts.tree(box) as tree:
                    project_quota.limit(tree, entry.uid, limits.disk, limits.inodes)

    def _resize_image(self, box: int, limits: Limits, running: bool) -> Steps[None]:
        if not disk_growth.check(box, limits, self._space()[1]):
            return
        if disk_tools.grows_in_use():
            self.attach(box)
            disk_growth.in_use(box, limits)
            return
        if running:
            raise Busy("this host can grow the disk of a stopped box only", "ringfence box stop USER, then again")
        try:
            yield from disk_growth.stopped(box, limits, self._children)
        except Busy:  # nothing was touched; after anything else it is left for a copy to be taken
            with contextlib.suppress(SpawnerError):
                self.attach(box)
            raise
        self.attach(box)

    def repair(self, entry: Entry, limits: Limits) -> Steps[str]:
        """What was found, as protocol.Repaired says it. The box has no process. Raises SpawnerError."""
        with paths.box_directory(self._host.state, entry.box) as box:
            if disk_parts.has(box, IMAGE):
                return (yield from self._check_image(box, entry))
            if not self.of_project(box, entry):
                return "nothing"
            with disk_parts.tree(box) as tree:
                project_quota.limit(tree, entry.uid, limits.disk, limits.inodes)
            return "limits"

    def _check_image(self, box: int, entry: Entry) -> Steps[str]:
        with contextlib.suppress(SpawnerError):
            self.attach(box)
            disk_mending.place_for_finds(box)
        try:
            found = yield from disk_growth.checked(box, self._children)
        except Busy:
            with contextlib.suppress(SpawnerError):
                self.attach(box)
            raise
        self.attach(box)
        disk_mending.furnish(box, entry)
        return found

    def of_project(self, box: int, entry: Entry) -> bool:
        """Whether a quota bounds its tree."""
        if entry.uid == os.geteuid() or not disk_parts.has(box, "tree"):
            return False
        with disk_parts.tree(box) as tree:
            return project_quota.project_of(tree) == entry.uid

    # --- counted --------------------------------------------------------------------------------------------------

    def use(self, entry: Entry) -> Use:
        """Raises SpawnerError."""
        with paths.box_directory(self._host.state, entry.box) as box:
            if disk_parts.has(box, IMAGE):
                if not disk_parts.mounted(box):
                    return Use("image", problem=self._problem(box))
                inode = os.fstat(box).st_ino
                return disk_use.of_image(box, self._problems.get(inode, ""), self._holders.get(inode, ""))
            if not self.of_project(box, entry):
                return Use("accounting")
            with disk_parts.tree(box) as tree:
                now = project_quota.count(tree, entry.uid)
            return Use("quota", now.used, max(0, now.limit - now.used), now.inodes, now.inode_limit)

    def _problem(self, box: int) -> str:
        """Of an image that is not mounted, as far as looking shows it; mounting may find more, which is remembered."""
        with contextlib.suppress(SpawnerError, OSError), disk_parts.image(box) as image:
            shape = superblock.read(image)
            if shape is None:
                return "the box's disk image has no file system"
            if shape.size > os.fstat(image).st_size:
                return "the box's disk image is shorter than its file system"
        return self._problems.get(os.fstat(box).st_ino, "")

    def _space(self) -> tuple[int, int]:
        """(free, all): bytes of the volume that holds all boxes."""
        seen = os.statvfs(f"/proc/self/fd/{self._host.state.boxes}")
        return seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize

    def volume(self) -> Volume:
        """Looks at every box's image."""
        promised, broken = 0, []
        for name in os.listdir(f"/proc/self/fd/{self._host.state.boxes}"):
            with contextlib.suppress(OSError):
                image = os.stat(f"{name}/{IMAGE}", dir_fd=self._host.state.boxes, follow_symlinks=False)
                promised += max(0, image.st_size - image.st_blocks * 512)
                if self._problems and os.stat(name, dir_fd=self._host.state.boxes).st_ino in self._problems:
                    broken.append(name)
        free, size = self._space()
        return Volume(free, promised, _reserve(size), sorted(broken)[:BROKEN])


def _reserve(size: int) -> int:
    return min(RESERVE, size // 20)


def _make_project(box: int, entry: Entry, limits: Limits) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir("tree", 0o700, dir_fd=box)
    with disk_parts.tree(box) as tree:
        project_quota.limit(tree, entry.uid, limits.disk, limits.inodes)
        project_quota.mark(tree, entry.uid)
