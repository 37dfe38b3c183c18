"""Mounts and loop devices below the directory of all boxes: whose they are, and letting go of those that are nobody's.

What this server makes is one mount of an ext4 on boxes/<id>/tree, from a loop device over boxes/<id>/disk.img. Anything else
there was made by somebody by hand: it is told, and left. Must never let go of a file system in which the only copy of a
tree is.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass

from ringfence.spawner import disk_holders, loop_image
from ringfence.spawner.disk_parts import BESIDE_IMAGE, IMAGE
from ringfence.spawner.errors import Busy
from ringfence.spawner.protocol import BOX_ID
from ringfence.spawner.replies import Finding
from ringfence.spawner.tasks import Steps, pause

_LONGEST = 16 << 20  # bytes of the table of mounts; 200 a box
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
_LOOP = 7  # major number of loop devices
BESIDE = "beside"  # beside.py: a second tree, and what is left of it is of the kind `copy`
FREE_SECONDS = 2.0  # the kernel takes a dead box's namespace, which holds its mounts, apart in its own time


@dataclass(frozen=True, slots=True)
class Mount:
    place: str  # below the box's directory
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class Device:
    number: int
    path: str  # as the kernel tells it
    name: str  # of the file, below the box's directory
    deleted: bool


def where(boxes: int) -> str:
    """The directory of all boxes, as the kernel names it now."""
    return os.readlink(f"/proc/self/fd/{boxes}")


def mounts(boxes: int) -> dict[str, list[Mount]]:
    """Box -> what is mounted below its directory, in this process's namespace (proc(5), mountinfo)."""
    found: dict[str, list[Mount]] = {}
    top = where(boxes)
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file.read(_LONGEST).splitlines():
            words = line.split(b" ", 5)
            path = _OCTAL.sub(lambda octal: bytes([int(octal[1], 8)]), words[4])
            box, place = _below(top, os.fsdecode(path))
            if box:
                major, _, minor = words[2].partition(b":")
                found.setdefault(box, []).append(Mount(place, int(major), int(minor)))
    return found


def devices(boxes: int) -> dict[str, list[Device]]:
    """Box -> loop devices over files below its directory, deleted ones too."""
    found: dict[str, list[Device]] = {}
    top = where(boxes)
    for number, path in loop_image.attached().items():
        box, name = _below(top, path.removesuffix(loop_image.GONE))
        if box:
            gone = path.endswith(loop_image.GONE)
            found.setdefault(box, []).append(Device(number, path, name, gone))
    return found


def _below(boxes: str, path: str) -> tuple[str, str]:
    """("", ""): not below a box's directory."""
    if not path.startswith(f"{boxes}/"):
        return "", ""
    box, _, rest = path[len(boxes) + 1 :].partition("/")
    return (box, rest) if BOX_ID.match(box) else ("", "")


def mount_left(box: str, recorded: bool, image: bool, there: list[Mount], behind: list[Device]) -> Finding | None:
    """`image`: there is a disk.img."""
    there = [mount for mount in there if mount.place != BESIDE or not recorded]
    if odd := [mount.place for mount in there if mount.place != "tree"]:
        what = f"{len(odd)} mount(s) below the box's directory: {', '.join(odd)[:100]}"
        return Finding("mount", box, what, "this server makes none there: umount it by hand", 0, False)
    if not there or (recorded and image):
        return None
    loops = {device.number for device in behind if device.name == IMAGE}
    what = "a mount on the box's tree"
    if any(mount.major != _LOOP or mount.minor not in loops for mount in there):
        return Finding("mount", box, what, "it is not of the box's disk image: umount it by hand", 0, False)
    if recorded:
        why = "its disk image was deleted under it: copy the files out, they go with the mount"
        return Finding("mount", box, what, why, 0, False)
    return Finding("mount", box, what, "the box has no record", 0, True)


def loop_left(box: str, boxes: int, there: list[Mount], behind: list[Device]) -> Finding | None:
    """Of a box that does not run. `there`: what is mounted below its directory."""
    used = {mount.minor for mount in there if mount.major == _LOOP}
    idle = [device for device in behind if device.number not in used and device.name != BESIDE_IMAGE]
    if not idle:
        return None
    what = "loop device " + ", ".join(f"loop{device.number}" for device in idle)
    if any(device.name != IMAGE for device in idle):
        return Finding("loop", box, what, "it is over a file that is no disk image: losetup -d it by hand", 0, False)
    deleted = any(device.deleted for device in idle)
    why = "the disk image is deleted" if deleted else "the disk image is mounted nowhere from it"
    return Finding("loop", box, what, why, 0 if deleted else _size(boxes, box), True)


def _size(boxes: int, box: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"{box}/{IMAGE}", dir_fd=boxes, follow_symlinks=False).st_blocks * 512
    return 0


def free_loops(boxes: int, box: str) -> Steps[None]:
    """Every device of the box that is mounted nowhere here. Busy: somebody else still has one."""
    until = time.monotonic() + FREE_SECONDS
    while idle := _idle(boxes, box):
        for device in idle:
            with contextlib.suppress(OSError):
                loop_image.let_go(device.number, device.path)
        if time.monotonic() > until:
            holders = yield from disk_holders.find(os.makedev(_LOOP, idle[0].number))
            told = "; ".join(map(str, holders)) or "nobody that /proc shows"
            raise Busy(f"loop{idle[0].number} is in use yet; the kernel lets it go once it is not", "", told)
        yield from pause(0.02)


def _idle(boxes: int, box: str) -> list[Device]:
    used = {mount.minor for mount in mounts(boxes).get(box, []) if mount.major == _LOOP}
    return [each for each in devices(boxes).get(box, []) if each.number not in used and each.name == IMAGE]
