"""A second tree of a box, beside its own: made empty, filled by somebody else, then in the place of the first or gone.

Only names in the box's own directory change, which no box can write, and the tree is one or the other at every moment:

    of an image        beside.img mounted on beside/; its name becomes disk.img in one rename, before which nothing of the old
                       tree is touched
    of a plain folder  beside/ and tree/ change places in one call

Whatever step it dies at, what is called `beside` after that is of no use: unfinished before the change, the old tree behind
it. Asked again, or told to throw it away, that goes. Must never be asked about a box that runs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from ringfence.spawner import disk_making, disk_parts, loop_image, paths, project_quota, sweep, syscalls
from ringfence.spawner.children import Children
from ringfence.spawner.disk_parts import IMAGE
from ringfence.spawner.disks import Disks
from ringfence.spawner.errors import Busy, Failed, SpawnerError, Unavailable, of_os_error
from ringfence.spawner.protocol import Limits
from ringfence.spawner.registry import Entry, Registry
from ringfence.spawner.sources import Host
from ringfence.spawner.tasks import Steps, pause

NAME = "beside"
BESIDE_IMAGE = disk_parts.BESIDE_IMAGE
FREE_SECONDS = 10.0  # a start of another box has a copy of every mount for some ms


class Beside:
    def __init__(self, host: Host, children: Children, disks: Disks) -> None:
        self._host = host
        self._children = children
        self._disks = disks

    def make(self, box: int, entry: Entry, limits: Limits, *, filled: bool) -> Steps[None]:
        """Empty, with its parts, bounded like the box's own. One of before goes. Raises SpawnerError. Not `filled`, it takes from what
        is kept back on the volume, if need be: an empty one gives more than it takes."""
        yield from self.discard(box, entry, limits)
        if filled:
            self._disks.room("for a second tree of the box")
        if disk_parts.has(box, IMAGE) or (self._host.disk == "image" and disk_parts.untouched(box)):
            yield from disk_making.make(self._children, box, limits, BESIDE_IMAGE)
            os.mkdir(NAME, 0o700, dir_fd=box)
            try:
                disk_making.mount(box, BESIDE_IMAGE, _path(box))
            except OSError as error:
                raise Failed(f"the new disk image cannot be mounted: {error.strerror}", "ringfence doctor") from error
        else:
            os.mkdir(NAME, 0o700, dir_fd=box)
            if self._disks.of_project(box, entry):
                _share_project(box, entry, limits)
        paths.make_tree(box, NAME, entry.uid, paths.parts(entry.kind))

    def open(self, box: int, entry: Entry) -> int:
        return paths.open_tree(box, entry.uid, NAME)

    def swap(self, box: int, entry: Entry, limits: Limits) -> Steps[None]:
        """It is the box's tree from now on, and the old one is deleted. Raises SpawnerError: before the change, the old one is
        the box's as before."""
        if disk_parts.has(box, BESIDE_IMAGE):
            yield from self._alone(box)
            self._disks.detach(
                box
            )  # whoever still has files of the old one keeps an image that no name leads to any more
            disk_making.record(box, limits)
            os.rename(BESIDE_IMAGE, IMAGE, src_dir_fd=box, dst_dir_fd=box)
            paths.sync_directory(box)
            self._disks.forget(box)
            self._disks.attach(box)
        else:
            if not disk_parts.has(box, "tree"):  # taken away by hand: the new one needs something to change places with
                os.mkdir("tree", 0o700, dir_fd=box)
            _exchange(box)
        yield from self.discard(box, entry, limits)

    def _alone(self, box: int) -> Steps[None]:
        """Until nothing has the new image's file system: two mounts of it by two devices would destroy it."""
        until = time.monotonic() + FREE_SECONDS
        while not _let_go(box):
            if time.monotonic() > until:
                raise Busy("the new disk image is in use", "ask again in a moment")
            yield from pause(0.01)

    def discard(self, box: int, entry: Entry, limits: Limits | None = None) -> Steps[None]:
        """Idempotent. `limits`: of the tree that stays, where they are its file system's."""
        self._unmount(box)
        if disk_parts.has(box, NAME):
            yield from self._delete(box, entry)
            os.rmdir(NAME, dir_fd=box)
            paths.sync_directory(box)
            if limits is not None and self._disks.of_project(box, entry):
                with disk_parts.tree(box) as tree:
                    project_quota.limit(tree, entry.uid, limits.disk, limits.inodes)

    def _delete(self, box: int, entry: Entry) -> Steps[None]:
        """What is in it, as the box; what is still the spawner's has nothing of a box in it."""
        fd = os.open(NAME, paths.DIRECTORY | os.O_NOFOLLOW, dir_fd=box)
        try:
            if os.fstat(fd).st_uid == entry.uid:
                groups = self._host.config.mode != "shared"
                yield from sweep.empty(fd, entry.uid, self._children, groups=groups)
            else:
                for name in os.listdir(f"/proc/self/fd/{fd}"):
                    os.rmdir(name, dir_fd=fd)
        finally:
            os.close(fd)

    def _unmount(self, box: int) -> None:
        """Its image goes with all that is in it."""
        if _mounted(box):
            syscalls.umount(_path(box), syscalls.MNT_DETACH)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(BESIDE_IMAGE, dir_fd=box)

    def tidy(self, registry: Registry) -> None:
        """At start: images of a copy that was cut short. A folder, which takes time, waits until it is asked for."""
        for name in registry.names():
            with contextlib.suppress(SpawnerError, OSError), paths.box_directory(self._host.state, name) as box:
                self._unmount(box)


def _path(box: int) -> bytes:
    return f"/proc/self/fd/{box}/{NAME}".encode()


def _mounted(box: int) -> bool:
    try:
        return os.stat(NAME, dir_fd=box, follow_symlinks=False).st_dev != os.fstat(box).st_dev
    except FileNotFoundError:
        return False


def _let_go(box: int) -> bool:
    try:
        if _mounted(box):
            syscalls.umount(_path(box), 0)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise of_os_error(error, "unmounting the new disk image") from error
        return False
    with disk_parts.image(box, BESIDE_IMAGE) as image:
        device = loop_image.find(image)
    if device is not None:
        os.close(device)
    return device is None


def _exchange(box: int) -> None:
    try:
        syscalls.exchange(box, b"tree", NAME.encode())
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS):
            text = "the file system of the state directory cannot let two folders change places"
            raise Unavailable(text, "put the state directory on ext4, xfs, btrfs or tmpfs") from error
        raise of_os_error(error, "putting the new tree in its place") from error
    paths.sync_directory(box)


def _share_project(box: int, entry: Entry, limits: Limits) -> None:
    """Both trees are of one project: until one of them goes it may have what the old one uses besides."""
    with disk_parts.tree(box) as tree:
        now = project_quota.count(tree, entry.uid)
        project_quota.limit(tree, entry.uid, now.used + limits.disk, now.inodes + limits.inodes)
    fd = os.open(NAME, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=box)
    try:
        project_quota.mark(fd, entry.uid)
    finally:
        os.close(fd)
