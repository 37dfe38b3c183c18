"""Everything one start needs, opened by the spawner beforehand: a bundle of descriptors that is closed as one.

Must never open anything below a directory that a box can write without paths.py's checks.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from ringfence.spawner import etc_files, images, network, paths, profile, protocol, seccomp, trust
from ringfence.spawner.cgroups import Cgroups
from ringfence.spawner.config import Config
from ringfence.spawner.launcher_root import LauncherRoot
from ringfence.spawner.limits import Shares
from ringfence.spawner.paths import StateRoot
from ringfence.spawner.protocol import DiskBy
from ringfence.spawner.registry import Entry

FIRST_FD = 3  # the guest's listening socket; the rest follows without a gap


@dataclass(frozen=True, slots=True)
class Host:
    """What the spawner found and made at start-up."""

    config: Config
    state: StateRoot
    cgroups: Cgroups
    root: LauncherRoot
    runtime: int  # O_PATH of the guest's tree
    rules: bool  # nf_tables works
    bwrap_version: str
    weak: tuple[str, ...]
    disk: DiskBy  # what bounds the tree of a new box


@dataclass(frozen=True, slots=True)
class Sources:
    """Open descriptors of one start. `mounts`: name below the launcher's /source -> O_PATH source."""

    listen: int
    main: tuple[int, ...]  # cgroup.procs of the leaf for PID 1
    cmds: tuple[int, ...]  # of the leaf for commands; PID 1 inherits them
    network: int
    mounts: dict[str, int]
    seccomp: int
    arguments: int


class Opened:
    """Descriptors that are closed together, also when opening stopped half-way."""

    def __init__(self) -> None:
        self._fds: list[int] = []

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)

    def keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd


def open_all(host: Host, entry: Entry, shares: Shares, image: str, opened: Opened) -> Sources:
    """Raises SpawnerError or OSError; whatever was opened is in `opened`. `image`: id, or `host`."""
    links, own = _usr(host, image, opened)
    with paths.box_directory(host.state, entry.box) as box:
        tree = opened.keep(paths.open_tree(box, entry.uid))
        mounts = {name: opened.keep(paths.open_part(tree, name, entry.uid)) for name in paths.parts(entry.kind)}
        mounts["guest"] = opened.keep(os.dup(host.runtime))
        mounts["etc/machine-id"] = opened.keep(_machine_id(box, host.config.installation, entry.box))
        mounts |= {f"etc/{name}": opened.keep(fd) for name, fd in trust.open_parts(box, host.config.root_ca).items()}
        mounts |= own
        listen = opened.keep(_bind_control(box, host.config))
    main = tuple(opened.keep(fd) for fd in host.cgroups.open_leaf(entry.box, "main"))
    cmds = tuple(opened.keep(fd) for fd in host.cgroups.open_leaf(entry.box, "cmds"))
    seen = profile.view(entry.kind)
    return Sources(
        listen=listen,
        main=main,
        cmds=cmds,
        network=opened.keep(network.make(rules=host.rules and seen.routes, returns=host.config.mode == "root")),
        mounts=mounts,
        seccomp=opened.keep(_memory_file(seccomp.program())),
        arguments=opened.keep(_memory_file(profile.arguments(_plan(links, shares, len(cmds), seen, own=bool(own))))),
    )


def numbers(cmds: int) -> profile.Descriptors:
    """Which descriptors bubblewrap gets, after the listening socket, `cmds` cgroup files and the argument list."""
    after = FIRST_FD + 1 + cmds + 1
    return profile.Descriptors(seccomp=after, info=after + 1, block=after + 2)


def _usr(host: Host, image: str, opened: Opened) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """(links into /usr, mounts that are the image's): of the host's there are none."""
    if image == protocol.HOST_IMAGE:
        return host.root.links, {}
    found = images.open_image(host.state, image)
    for fd in (found.usr, *found.etc.values()):
        opened.keep(fd)
    return found.links, {"usr": found.usr, **found.etc}


def _plan(
    links: list[tuple[str, str]], shares: Shares, cmds: int, seen: profile.View, *, own: bool
) -> list[profile.Operation]:
    usr = profile.IMAGE if own else "/usr"
    return profile.plan(links, shares.shm, shares.run, numbers(cmds), seen, usr)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("ringfence")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _machine_id(box_fd: int, installation: str, box: str) -> int:
    control = paths.open_control(box_fd)
    try:
        if paths.read_file(control, "machine-id") is None:
            text = etc_files.machine_id(installation, box)
            paths.write_file(control, "machine-id", text.encode(), 0o644, durable=False)
        return os.open("machine-id", os.O_PATH | os.O_NOFOLLOW, dir_fd=control)
    finally:
        os.close(control)


def _bind_control(box_fd: int, config: Config) -> int:
    """ctl/host.sock, bound and not listening, 0600 of the kernel's account. Bound through /proc/self/fd: the path of a
    unix socket has at most 107 bytes (unix(7)), the state directory's may have more."""
    control = paths.open_control(box_fd)
    before = os.umask(0o177)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("host.sock", dir_fd=control)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as end:
            end.bind(f"/proc/self/fd/{control}/host.sock")
            os.chown("host.sock", config.kernel_uid, config.kernel_gid, dir_fd=control, follow_symlinks=False)
            return end.detach()
    finally:
        os.umask(before)
        os.close(control)
