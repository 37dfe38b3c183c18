"""Small systems to build images of: the interpreter of this host, a shell, what both are linked with, and a mark by which a box
shows which it has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PYTHON = "/usr/bin/python3"
MARK = "usr/share/ringfence-test/mark"
_PROGRAMS = ("/usr/bin/dash", "/usr/bin/bash", "/usr/bin/cat", "/usr/bin/ls", "/usr/bin/sleep", "/usr/bin/awk")
_LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "distutils", "dist-packages"
)


def system(folder: Path, mark: str, *, python: bool = True) -> Path:
    """A system's root at `folder`, which is made: some 60 MB."""
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc/alternatives", "etc/ld.so.conf.d"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    interpreter = Path(PYTHON).resolve()
    library = Path("/usr/lib") / interpreter.name
    programs = [Path(each).resolve() for each in _PROGRAMS]
    for program in [*programs, *([interpreter] if python else [])]:
        shutil.copy2(program, folder / "usr/bin" / program.name)
    (folder / "usr/bin/sh").symlink_to("dash")
    awk = Path("/usr/bin/awk").resolve().name
    (folder / "usr/bin/awk").symlink_to("/etc/alternatives/awk")
    (folder / "etc/alternatives/awk").symlink_to(f"/usr/bin/{awk}")
    loaded = [str(interpreter), *map(str, programs)]
    if python:
        (folder / "usr/bin/python3").symlink_to(interpreter.name)
        shutil.copytree(library, folder / f"usr/lib/{library.name}", symlinks=True, ignore=_LEFT_OUT)
        loaded += map(str, (library / "lib-dynload").glob("*.so"))
    for path in _linked(loaded):
        target = folder / "usr" / path.relative_to("/usr" if path.is_relative_to("/usr") else "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    remark(folder, mark)
    return folder


def remark(folder: Path, mark: str) -> None:
    (folder / MARK).parent.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(f"{mark}\n")


def _linked(programs: list[str]) -> set[Path]:
    """Libraries by the names that the loader asks for."""
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    words = [
        word for line in told.splitlines() if line.startswith("\t") for word in line.split() if word.startswith("/")
    ]
    return {Path(word) for word in words if os.path.isfile(word)}
