"""A new image for a box, whole before it has its name, and a mount of one. Must never be given a directory that a box can
write."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os

from ringfence.spawner import disk_parts, disk_tools, loop_image, paths
from ringfence.spawner.children import Children
from ringfence.spawner.disk_parts import MADE, RECORD
from ringfence.spawner.protocol import Limits
from ringfence.spawner.tasks import Steps


def record(box: int, limits: Limits) -> None:
    """What the image is made for, which it rounds up."""
    paths.write_file(box, RECORD, json.dumps({"inodes": limits.inodes}).encode(), 0o600, durable=False)


def make(children: Children, box: int, limits: Limits, name: str) -> Steps[None]:
    """An empty one, called `name` once it is whole."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(MADE, dir_fd=box)
    with disk_parts.image(box, MADE, os.O_CREAT | os.O_EXCL) as image:
        os.ftruncate(image, disk_tools.rounded(limits.disk))
        yield from disk_tools.make(children, image, limits)
        os.fsync(image)
        os.rename(MADE, name, src_dir_fd=box, dst_dir_fd=box)
        paths.sync_directory(box)


def mount(box: int, name: str, place: bytes) -> None:
    """The image `name` at the path `place`. Raises SpawnerError, OSError."""
    with disk_parts.image(box, name) as image:
        # The device keeps this very open file, and with it the lock, for as long as it is mounted.
        fcntl.flock(image, fcntl.LOCK_UN)
        loop_image.mount(image, place)
