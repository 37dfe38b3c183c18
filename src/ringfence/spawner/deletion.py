"""Deletes what a box left behind, however hostile its shape, without leaving the directory it was given.

Runs as the box's own uid: what that uid may not delete stays, with an error. It must never follow a link, cross a mount
or recurse (walk.py). Names are unlinked relative to an open directory; a name that is swapped in between costs a retry.

Standard library only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from ringfence.spawner.walk import Descent, make_usable

# Subfolders remembered from one scan. More would save scans of wide folders and cost memory in deep ones:
# 3 000 levels x 32 names x 300 bytes = 29 MB at worst.
BATCH = 32
# Folders found not empty after they were emptied, and scans that only found new files, because somebody keeps writing.
# For the whole deletion, so that nested folders do not multiply it.
RETRIES = 4096
FREE_RESCANS = 2  # of each folder: they find it empty unless somebody writes
_GONE = (errno.ENOENT, errno.ESTALE)
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)  # only a folder says so, whatever it was when its name was read
_SWAPPED = (errno.EISDIR, errno.ENOTDIR)  # it was the one for the first call and the other for the second
_NOT_ALLOWED = (errno.EACCES, errno.EPERM)


def never() -> bool:
    return False


def empty(dir_fd: int, *, stop: Callable[[], bool] = never) -> None:
    """Deletes everything below `dir_fd` (not the directory itself); goes on after what cannot be deleted.

    `stop` is asked once a folder; True ends the work. At most five fds are open. Entries that vanish meanwhile are no
    error; entries that appear are deleted too, within bounds.
    Raises OSError, the first one met: EBUSY or EXDEV something is mounted below, EBUSY also it never became empty,
    EPERM, EACCES, ECANCELED by `stop`.
    """
    with Descent(dir_fd, mend=True) as at:
        make_usable(at.fd)
        work = _Deletion(at)
        while work.step():
            if stop():
                raise OSError(errno.ECANCELED, "deletion was stopped")
    if work.first is not None:
        raise work.first


def remove_entry(dir_fd: int, name: bytes) -> OSError | None:
    """Unlinks a file or removes an empty folder; the reason why not. EISDIR, ENOTDIR: it was swapped meanwhile."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except (IsADirectoryError, PermissionError) as refusal:  # POSIX lets unlink of a folder say EPERM
        try:
            os.rmdir(name, dir_fd=dir_fd)
        except NotADirectoryError:
            return refusal
        except OSError as error:
            return error
    except OSError as error:
        return error
    return None


class _Deletion:
    """The state of one `empty`."""

    def __init__(self, at: Descent) -> None:
        self.at = at
        self.first: OSError | None = None
        self.retries = RETRIES

    def step(self) -> bool:
        """One folder further: down into a subfolder, or up from a folder that has none left. False: finished."""
        level = self.at.level
        if not level.todo:
            removed = self._scan()
            # Removing while reading may skip entries: read again until a scan removes nothing.
            if level.todo:
                return True
            level.rescans += 1
            free = level.rescans <= FREE_RESCANS
            return True if removed and (free or self._again()) else self._leave()
        name = level.todo.pop()
        try:
            self.at.down(name)
        except OSError as error:
            # Gone, or no folder any more: the next scan sees what it is now.
            if error.errno not in (*_GONE, errno.ENOTDIR, errno.ELOOP) or not self._again():
                self._keep(name, error)
        return True

    def _scan(self) -> bool:
        """Removes files and empty folders of this level, remembers up to BATCH other folders. Anything removed?"""
        level, removed = self.at.level, False
        with os.scandir(self.at.fd) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                if name in level.kept:
                    continue
                error = remove_entry(self.at.fd, name)
                if error is None:
                    removed = True
                elif error.errno in _NOT_EMPTY or (error.errno in _NOT_ALLOWED and entry.is_dir(follow_symlinks=False)):
                    level.todo.append(name)
                    if len(level.todo) >= BATCH:
                        break
                elif error.errno not in (*_GONE, *_SWAPPED):
                    self._keep(name, error)
        return removed

    def _leave(self) -> bool:
        level = self.at.level
        if len(self.at.levels) == 1:
            return False
        name = self.at.up()
        if name is None:
            return self._again()
        error = remove_entry(self.at.fd, name)
        if error is None or error.errno in _GONE:
            return True
        if level.kept or error.errno not in (*_NOT_EMPTY, *_SWAPPED) or not self._again():
            self._keep(name, error)
        return True

    def _again(self) -> bool:
        """Spends a retry. At the last one the error is EBUSY, and what is left is kept."""
        self.retries -= 1
        if self.retries < 0:
            self.first = self.first or OSError(errno.EBUSY, "entries keep appearing while the folder is emptied")
        return self.retries >= 0

    def _keep(self, name: bytes, error: OSError) -> None:
        self.at.level.kept.add(name)
        self.first = self.first or error
