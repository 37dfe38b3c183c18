"""What tests of whole backups share: trees that are compared by what is in them, and installations that come and go on one host."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringfence.bench.throwaway import CommandFailed, state_base
from ringfence.prove import remains
from ringfence.prove.remains import Facts
from tests.support.installation import Installation

# What a box may do to whoever packs it; what no copy has (a FIFO, a set-id bit) is in it too.
HOSTILE = r"""
import os
os.chdir(os.environ["HOME"])
os.makedirs("deep/" + "/".join("x" * 100 for _ in range(20)))
os.makedirs("odd")
for name in (b"odd/not \xff utf-8", b"odd/new\nline", b"odd/-rf", b"odd/" + b"n" * 255):
    open(name, "wb").write(name)
os.symlink("/etc/shadow", "odd/out")
os.symlink("../../../../../../etc", "odd/up")
os.symlink("loop", "odd/loop")
open("odd/one", "w").write("several names")
os.link("odd/one", "odd/two")
with open("odd/sparse", "wb") as file:
    file.truncate(200 << 20)
    file.seek(100 << 20)
    file.write(b"in the middle")
os.mkfifo("odd/fifo")
open("odd/setuid", "w").write("x")
os.chmod("odd/setuid", 0o4755)
open("odd/unreadable", "w").write("mine")
os.chmod("odd/unreadable", 0)
os.mkdir("odd/closed", 0o700)
open("odd/closed/in", "w").write("mine")
os.chmod("odd/closed", 0)
open("/workspace/w", "w").write("work")
"""
# Every path with kind, mode, time of change, link and content; without what no copy has.
DIGEST = r"""
import hashlib, os, stat
total = hashlib.sha256()
for top in (os.environ["HOME"], "/workspace"):
    for folder, folders, files in os.walk(top.encode()):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            seen = os.lstat(path)
            if stat.S_ISFIFO(seen.st_mode):
                continue
            mode = seen.st_mode & 0o777
            link = os.readlink(path) if stat.S_ISLNK(seen.st_mode) else b""
            total.update(b"%s\0%o\0%o\0%d\0%s\0" % (path, stat.S_IFMT(seen.st_mode), mode, seen.st_mtime_ns, link))
            if stat.S_ISDIR(seen.st_mode) and mode == 0:
                os.chmod(path, 0o700)
                total.update(b" ".join(sorted(os.listdir(path))))
                os.chmod(path, 0)
            elif stat.S_ISREG(seen.st_mode):
                os.chmod(path, mode | 0o700)
                total.update(b"%d %d\0" % (seen.st_size, seen.st_nlink))
                with open(path, "rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
                os.chmod(path, mode)
print(total.hexdigest())
"""
# Writes a, then b, and only then the next number: whoever reads both at one moment finds b, or b + 1, in a.
WRITER = """
import os
for n in range(1, 10**9):
    for name in ("a", "b"):
        with open(name + ".new", "w") as file:
            file.write(str(n))
        os.rename(name + ".new", name)
"""


def python(made: Installation, user: str, code: str) -> str:
    return made.ok("exec", user, "--", "python3", "-c", code).text.strip()


def facts_of(home: Path) -> Facts:
    said = json.loads((home / "installation.json").read_text())
    return Facts(said["id"], (said["ids"][0], said["ids"][1]))


@contextlib.contextmanager
def home(name: str) -> Iterator[Path]:
    """A name for a state that somebody is about to make, and that is gone at the end whatever is in it."""
    place = state_base() / f"ringfence-test-{name}"
    try:
        yield place
    finally:
        for path in (place, *place.parent.glob(f"{place.name}.*")):
            away(path)


@contextlib.contextmanager
def at(place: Path, *options: str, started: bool = True) -> Iterator[Installation]:
    """The installation that is there now."""
    made = Installation(place)
    try:
        if started:
            made.start(*options)
        yield made
    finally:
        made.stop()
        made.log.unlink(missing_ok=True)


def away(place: Path) -> None:
    """Another host would not have it."""
    if not place.exists():
        return
    there = facts_of(place) if (place / "installation.json").exists() else None
    with contextlib.suppress(CommandFailed):
        Installation(place).run("uninstall", "--purge", "--yes", "--force")
    if there is not None and place.exists():  # else its ids may be another's by now
        remains.end_by_force(there, place)


def refused(made: Installation, *words: str) -> tuple[int, dict[str, Any]]:
    result = made.run(*words, "--json")
    error: dict[str, Any] = result.json()["error"]
    return result.code, error
