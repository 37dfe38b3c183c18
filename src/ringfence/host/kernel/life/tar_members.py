"""Members of a tar (POSIX.1-2001, pax), so that an archive can be sent as it is made. Pure.

Names are given as bytes of a box: any bytes but NUL. Every member is below one folder, whatever it is called.
"""

from __future__ import annotations

import os
import tarfile
from typing import Literal

BLOCK = 512
END = b"\0" * (2 * BLOCK)
_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}


def header(
    name: bytes,
    kind: Literal["file", "directory", "symlink"] = "file",
    *,
    size: int = 0,
    mode: int = 0o600,
    mtime: int = 0,
    target: bytes = b"",
) -> bytes:
    """ValueError: a name that leads out of the archive."""
    if name.startswith(b"/") or b".." in name.split(b"/") or b"\0" in name + target:
        raise ValueError("a name that leads out of the archive")
    info = tarfile.TarInfo(os.fsdecode(name))
    info.type, info.mode, info.mtime = _TYPES[kind], mode & 0o777, max(0, mtime)
    info.size = size if kind == "file" else 0
    info.linkname = os.fsdecode(target)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    return b"\0" * (-size % BLOCK)


def member(name: bytes, data: bytes, mtime: int) -> bytes:
    return header(name, size=len(data), mtime=mtime) + data + padding(len(data))
