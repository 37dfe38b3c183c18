"""The programs of e2fsprogs that make and grow an image, as children that the spawner does not wait for by blocking.

They run before any byte of a box is in the image, or on a file system that the host's kernel alone has written. They
get one descriptor and an empty environment. Must never be given a path.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal

from ringfence.spawner import disk_kind, drop, superblock
from ringfence.spawner.children import Children
from ringfence.spawner.errors import NEW_FILES, Failed, Unavailable
from ringfence.spawner.protocol import Limits
from ringfence.spawner.superblock import BLOCK
from ringfence.spawner.tasks import Steps

SECONDS = 600.0  # mkfs takes some 20 ms; a check of 8 TiB some minutes
_IMAGE = "/proc/self/fd/3"
_CHECKED = (0, 1)  # e2fsck(8): clean, or errors were corrected
CAP_SYS_RESOURCE = 24


def rounded(size: int) -> int:
    return size // BLOCK * BLOCK


def inodes_of(limits: Limits) -> int:
    """A file with any content takes a block, so more inodes than blocks cannot be used: 256 of 4096 bytes each, the
    tables are then 1/16 of the disk at most."""
    return min(limits.inodes, limits.disk // BLOCK)


def journal_of(limits: Limits) -> int:
    """MiB: 1/128 of the disk, from 4 (ext4's least, 1024 blocks) to 64."""
    return max(4, min(64, limits.disk >> 27))


def reach_of(limits: Limits) -> int:
    """Blocks that the image can grow to in the room for group descriptors that it is made with: 64 times its size, 512
    GiB at least (64 blocks of descriptors), 8 TiB at most. ext4's own 1024 times would cost a box 4 MiB and half of the
    time it is made in. Beyond, other room is found (which resize2fs 1.47 fails at in an image made below 128 MiB)."""
    return min(max(64 * limits.disk, 512 << 30), 8 << 40) // BLOCK


def make(children: Children, image: int, limits: Limits) -> Steps[None]:
    """An empty ext4 in the image. Nothing is kept back for root; tables and journal stay holes."""
    lazily = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"
    if reach_of(limits) > limits.disk // BLOCK:  # mke2fs(8) takes nothing else
        lazily += f",resize={reach_of(limits)}"
    shape = ["-b", str(BLOCK), "-m", "0", "-N", str(inodes_of(limits)), "-J", f"size={journal_of(limits)}"]
    status = yield from _run(children, image, ["mkfs.ext4", "-q", "-F", *shape, "-E", lazily, _IMAGE])
    if status:
        raise Failed(f"mkfs.ext4 failed: exit {status}", "ringfence doctor")


def grow(children: Children, image: int, size: int) -> Steps[None]:
    """An image that nothing has mounted becomes `size` bytes, which must be within its reach: beyond, resize2fs moves
    what is there, and where it fails at that the file system is lost. Asked again after a crash, it goes on."""
    status = yield from _run(children, image, ["e2fsck", "-f", "-y", _IMAGE])
    if status not in _CHECKED:
        raise Failed(f"e2fsck failed: exit {status}", "ringfence doctor")
    former, before = os.fstat(image).st_size, superblock.read(image)
    if before is None:
        raise Failed("the box's disk image has no file system", "ringfence box show USER")
    if size < before.size:
        raise Failed(f"the disk image has a file system of more than {size} bytes", "ringfence box show USER")
    os.ftruncate(image, size)
    status = yield from _run(children, image, ["resize2fs", _IMAGE])
    if status:
        whole = yield from _untouched(children, image, before)
        if whole:
            os.ftruncate(image, former)
        state = "has its former size" if whole else "may be damaged: keep a copy of disk.img before you use it"
        raise Failed(f"resize2fs failed: exit {status}; the disk {state}", "ringfence box show USER")


def check(children: Children, image: int) -> Steps[str]:
    """Of an image that nothing has mounted: what can be mended without asking is (-p), and where that is not all, the rest
    too, by which files may come to lie in lost+found (-y). Failed: it stays damaged."""
    status = yield from _run(children, image, ["e2fsck", "-f", "-p", _IMAGE])
    if status == 0:
        return "clean"
    if status not in _CHECKED:
        status = yield from _run(children, image, ["e2fsck", "-f", "-y", _IMAGE])
    if status not in _CHECKED:
        text = f"e2fsck cannot mend the box's disk image: exit {status}"
        raise Failed(text, NEW_FILES)
    return "mended"


def _untouched(children: Children, image: int, before: superblock.Shape) -> Steps[bool]:
    """Whether the file system is whole and needs nothing beyond its former end. Changes nothing: what lies beyond may
    be all that there is of a file."""
    if superblock.read(image) != before:
        return False
    status = yield from _run(children, image, ["e2fsck", "-f", "-n", _IMAGE])
    return status == 0


def grows_in_use() -> bool:
    """Whether the kernel lets this process grow a mounted ext4 (CAP_SYS_RESOURCE, which containers often lack)."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        held = next((int(line.split()[1], 16) for line in status if line.startswith("CapEff:")), 0)
    return bool(held >> CAP_SYS_RESOURCE & 1)


def _run(children: Children, image: int, argv: list[str]) -> Steps[int]:
    """The exit status. The child has the image as descriptor 3 and nothing else."""
    path = disk_kind.program(argv[0])
    if path is None:
        raise Unavailable(f"{argv[0]} is missing", "apt-get install -y e2fsprogs")
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    high = fcntl.fcntl(image, fcntl.F_DUPFD_CLOEXEC, 4)  # above 3, so that no action below overwrites it
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        actions.append((os.POSIX_SPAWN_DUP2, high, 3))
        pid = os.posix_spawn(
            path, argv, {}, file_actions=actions, setsigmask=[], setsigdef=[signal.SIGPIPE, signal.SIGCHLD]
        )
    finally:
        os.close(null)
        os.close(high)
    children.add(pid, watched=True)
    with contextlib.suppress(OSError):  # it has ended already
        drop.oom_score(0, pid)  # not the spawner's own
    status = yield from children.wait(pid, SECONDS)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise Failed(f"{argv[0]} does not end", "ask again")
    return status
