"""Growing a box's image: refused before anything is touched, or done on a file system that nobody else has.

Two that write one file system destroy it: e2fsck and resize2fs run only once no mount of it is left, in whatever
namespace and for whatever helper, which is when its loop device has let go of it. Must never detach a mount that is in
use.
"""

from __future__ import annotations

import errno
import json
import os
import time

from ringfence.spawner import disk_holders, disk_parts, disk_tools, loop_image, paths, superblock, syscalls
from ringfence.spawner.children import Children
from ringfence.spawner.disk_parts import IMAGE, RECORD
from ringfence.spawner.errors import Busy, Failed, NoSpace, Refused, of_os_error
from ringfence.spawner.protocol import Limits
from ringfence.spawner.tasks import Steps, pause

FREE_SECONDS = 2.0  # a helper whose end has closed is gone in some ms, a device that lets go (AUTOCLEAR) as well
CHECK_SECONDS = (
    20.0  # a box that was stopped for it has a namespace, with its mount, that the kernel takes apart in its own time
)
HELD = "a process of the host holds it"
_ANEW = "copy the files out, ringfence user rm --purge USER, set {} in ringfence.toml, ringfence user add USER"


def check(box: int, limits: Limits, volume: int) -> bool:
    """Whether the image is to grow. Refused, NoSpace: it cannot become that. `volume`: bytes of the one it lies on."""
    size, wanted = os.stat(IMAGE, dir_fd=box).st_size, disk_tools.rounded(limits.disk)
    record = _recorded(box)
    if record.get("inodes", limits.inodes) != limits.inodes:
        text = f"the disk image was made for {record['inodes']} inodes; their number follows its size from then on"
        raise Refused(text, f"raise --disk, or: {_ANEW.format('limits.inodes')}")
    former = record.get("growing", size)
    with disk_parts.image(box) as image:
        shape = superblock.read(image)
    # A growth that was cut short may have come to its end: nothing is ever cut below the file system. What a mounted one
    # has is not on the disk yet, but at most the file.
    least = (
        size if disk_parts.mounted(box) and wanted != former else max(former, shape.size if shape is not None else 0)
    )
    if wanted < least:
        what = f"a disk image cannot shrink: it has {least} bytes, {wanted} were asked for"
        raise Refused(what, f"give at least its size, or: {_ANEW.format('limits.disk')}")
    if wanted == former:
        return False
    if wanted > volume:
        what = f"the volume of the boxes has {volume} bytes in all, {wanted} were asked for"
        raise NoSpace(what, f"give at most {volume}; or put the state directory on a larger volume")
    if shape is None:
        raise Failed("the box's disk image has no file system", "ringfence box show USER")
    if wanted > shape.reach:
        what = f"this disk image can grow to {shape.reach} bytes, {wanted} were asked for"
        raise Refused(what, f"give at most {shape.reach}, or: {_ANEW.format('limits.disk')}")
    return True


def begin(box: int) -> None:
    """Written before the image's length changes, so that asking again after a crash goes on."""
    _record(box, {"growing": os.stat(IMAGE, dir_fd=box).st_size} | _recorded(box))


def end(box: int) -> None:
    _record(box, {name: value for name, value in _recorded(box).items() if name != "growing"})


def _recorded(box: int) -> dict[str, int]:
    record: dict[str, int] = json.loads(paths.read_file(box, RECORD) or b"{}")
    return record


def _record(box: int, record: dict[str, int]) -> None:
    paths.write_file(box, RECORD, json.dumps(record).encode(), 0o600)


def stopped(box: int, limits: Limits, children: Children) -> Steps[None]:
    """The image of a box that does not run, by e2fsprogs. Not mounted when this ends, unless it is Busy. The lock keeps
    anybody from mounting it meanwhile."""
    with disk_parts.image(box) as image:
        yield from alone(box, image)
        begin(box)
        yield from disk_tools.grow(children, image, disk_tools.rounded(limits.disk))
        end(box)


def in_use(box: int, limits: Limits) -> None:
    """The mounted one, by the kernel."""
    with disk_parts.image(box) as image, disk_parts.tree(box) as tree:
        begin(box)
        try:
            loop_image.grow(image, tree, disk_tools.rounded(limits.disk))
        except OSError as error:
            raise of_os_error(error, "growing the box's disk image") from error
    end(box)


def checked(box: int, children: Children) -> Steps[str]:
    """The image of a box that does not run, by e2fsck: `clean`, or `mended`. Not mounted when this ends. Busy, Failed."""
    with disk_parts.image(box) as image:
        yield from alone(box, image, CHECK_SECONDS)
        return (yield from disk_tools.check(children, image))


def alone(box: int, image: int, seconds: float = FREE_SECONDS) -> Steps[None]:
    """Until nothing has the file system any more: it is then not mounted. Busy: something goes on having it. `image` is
    locked, so that nobody mounts it meanwhile."""
    until = time.monotonic() + seconds
    while not _let_go(box, image):
        if time.monotonic() > until:
            raise (yield from _in_use(image))
        yield from pause(0.02)


def _in_use(image: int) -> Steps[Busy]:
    """With the processes that have it, as far as they can be told."""
    device = loop_image.find(image)
    found: list[disk_holders.Holder] = []
    if device is not None:
        number = os.fstat(device).st_rdev
        os.close(device)  # else we were one of them
        found = yield from disk_holders.find(number)
    wait = "wait for files commands of this user to end"
    if not found:
        return Busy(
            "the box's disk is in use: it grows, or is mounted anew, while nothing has it", f"{wait}; then again"
        )
    who = f"{'; '.join(map(str, found))} (to end the first: kill {found[0].pid})"
    return Busy(f"the box's disk is in use: {HELD}", f"{wait}, or tell the operator; then again", who)


def _let_go(box: int, image: int) -> bool:
    try:
        while disk_parts.mounted(box):
            syscalls.umount(disk_parts.tree_path(box), 0)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise of_os_error(error, "unmounting the box's disk image") from error
        return False
    device = loop_image.find(image)
    if device is not None:
        os.close(device)
    return device is None
