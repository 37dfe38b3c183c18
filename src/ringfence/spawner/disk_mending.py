"""A box's tree around a check of its image: where e2fsck puts what has lost its name, and what the box gets back of that.

The box has no process. Must never follow a name that the box could have made.
"""

from __future__ import annotations

import contextlib
import os

from ringfence.spawner import disk_parts, paths
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.registry import Entry

FOUND = "lost+found"


def place_for_finds(box: int) -> None:
    """The folder that the box's tree was made without: e2fsck would count its lack as an error."""
    if disk_parts.mounted(box):
        with contextlib.suppress(OSError), disk_parts.tree(box) as tree:
            os.mkdir(FOUND, 0o700, dir_fd=tree)


def furnish(box: int, entry: Entry) -> None:
    """Parts of the tree that are gone are made anew, empty; what was found is the box's, in a folder of its home."""
    with disk_parts.tree(box) as tree:
        for name in paths.parts(entry.kind):
            if not disk_parts.has(tree, name):
                paths.make_directory(tree, name, paths.TREE_MODES[name], entry.uid)
        try:
            os.rmdir(FOUND, dir_fd=tree)
        except FileNotFoundError:
            return
        except OSError:  # something is in it
            _hand_over(tree, entry)


def _hand_over(tree: int, entry: Entry) -> None:
    with contextlib.suppress(OSError):
        fd = open_beneath(tree, FOUND.encode(), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fchown(fd, entry.uid, entry.uid)
        finally:
            os.close(fd)
        home = paths.open_part(tree, paths.parts(entry.kind)[0], entry.uid)
        try:
            os.rename(FOUND, f"{FOUND}-{os.urandom(4).hex()}", src_dir_fd=tree, dst_dir_fd=home)
        finally:
            os.close(home)
