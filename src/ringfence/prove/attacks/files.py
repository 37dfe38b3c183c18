"""Group A: other people's files, the host's secrets, and what the view tells of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, each, machine, read, syscall

HANDLE = {"x86_64": (303, 304), "aarch64": (264, 265)}  # name_to_handle_at, open_by_handle_at


def others(place: Place) -> Outcomes:
    """Arguments: a file name that must not be found, then folders to walk."""
    secret, *folders = place.arguments

    def search(folder: str) -> Callable[[], str]:
        def walk() -> str:
            os.listdir(folder)
            for directory, names, files in os.walk(folder):
                if secret in names + files:
                    return os.path.join(directory, secret)
            raise FileNotFoundError(2, folder)

        return walk

    return {folder: attempt(search(folder)) for folder in folders}


def reading(place: Place) -> Outcomes:
    return {path: attempt(partial(read, path)) for path in place.arguments}


def mine_and_theirs(place: Place) -> Outcomes:
    """Arguments: a file of another's and a folder of another's: read the one, make a file in the other."""
    file, folder = place.arguments

    def make() -> None:
        name = os.path.join(folder, "planted")
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.unlink(name)

    return each(list=lambda: os.listdir(folder), read=lambda: read(file), write=make)


def aliases(place: Place) -> Outcomes:
    """The same path by other names: through /proc and upwards out of every root."""
    path = place.arguments[0]
    up = "/.." * 12
    starts = ("/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/thread-self/root", "/workspace")
    return {start: attempt(partial(read, f"{start}{up}{path}")) for start in starts}


def words(place: Place) -> Outcomes:
    """Arguments: `,`-separated words, then files. Done: a file that can be read has one of the words."""
    wanted, *paths = place.arguments

    def scan(path: str) -> str:
        text = read(path, 1 << 20)
        found = [word for word in wanted.split(",") if word.encode() in text]
        if not found:
            raise ValueError("none of the words")
        return found[0]

    return {path: _short(attempt(partial(scan, path))) for path in paths}


def _short(outcome: str) -> str:
    return outcome.removeprefix("ValueError: ")


def handles(_place: Place) -> Outcomes:
    """open_by_handle_at(2), which is `shocker`: a handle of the file system's root is guessed."""
    name_to, open_by = HANDLE.get(machine(), HANDLE["x86_64"])
    handle = ctypes.create_string_buffer(8 + 128)
    ctypes.cast(handle, ctypes.POINTER(ctypes.c_uint))[0] = 128
    mount = ctypes.c_int()
    root = ctypes.create_string_buffer(bytes([8, 0, 0, 0, 1, 0, 0, 0, 2]) + bytes(7))
    return each(
        name_to_handle_at=lambda: None if syscall(name_to, -100, b"/tmp", handle, ctypes.byref(mount), 0) == 0 else 1,
        open_by_handle_at=lambda: syscall(open_by, os.open("/tmp", os.O_RDONLY), root, 0),
    )


def mount_flags(place: Place) -> Outcomes:
    """Done: a set-user-id bit or a device node would count below the path."""

    def look(path: str) -> str:
        flags = os.statvfs(path).f_flag
        lacks = [name for name, bit in (("nosuid", os.ST_NOSUID), ("nodev", os.ST_NODEV)) if not flags & bit]
        if not lacks:
            raise ValueError("nosuid, nodev")
        return ", ".join(lacks)

    return {path: _short(attempt(partial(look, path))) for path in place.arguments}


def processes(place: Place) -> Outcomes:
    """Argument: a word of a command line that only a process of the host's has."""
    word = place.arguments[0].encode()

    def look() -> str:
        me = str(os.getpid())
        for name in os.listdir("/proc"):
            if name.isdigit() and name != me and word in read(f"/proc/{name}/cmdline", 1 << 16):
                return f"process {name}"
        raise ValueError("no process of the host's")

    return {"look": _short(attempt(look))}


def setuid_file(place: Place) -> Outcomes:
    """Argument: a program with its set-user-id bit. Done: the caller can start it."""
    path = place.arguments[0]
    return each(look=lambda: oct(os.stat(path).st_mode), start=lambda: os.close(os.open(path, os.O_RDONLY)))


ATTACKS = {
    "others": others,
    "reading": reading,
    "mine_and_theirs": mine_and_theirs,
    "aliases": aliases,
    "words": words,
    "handles": handles,
    "mount_flags": mount_flags,
    "processes": processes,
    "setuid_file": setuid_file,
}
