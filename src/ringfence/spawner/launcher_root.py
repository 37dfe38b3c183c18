"""The root that bubblewrap itself is started in: a small read-mostly tmpfs with /usr, /proc, /dev and the curated /etc,
in a mount namespace of its own that the spawner keeps by descriptor.

bubblewrap's own set-up thus never has the host's tree within reach: a link planted for its next start leads into this
root, where nothing is. Each start joins the namespace, copies it, and binds the box's sources below /source. Must never
hold anything of one box.
"""

from __future__ import annotations

import contextlib
import os
import signal

from ringfence.spawner import etc_files, syscalls, trust
from ringfence.spawner.errors import Unavailable, of_os_error
from ringfence.spawner.images import LINKS
from ringfence.spawner.profile import SOURCE

_STAGE = b"/tmp"  # any directory that every host has; covered in the child's private namespace only
BOX_SOURCES = ("guest", "home", "workspace", "tmp", "usr")  # usr: of a box with an image


def host_links() -> list[tuple[str, str]]:
    """(value, name) of the links of a merged /usr. Unavailable: a host whose /bin is no link."""
    links = [(os.readlink(f"/{name}").lstrip("/"), name) for name in LINKS if os.path.islink(f"/{name}")]
    if "bin" not in (name for _, name in links):
        raise Unavailable("this host has no merged /usr", "apt-get install usrmerge")
    return links


def stamp(root_ca: str) -> tuple[tuple[int, int, int], ...]:
    """Changes when a bound file of the host's was replaced (ld.so.cache after every installation), or the company's roots."""
    found = []
    parts = (*etc_files.FROM_HOST, *etc_files.FROM_HOST_FILES, trust.SYSTEM)
    for name in ("/usr", *(f"/etc/{part}" for part in parts), *([root_ca] if root_ca else [])):
        with contextlib.suppress(OSError):
            status = os.stat(name)
            found.append((status.st_dev, status.st_ino, 0 if name == "/usr" else status.st_mtime_ns))
    return tuple(found)


class LauncherRoot:
    """`namespace`: descriptor to join. Made again when the host's files changed. `root_ca`: path of the company's roots, or ""."""

    def __init__(self, root_ca: str) -> None:
        self.links = host_links()
        self._root_ca = root_ca
        self._stamp = stamp(root_ca)
        self.namespace = _make(self.links, root_ca)

    def refresh(self) -> None:
        """Cheap when nothing changed: some stat calls."""
        current = stamp(self._root_ca)
        if current != self._stamp:
            fresh = _make(self.links, self._root_ca)
            os.close(self.namespace)
            self.namespace, self._stamp = fresh, current


def _make(links: list[tuple[str, str]], root_ca: str) -> int:
    """Builds the namespace in a child and keeps it by descriptor. Raises SpawnerError."""
    done_read, done_write = os.pipe()
    hold_read, hold_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hold_write)
        _child(links, root_ca, done_write, hold_read)
    os.close(done_write)
    os.close(hold_read)
    try:
        answer = os.read(done_read, 4096)
        if answer != b"ok":
            raise Unavailable(f"the launcher's root cannot be made: {answer.decode(errors='replace')}")
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    except OSError as error:
        raise of_os_error(error, "making the launcher's root") from error
    finally:
        os.close(hold_write)
        os.close(done_read)
        os.waitpid(pid, 0)


def _child(links: list[tuple[str, str]], root_ca: str, done: int, hold: int) -> None:
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _build(links, trust.company(root_ca))
        os.write(done, b"ok")
        os.read(hold, 1)  # until the parent has opened the namespace
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(done, repr(error).encode()[:4000])
    finally:
        os._exit(0)


def _build(links: list[tuple[str, str]], company: bytes) -> None:
    os.umask(0o022)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, b"/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    # Opened after unshare: a mount can be cloned only in the namespace that it is in. Recursive: in a user namespace
    # what lies below is locked to it (EINVAL otherwise).
    sources = {target: syscalls.clone_tree(fd, recursive=True) for target, fd in _host_trees().items()}
    # 8 MiB: the generated files and directories need some 100 KiB, the host's roots 220 (trust.MAX_ROOTS at most), the company's
    # trust.MAX_COMPANY at most, twice.
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount(b"tmpfs", _STAGE, b"tmpfs", flags, b"size=8m,mode=0755")
    root = _STAGE.decode()
    for name in ("usr", "proc", "dev", "tmp", "old", SOURCE[1:], f"{SOURCE[1:]}/etc", f"{SOURCE[1:]}/etc/ssl"):
        os.mkdir(f"{root}/{name}")
    for name in BOX_SOURCES:
        os.mkdir(f"{root}{SOURCE}/{name}")
    for value, name in links:
        os.symlink(value, f"{root}/{name}")
    os.symlink(f"{SOURCE[1:]}/etc", f"{root}/etc")
    for name, text in etc_files.GENERATED.items():
        with open(f"{root}{SOURCE}/etc/{name}", "x", encoding="utf-8") as file:
            file.write(text)
    _write_trust(f"{root}{SOURCE}/etc/{trust.FOLDER}", company)
    for target, tree in sources.items():
        _attach(tree, f"{root}/{target}")
    for part in etc_files.OF_IMAGE:
        _place(f"{root}{SOURCE}/etc/{part}", folder=part in etc_files.FOLDERS_OF_IMAGE)
    os.chdir(root)
    syscalls.pivot_root(b".", b"old")
    os.chdir("/")
    syscalls.umount(b"/old", syscalls.MNT_DETACH)
    os.rmdir("/old")


def _write_trust(folder: str, company: bytes) -> None:
    """What a box without a CA of its own trusts: the host's roots and the company's. One that has is shown its own over these."""
    os.mkdir(folder)
    for name, data in ((trust.CERTIFICATE, company), (trust.BUNDLE, trust.joined(trust.roots(), company))):
        with open(f"{folder}/{name}", "xb") as file:
            file.write(data)


def _host_trees() -> dict[str, int]:
    """Target in the root -> O_PATH descriptor of the host's source."""
    found = {name: os.open(f"/{name}", os.O_PATH | os.O_DIRECTORY) for name in ("usr", "proc", "dev")}
    for part in (*etc_files.FROM_HOST, *etc_files.FROM_HOST_FILES):
        with contextlib.suppress(OSError):
            found[f"{SOURCE[1:]}/etc/{part}"] = os.open(f"/etc/{part}", os.O_PATH)
    return found


def _attach(tree: int, target: str) -> None:
    _place(target, folder=os.path.isdir(f"/proc/self/fd/{tree}"))
    syscalls.attach(tree, target.encode())
    os.close(tree)


def _place(target: str, *, folder: bool) -> None:
    """Something to mount on; what is there stays."""
    if folder:
        os.makedirs(target, exist_ok=True)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))
