"""Group B: /proc, /sys, devices, terminals. Opens for writing, and never writes to what it opened."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from functools import partial

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, each, forked, open_for_writing, read

SYSCTLS = (
    "kernel/core_pattern kernel/hostname kernel/modprobe kernel/sysrq kernel/randomize_va_space vm/overcommit_memory "
    "vm/drop_caches fs/suid_dumpable net/ipv4/ip_forward net/core/somaxconn"
)


def sysctls(_place: Place) -> Outcomes:
    return {name: attempt(partial(open_for_writing, f"/proc/sys/{name}")) for name in SYSCTLS.split()}


def _opened(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))


def kernel_memory(_place: Place) -> Outcomes:
    names = "kcore kmsg kpageflags kpagecount slabinfo timer_list vmallocinfo mtrr"
    reads = {name: attempt(partial(_opened, f"/proc/{name}")) for name in names.split()}
    return reads | {"sysrq-trigger": attempt(lambda: open_for_writing("/proc/sysrq-trigger"))}


def listing(place: Place) -> Outcomes:
    return {path: attempt(partial(os.listdir, path)) for path in place.arguments}


def reopening(place: Place) -> Outcomes:
    """Each path opened for writing: directly, and again through a descriptor that was opened without any right."""

    def through(path: str) -> None:
        fd = os.open(path, os.O_PATH)
        try:
            open_for_writing(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)

    direct = {path: attempt(partial(open_for_writing, path)) for path in place.arguments}
    return direct | {f"{path} again": attempt(partial(through, path)) for path in place.arguments}


def devices(_place: Place) -> Outcomes:
    names = "mem kmsg port vda sda nvme0n1 loop0 loop-control kvm fuse net/tun vhost-vsock snapshot input/event0"
    return {name: attempt(partial(_opened, f"/dev/{name}")) for name in names.split()}


def making(place: Place) -> Outcomes:
    """A file made, and taken away again, in each folder."""

    def make(folder: str) -> None:
        path = f"{folder.rstrip('/')}/ringfence-prove"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(path)

    return {folder: attempt(partial(make, folder)) for folder in place.arguments}


def _own_terminal() -> int:
    """A pty of this process's own as its controlling terminal; the terminal's end. For a forked child."""
    _, end = pty.openpty()
    os.setsid()
    fcntl.ioctl(end, termios.TIOCSCTTY, 0)
    return end


def injecting(_place: Place) -> Outcomes:
    """TIOCSTI types into a terminal: here into one of its own. The high half of the request must not get it through."""

    def plain() -> None:
        fcntl.ioctl(_own_terminal(), termios.TIOCSTI, b"x")

    def tioclinux() -> None:
        fcntl.ioctl(_own_terminal(), 0x541C, struct.pack("b", 3))

    return {"TIOCSTI": forked(plain), "TIOCLINUX": forked(tioclinux)}


def terminal(place: Place) -> Outcomes:
    """Whether there is a controlling terminal. Argument `own`: with one of its own first."""

    def look() -> None:
        if place.arguments == ["own"]:
            _own_terminal()
        os.close(os.open("/dev/tty", os.O_RDWR))

    return {"/dev/tty": forked(look)}


def hidden(_place: Place) -> Outcomes:
    """PID 1 of the box: what it was started with, its memory, its descriptors, its root."""
    return each(
        environ=lambda: read("/proc/1/environ"),
        memory=lambda: os.close(os.open("/proc/1/mem", os.O_RDONLY)),
        descriptors=lambda: os.listdir("/proc/1/fd"),
        root=lambda: os.listdir("/proc/1/root/"),
    )


ATTACKS = {
    "sysctls": sysctls,
    "kernel_memory": kernel_memory,
    "listing": listing,
    "reopening": reopening,
    "devices": devices,
    "making": making,
    "injecting": injecting,
    "terminal": terminal,
    "hidden": hidden,
}
