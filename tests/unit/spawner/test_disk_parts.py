"""The lock of a disk image, which every copy of its descriptor shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.spawner import disk_parts
from ringfence.spawner.errors import Busy


def test_a_copy_of_the_descriptor_holds_the_lock_for_work_that_is_not_done_only(tmp_path: Path) -> None:
    """A box that starts meanwhile has a copy until it execs; a tool whose spawner has died goes on with its own."""
    (tmp_path / disk_parts.IMAGE).touch()
    box = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with disk_parts.image(box) as image:
        copy = os.dup(image)
        with pytest.raises(Busy), disk_parts.image(box):
            raise AssertionError("two at once")
    with disk_parts.image(box):
        pass
    os.close(copy)
    with pytest.raises(RuntimeError), disk_parts.image(box) as image:
        copy = os.dup(image)
        raise RuntimeError("the spawner goes")
    with pytest.raises(Busy), disk_parts.image(box):
        raise AssertionError("beside the tool")
    os.close(copy)
    with disk_parts.image(box):
        pass
    os.close(box)
