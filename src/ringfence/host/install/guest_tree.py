"""Builds the guest tree that is bound read-only into every box: compiled code only, one digest.

    init.pyc  bundle: the modules of PID 1 in one file (`guest.init.Bundle`)
    lib/ringfence/{wire,guest}/*.pyc: what only loops and others load
    bin/python -> the interpreter  bin/no-root  bin/{apt, apt-get, sudo} -> no-root

Compiled by the interpreter that will run it (a .pyc is of one minor version), with unchecked hashes, so that the same
sources give the same bytes whatever their times are. Standard library only; must run from a clone and from a wheel.
"""

from __future__ import annotations

import hashlib
import marshal
import os
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
ROOMS = ("wire", "guest")
_LOOP = "loop native asks asking compaction conversation digest guard history plain_json rendering tools toolset"
LATE = (*(f"guest/{name}" for name in _LOOP.split()), "wire/messages")  # not of PID 1, whose memory they would be
HEADER = 16  # bytes of a .pyc before its code (PEP 552)
NO_ROOT = ("apt", "apt-get", "sudo")  # before the host's own in PATH: they explain instead of failing oddly

_COMPILE = """
import py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for line in sys.stdin.read().split("\\0"):
    if line:
        source, target, shown = line.split("\\n")
        py_compile.compile(source, cfile=target, dfile=shown, doraise=True, invalidation_mode=mode, optimize=0)
"""


def sources() -> dict[str, Path]:
    """Name of a compiled file in the tree -> source file."""
    late = {f"lib/ringfence/{name}.pyc": PACKAGE / f"{name}.py" for name in LATE}
    return {"init.pyc": PACKAGE / "guest" / "init.py"} | late


def bundled() -> dict[str, Path]:
    """Module in the bundle -> source file."""
    found = {"ringfence": PACKAGE / "__init__.py"}
    for room in ROOMS:
        found[f"ringfence.{room}"] = PACKAGE / room / "__init__.py"
        for source in sorted((PACKAGE / room).glob("*.py")):
            if source.stem not in ("__init__", "init") and f"{room}/{source.stem}" not in LATE:
                found[f"ringfence.{room}.{source.stem}"] = source
    return found


def build(dest: Path, python: str) -> str:
    """Makes the tree at `dest` (which must not exist, or be empty) with the interpreter `python` (absolute path).
    Returns its digest. Files 0444, folders and programs 0755. CalledProcessError when a source cannot be compiled."""
    loose = {name: f"lib/{name.replace('.', '/')}.pyc" for name in bundled()}
    jobs = []
    for name, source in (sources() | {loose[module]: source for module, source in bundled().items()}).items():
        target = dest / name
        target.parent.mkdir(parents=True, exist_ok=True)
        jobs.append(f"{source}\n{target}\n/opt/ringfence/{name.removesuffix('c')}\0")
    subprocess.run([python, "-I", "-S", "-B", "-c", _COMPILE], input="".join(jobs).encode(), check=True)
    _bundle(dest, loose)
    programs = dest / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "python").symlink_to(python)
    (programs / "no-root").write_bytes((PACKAGE / "guest" / "bin" / "no-root").read_bytes())
    for name in NO_ROOT:
        (programs / name).symlink_to("no-root")
    _set_modes(dest)
    return digest(dest)


def _bundle(tree: Path, loose: dict[str, str]) -> None:
    """Gathers compiled files in one. Version 2 of the format: later ones depend on how often an object is in use."""
    codes = {module: (tree / name).read_bytes()[HEADER:] for module, name in loose.items()}
    for name in loose.values():
        (tree / name).unlink()
    (tree / "bundle").write_bytes(marshal.dumps(codes, 2))


def digest(tree: Path) -> str:
    """SHA-256 over the sorted relative paths and what is there: the content of a file, the target of a link."""
    total = hashlib.sha256()
    for path in sorted(tree.rglob("*"), key=lambda item: str(item.relative_to(tree))):
        if path.is_dir() and not path.is_symlink():
            continue
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        name = os.fsencode(path.relative_to(tree))
        total.update(b"%d %d\n" % (len(name), len(content)) + name + content)
    return total.hexdigest()


def _set_modes(tree: Path) -> None:
    tree.chmod(0o755)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o444)
