"""What a box's /usr is: the host's, named by the hash of its package status so that an upgrade of the host shows; or an image's,
a folder that `ringfence image build` has made below the state and named by the digest of all that is in it.

    H / images (0711) / names.json           name -> digits
                      / <32 digits> (0711) / usr etc image.json
                      / .build-* .gone-*     locked (flock(2)) by whoever makes it or takes it away

An image is opened by its id alone, each step of the way the spawner's owner's and writable by nobody else. Of an image's /etc
come the parts that its programs need to be found and linked; names, hosts, certificates stay what they are in every box.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ringfence.spawner import paths, sweep
from ringfence.spawner.children import Children
from ringfence.spawner.config import Config
from ringfence.spawner.errors import NotFound, Refused, SpawnerError, Unavailable, of_os_error
from ringfence.spawner.etc_files import OF_IMAGE
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.paths import StateRoot
from ringfence.spawner.protocol import HOST_IMAGE, IMAGE_ID
from ringfence.spawner.replies import Finding
from ringfence.spawner.tasks import Steps

LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # of a merged /usr
HALF = re.compile(r"\.(build|gone)-[0-9a-f]{1,32}\Z")
_STATUS = "/var/lib/dpkg/status"
_FOLDER, _NAMES, _MOST_NAMES = "images", "names.json", 1 << 16
_BUILD = "build it: ringfence image build NAME; or give the box another: ringfence box upgrade USER --image host"


@dataclass(frozen=True, slots=True)
class Image:
    """Descriptors of the caller's. `etc`: name below /etc -> O_PATH."""

    usr: int
    etc: dict[str, int]
    links: list[tuple[str, str]]  # (value, name), e.g. usr/bin, bin


def of_host() -> str:
    """`host:` and 32 hexadecimal digits; `host` where there is no package status to hash."""
    try:
        with open(_STATUS, "rb") as file:
            return f"host:{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"
    except OSError:
        return HOST_IMAGE


def find(state: StateRoot, name: str) -> str:
    """The id of what a name or an id stands for now. NotFound, Refused."""
    if name == HOST_IMAGE:
        return HOST_IMAGE
    digits = name.partition(":")[2] if IMAGE_ID.match(name) else _names(state).get(name, "")
    image = f"tree:{digits}"
    if not IMAGE_ID.match(image):
        raise NotFound(f"there is no image {name!r}", "ringfence image ls")
    try:
        with _opened(state, image):
            return image
    except Unavailable as error:
        raise NotFound(error.message, "ringfence image ls") from error


def open_image(state: StateRoot, image: str) -> Image:
    """Raises Unavailable: it is not there; Refused: somebody else could have written it."""
    fds: list[int] = []
    try:
        with _opened(state, image) as folder:
            fds.append(_owned(folder, "usr", paths.DIRECTORY))
            for part in OF_IMAGE:
                fds.append(_owned(folder, f"etc/{part}", os.O_PATH))
        links = [(f"usr/{name}", name) for name in LINKS if _is_there(fds[0], name)]
        return Image(fds[0], dict(zip((f"etc/{part}" for part in OF_IMAGE), fds[1:], strict=True)), links)
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if isinstance(error, OSError):
            raise _of(error, image) from error
        raise


@contextlib.contextmanager
def _opened(state: StateRoot, image: str) -> Iterator[int]:
    """Its folder."""
    try:
        top = _owned(state.home, _FOLDER, paths.DIRECTORY)
        try:
            folder = _owned(top, image.partition(":")[2], paths.DIRECTORY)
        finally:
            os.close(top)
    except OSError as error:
        raise _of(error, image) from error
    try:
        yield folder
    finally:
        os.close(folder)


def _of(error: OSError, image: str) -> SpawnerError:
    if error.errno == errno.ENOENT:
        return Unavailable(f"there is no image {image} on this host, or it is not whole", _BUILD)
    return of_os_error(error, f"opening image {image}")


def _owned(dir_fd: int, name: str, flags: int) -> int:
    """No link on the way; what it opens is the owner's, and nobody else writes it. Refused, OSError."""
    fd = open_beneath(dir_fd, name.encode(), flags)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(fd)
        raise Refused(f"an image's {name} can be written by others", "ringfence image rm, then ringfence image build")
    return fd


def _is_there(usr: int, name: str) -> bool:
    """A folder, or a link to one beside it."""
    try:
        os.stat(name, dir_fd=usr, follow_symlinks=False)
    except OSError:
        return False
    return True


def _names(state: StateRoot) -> dict[str, str]:
    try:
        top = _owned(state.home, _FOLDER, paths.DIRECTORY)
    except OSError:
        return {}
    try:
        found = json.loads(paths.read_file(top, _NAMES, _MOST_NAMES) or b"{}")
    except ValueError:
        raise Refused("the names of images cannot be read", "ringfence image ls") from None
    finally:
        os.close(top)
    return {str(name): str(digits) for name, digits in found.items()} if isinstance(found, dict) else {}


# --- half made, half taken away ------------------------------------------------------------------------------------------


def left(state: StateRoot) -> Finding | None:
    """Of a build or a removal that was cut short."""
    with contextlib.suppress(SpawnerError, OSError):
        top = _owned(state.home, _FOLDER, paths.DIRECTORY)
        try:
            names = [name for name in os.listdir(f"/proc/self/fd/{top}") if HALF.match(name)]
            names = sorted(name for name in names if _abandoned(top, name))
        finally:
            os.close(top)
        if names:
            what = f"{len(names)} half-made image{'s' if len(names) > 1 else ''}: {', '.join(names)[:100]}"
            return Finding("image", "", what, "who made it, or took it away, was killed", 0, True)
    return None


def _abandoned(top: int, name: str) -> bool:
    with _locked(top, name) as lock:
        return lock >= 0


@contextlib.contextmanager
def _locked(top: int, name: str) -> Iterator[int]:
    """-1: somebody has it."""
    fd = open_beneath(top, name.encode(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield -1
        else:
            yield fd
    finally:
        os.close(fd)


def take_left(state: StateRoot, config: Config, children: Children) -> Steps[None]:
    """Locked until it is gone: who has just made it waits, and finds that. Raises SpawnerError, OSError."""
    top = _owned(state.home, _FOLDER, paths.DIRECTORY)
    try:
        for name in [each for each in os.listdir(f"/proc/self/fd/{top}") if HALF.match(each)]:
            with _locked(top, name) as lock:
                if lock >= 0:
                    yield from sweep.empty(lock, os.geteuid(), children, groups=config.mode != "shared")
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
