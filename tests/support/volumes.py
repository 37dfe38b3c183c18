"""Small volumes of their own, and what fills them. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def volume(place: Path, mebibytes: int, lazy: bool = False) -> Iterator[Path]:
    """Blocks. A tmpfs at `place`, which is made. CalledProcessError: somebody still has a file of it open at the end, and it
    is not `lazy`."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", *(["--lazy"] if lazy else []), place], check=True)


def fill(volume: Path, but: int = 0) -> Path:
    """Every byte that is free but so many, as somebody else's file: in blocks, not a hole."""
    ballast, free = volume / "ballast", os.statvfs(volume)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - but)
    return ballast
