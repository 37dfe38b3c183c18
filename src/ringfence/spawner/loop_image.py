"""Disk images on loop devices, by raw calls: attach, mount, grow (loop(4), linux/loop.h, ext4's ioctls).

An image is attached to one device at most: it is looked for before a new device is taken, because two block devices
over one file would destroy its file system. AUTOCLEAR gives the device back with the last mount. Must never be given an
image that a box could write, or a target below a directory that a box can write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import struct
from collections.abc import Iterator

from ringfence.spawner import syscalls
from ringfence.spawner.superblock import BLOCK

CONTROL = "/dev/loop-control"
_SYS = "/sys/block"
_NAME = re.compile(r"loop(\d+)\Z")
_MAJOR = 7  # Documentation/admin-guide/devices.txt

_CTL_GET_FREE = 0x4C82
_CLR_FD = 0x4C01
_CONFIGURE = 0x4C0A
_GET_STATUS64 = 0x4C05
_SET_CAPACITY = 0x4C07
_EXT4_RESIZE = 0x4008_6610  # _IOW('f', 16, u64): blocks of the file system
_AUTOCLEAR = 4
# struct loop_info64: device, inode, rdevice, offset, sizelimit; number, encrypt type, key size, flags; two names, key,
# init
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
_CONFIG = struct.Struct(f"=II{_INFO.size}s64x")
GONE = " (deleted)"
TRIES = 32  # a free device that somebody else takes first

# noinit_itable: the tables of a sparse file read as zeros already, and writing them would fill it. discard: what a box
# deletes, the host gets back. After an error of the disk below nothing more is written.
OPTIONS = b"noinit_itable,discard,errors=remount-ro"


def usable() -> bool:
    """Whether this process can take a loop device."""
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.close(_open_number(fcntl.ioctl(control, _CTL_GET_FREE)))
    except OSError:
        return False
    finally:
        os.close(control)
    return True


def mount(image: int, target: bytes) -> None:
    """Mounts the image (a writable descriptor) at `target`, nosuid and nodev. Raises OSError."""
    with device(image) as fd:
        path = f"/dev/loop{os.minor(os.fstat(fd).st_rdev)}".encode()
        syscalls.mount(path, target, b"ext4", syscalls.MS_NOSUID | syscalls.MS_NODEV, OPTIONS)


def grow(image: int, tree: int, size: int) -> None:
    """A mounted image becomes `size` bytes, its file system with it. `tree`: a readable descriptor of its root. Needs
    CAP_SYS_RESOURCE (EPERM). Asked again after a crash, it goes on. Raises OSError."""
    if os.fstat(image).st_size < size:  # never cut: the file system may be as large by now
        os.ftruncate(image, size)
    with device(image) as fd:
        fcntl.ioctl(fd, _SET_CAPACITY)
    fcntl.ioctl(tree, _EXT4_RESIZE, struct.pack("=Q", size // BLOCK))


@contextlib.contextmanager
def device(image: int) -> Iterator[int]:
    """The image's device, attached now if it was not. Without a mount at the end, it is detached again."""
    fd = find(image)
    if fd is None:
        fd = _attach(image)
    try:
        yield fd
    finally:
        os.close(fd)


def find(image: int) -> int | None:
    """A descriptor of the device that the image is attached to already; None: of none."""
    wanted = os.fstat(image)
    for name in os.listdir(_SYS):
        match = _NAME.match(name)
        if match is None or not os.path.exists(f"{_SYS}/{name}/loop"):
            continue
        with contextlib.suppress(OSError):
            fd = _open_number(int(match[1]))
            if _behind(fd) == (wanted.st_dev, wanted.st_ino):
                return fd
            os.close(fd)
    return None


def _behind(fd: int) -> tuple[int, int]:
    """(device, inode) of the file behind a loop device; (0, 0) of a free one."""
    try:
        info = _INFO.unpack(fcntl.ioctl(fd, _GET_STATUS64, bytes(_INFO.size)))
    except OSError:
        return 0, 0
    return info[0], info[1]


def attached() -> dict[int, str]:
    """Number of each device that has a file -> that file's path as the kernel tells it (loop(4)): of one that was deleted it
    ends in GONE."""
    found: dict[int, str] = {}
    for name in os.listdir(_SYS):
        match = _NAME.match(name)
        with contextlib.suppress(OSError, ValueError):
            if match is not None:
                found[int(match[1])] = _text(f"{_SYS}/{name}/loop/backing_file")
    return found


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().removesuffix("\n")


def let_go(number: int, path: str) -> None:
    """Detaches the device from that file; from one that is in use yet, once it is not. Nothing when it has another by now.
    OSError."""
    fd = _open_number(number)
    try:
        if attached().get(number) == path:  # open: nobody else can be given its number meanwhile
            fcntl.ioctl(fd, _CLR_FD)
    finally:
        os.close(fd)


def _attach(image: int) -> int:
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _AUTOCLEAR, b"ringfence", b"", b"", 0, 0)
    control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(TRIES):
            fd = _open_number(fcntl.ioctl(control, _CTL_GET_FREE))
            try:
                fcntl.ioctl(fd, _CONFIGURE, _CONFIG.pack(image, BLOCK, info))
                return fd
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:
                    raise
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "every free loop device was taken by somebody else")


def _open_number(number: int) -> int:
    """/dev/loopN, made where the host's /dev is not the kernel's own (a container)."""
    path = f"/dev/loop{number}"
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mknod(path, 0o600 | 0o060000, os.makedev(_MAJOR, number))
        return os.open(path, flags)
