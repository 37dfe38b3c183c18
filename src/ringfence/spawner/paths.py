"""The state tree, derived and opened by the spawner alone: a box id in, a descriptor out.

Every open goes through openat2 from the state root's descriptor with NO_SYMLINKS and checks owner and mode (threats
S01, S03). Must never take a path, or a part of one, from a request or from a file that a box can write.

    H (0711) / boxes (0711) / <box> (0711) / box.json live.json ctl/ (0711) tree/ (0700, the box's) / home workspace tmp
                              and where the tree is an image of its own, mounted: disk.img disk.json
             / spawner (0700) / lock next_id pool.json
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringfence.spawner.errors import NEW_FILES, Failed, NotFound, NoTree, Refused, StartRefused, of_os_error
from ringfence.spawner.openat import open_beneath
from ringfence.spawner.protocol import BoxKind

DIRECTORY = os.O_PATH | os.O_DIRECTORY
TREES = ("home", "workspace", "tmp")
TREE_MODES = {"home": 0o700, "workspace": 0o700, "tmp": 0o1777}


def parts(kind: BoxKind) -> tuple[str, ...]:
    """Of its tree. A skill's jail has no HOME."""
    return TREES[1:] if kind == "skill" else TREES


@dataclass(frozen=True, slots=True)
class StateRoot:
    """Open descriptors of H, H/boxes and H/spawner. All O_PATH."""

    home: int
    boxes: int
    spawner: int


def _owned(fd: int, uid: int, forbidden: int, what: str) -> None:
    """Refused unless `fd` is of `uid` and has none of the `forbidden` mode bits."""
    status = os.fstat(fd)
    if status.st_uid != uid or stat.S_IMODE(status.st_mode) & forbidden:
        mode = stat.S_IMODE(status.st_mode)
        raise Refused(
            f"{what} has owner {status.st_uid} and mode {mode:04o}, wanted owner {uid} without {forbidden:04o}"
        )


def open_state(home: str) -> StateRoot:
    """Raises StartRefused: missing, a link, of somebody else, or writable by others."""
    owner = os.geteuid()
    try:
        fd = os.open(home, DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        reason = "is a link" if os.path.islink(home) else str(error.strerror)
        raise StartRefused(f"the state directory cannot be used: {home} {reason}", "ringfence init") from error
    try:
        _owned(fd, owner, 0o022, f"the state directory {home}")
        boxes, spawner = (open_beneath(fd, name, DIRECTORY) for name in (b"boxes", b"spawner"))
        _owned(boxes, owner, 0o022, f"{home}/boxes")
        _owned(spawner, owner, 0o077, f"{home}/spawner")
    except Refused as error:
        raise StartRefused(error.message, f"chown {owner} PATH; chmod go-w PATH (0700 for spawner)") from error
    except OSError as error:
        raise StartRefused(f"the state directory {home} is damaged: {error}", "ringfence init") from error
    return StateRoot(fd, boxes, spawner)


@contextlib.contextmanager
def box_directory(state: StateRoot, box: str) -> Iterator[int]:
    """The box's directory. NotFound; Refused: a link, another owner, writable by others."""
    try:
        fd = open_beneath(state.boxes, box.encode(), DIRECTORY)
    except FileNotFoundError:
        raise NotFound("no such box") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused("the box's directory is not a directory", "ringfence doctor") from error
        raise of_os_error(error, "opening the box") from error
    try:
        _owned(fd, os.geteuid(), 0o022, "the box's directory")
        yield fd
    finally:
        os.close(fd)


def open_control(box_fd: int) -> int:
    """The box's ctl directory."""
    fd = _open_in(box_fd, b"ctl")
    return _checked(fd, os.geteuid(), 0o022, "ctl")


def open_tree(box_fd: int, uid: int, name: str = "tree") -> int:
    """The box's tree, or one beside it: of its uid, 0700."""
    return _checked(_open_in(box_fd, name.encode()), uid, 0o077, name)


def open_part(tree_fd: int, name: str, uid: int) -> int:
    """home, workspace or tmp of a tree. Its owner the box cannot have changed. Its mode it may have: the owner's own
    rights are given back, without which neither a start nor a removal, which run as the box, would ever work again."""
    fd = _checked(_open_in(tree_fd, name.encode()), uid, 0, name)
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & 0o700 != 0o700:
        os.chmod(f"/proc/self/fd/{fd}", mode | 0o700)  # names the inode that was checked
    return fd


def _open_in(dir_fd: int, name: bytes) -> int:
    try:
        return open_beneath(dir_fd, name, DIRECTORY)
    except FileNotFoundError:
        if name == b"tree":
            raise NoTree("the files of the box are missing", NEW_FILES) from None
        raise Failed(f"the box has no {name.decode()}", "ringfence doctor") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise Refused(f"{name.decode()} of the box is not a directory", "ringfence doctor") from error
        raise of_os_error(error, f"opening {name.decode()} of the box") from error


def _checked(fd: int, uid: int, forbidden: int, what: str) -> int:
    try:
        _owned(fd, uid, forbidden, f"{what} of the box")
    except Refused:
        os.close(fd)
        raise
    return fd


def make_directory(dir_fd: int, name: str, mode: int, uid: int) -> None:
    """Makes it if it is not there and sets mode and owner, the owner last: who has it finds the mode right, whatever
    happened in between. What is there must be a directory, not a link."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=dir_fd)
    fd = open_beneath(dir_fd, name.encode(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchmod(fd, mode)
        os.fchown(fd, uid, uid)
    finally:
        os.close(fd)


def make_box(box_fd: int, uid: int, names: Sequence[str] = TREES) -> None:
    """ctl/ and tree/ with its parts, `names`. Idempotent."""
    make_control(box_fd)
    make_tree(box_fd, "tree", uid, names)


def make_control(box_fd: int) -> None:
    """ctl/, in which nothing is that a start does not write anew. Idempotent."""
    make_directory(box_fd, "ctl", 0o711, os.geteuid())


def missing_control(box_fd: int) -> None:
    """`make_control` where nothing has that name; what has it is left as it is, to be refused by whoever opens it."""
    try:
        os.stat("ctl", dir_fd=box_fd, follow_symlinks=False)
    except FileNotFoundError:
        make_control(box_fd)


def make_tree(box_fd: int, tree_name: str, uid: int, names: Sequence[str]) -> None:
    """Idempotent: a tree that already has its owner is whole and is left alone; until then it is the spawner's, so nobody
    else can plant anything in it meanwhile."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(tree_name, 0o700, dir_fd=box_fd)
    tree = _open_in(box_fd, tree_name.encode())
    try:
        if os.fstat(tree).st_uid == uid and uid != os.geteuid():
            return
        with contextlib.suppress(FileNotFoundError):
            os.rmdir("lost+found", dir_fd=tree)  # of a fresh ext4
        for name in names:
            make_directory(tree, name, TREE_MODES[name], uid)
    finally:
        os.close(tree)
    make_directory(box_fd, tree_name, 0o700, uid)


def read_file(dir_fd: int, name: str, limit: int = 1 << 16) -> bytes | None:
    """A regular file that the spawner's owner alone may write, or None. Refused: anything else of that name."""
    try:
        fd = open_beneath(dir_fd, name.encode(), os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise of_os_error(error, f"reading {name}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Refused(f"{name} is not a file", "ringfence doctor")
        _owned(fd, os.geteuid(), 0o022, name)
        return os.read(fd, limit)
    finally:
        os.close(fd)


def write_file(dir_fd: int, name: str, data: bytes, mode: int, *, durable: bool = True) -> None:
    """Replaces the file atomically: after a crash there is the old one or the new one, whole. `durable`: the new one
    survives a power cut once this returns (live.json need not: another boot makes it void)."""
    temporary = f".{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=dir_fd)
    try:
        fd = open_beneath(dir_fd, temporary.encode(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.fchmod(fd, mode)
            os.write(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        if durable:
            sync_directory(dir_fd)
    except OSError as error:
        raise of_os_error(error, f"writing {name}") from error


def sync_directory(dir_fd: int) -> None:
    """Makes names in the directory durable. An O_PATH descriptor cannot be synced: it is opened again."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
