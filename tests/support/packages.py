"""Python packages of our own environment, with all that they need, as an archive for a box."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import tarfile


def distributions(names: tuple[str, ...]) -> set[str]:
    """These, and all that they need here."""
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of another system or an extra
            needs = importlib.metadata.requires(name) or []
            found.add(name)
            wanted += [re.split(r"[^A-Za-z0-9._-]", need)[0] for need in needs]
    return found


def pack(archive: tarfile.TarFile, names: tuple[str, ...]) -> None:
    """Below lib/."""
    for name in sorted(distributions(names)):
        for path in importlib.metadata.files(name) or ():
            if ".." not in path.parts and "__pycache__" not in path.parts:
                archive.add(str(path.locate()), f"lib/{path}")
