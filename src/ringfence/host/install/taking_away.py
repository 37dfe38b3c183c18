"""Deletes a folder with all that is in it, and nothing that is only mounted there. Blocks.

Folders are taken apart from above: what is in one goes, folders in it are moved up into the topmost, which is taken apart until it is
empty. So nothing has to go deep, whatever a box has made, and the kernel moves no folder out of another mount. What is deleted is named
relative to an open folder. Must never follow a link.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def take_away(top: Path, last: str = "") -> None:
    """OSError, with the path; EBUSY: something is mounted at it. `last`: the name of the file in it that is deleted last, so that one that
    was killed in between is known for what it is. What is left then is finished by asking again."""
    fd = os.open(top, _FOLDER)
    try:
        while _some(top, fd, fd, _mount_of(fd), last):
            pass
        if last:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(top)


def _some(top: Path, fd: int, into: int, mount: str, last: str = "") -> bool:
    """Everything in a folder but folders, which are moved into `into`, or, if they are there, taken apart. Whether there was any."""
    found = False
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if entry.name != last]
    for name, is_folder in sorted(names):  # what is left of one that failed does not hang on the file system
        found = True
        try:
            if not is_folder:
                os.unlink(name, dir_fd=fd)
            elif fd != into:
                os.rename(name, f".gone-{secrets.token_hex(8)}", src_dir_fd=fd, dst_dir_fd=into)
            else:
                _folder(top, fd, name, mount)
        except OSError as error:
            mounted = error.errno in (errno.EBUSY, errno.EXDEV)
            number = errno.EBUSY if mounted else error.errno
            text = "something is mounted there" if mounted else error.strerror
            raise OSError(number, text, error.filename if "/" in str(error.filename) else str(top / name)) from error
    return found


def _folder(top: Path, fd: int, name: str, mount: str) -> None:
    folder = os.open(name, _FOLDER, dir_fd=fd)
    try:
        if _mount_of(folder) != mount:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(top / name))
        _some(top / name, folder, fd, mount)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=fd)


def _mount_of(fd: int) -> str:
    """The id of the mount that it is on (proc(5)): two places of one file system have the same device, and two of these."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))
