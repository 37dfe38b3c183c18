"""An archive of a tree is a pax tar, which every tar reads: its entries, and their way into bytes. Opens nothing.

The headers are tarfile's. What is read back is in archive_reader.py. Standard library only; tarfile is loaded before the
fork: after it there is no /usr to load from.
"""

from __future__ import annotations

import errno
import os
import tarfile
from dataclasses import dataclass
from typing import Literal

from ringfence.spawner.files_protocol import FilesError

BLOCK = tarfile.BLOCKSIZE
MAX_PATH = 4095  # bytes: PATH_MAX of linux/limits.h without its NUL
# Stretches of data of a sparse file that are told apart; one with more keeps the zeros between the later ones.
MAX_STRETCHES = 1 << 16
CODING = ("utf-8", "surrogateescape")

Kind = Literal["file", "directory", "symlink", "hardlink"]
_TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
}


@dataclass(frozen=True, slots=True)
class Entry:
    path: bytes  # below the tree
    kind: Kind
    mode: int = 0o644  # permission bits; what came in may have more
    mtime_ns: int = 0
    size: int = 0  # of a file, with its holes
    target: bytes = b""  # of a link
    stretches: tuple[tuple[int, int], ...] | None = None  # (offset, length) of what is data; None: all of it


def shown(path: bytes) -> str:
    """For an error: of one line and bounded."""
    text = path.decode(errors="backslashreplace")
    return repr(text if len(text) <= 120 else f"{text[:60]}...{text[-57:]}")


def refused(path: bytes, why: str) -> FilesError:
    return FilesError("refused", f"{shown(path)}: {why}")


def head(entry: Entry) -> bytes:
    """The header blocks of an entry and, of a sparse file, its map. After them come its data, then `padding`."""
    info = tarfile.TarInfo(entry.path.decode(*CODING))
    info.type, info.mode, info.linkname = _TYPES[entry.kind], entry.mode & 0o777, entry.target.decode(*CODING)
    records = {"mtime": _seconds(entry.mtime_ns)}
    drawn = b""
    if entry.stretches is not None:
        drawn = _map(entry.stretches)
        records |= {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
        records |= {"GNU.sparse.name": info.name, "GNU.sparse.realsize": str(entry.size)}
    info.size = len(drawn) + stored(entry) if entry.kind == "file" else 0
    info.pax_headers = records
    return info.tobuf(tarfile.PAX_FORMAT, *CODING) + drawn


def stored(entry: Entry) -> int:
    """Bytes of its content that are in the archive."""
    if entry.kind != "file":
        return 0
    return entry.size if entry.stretches is None else sum(length for _, length in entry.stretches)


def stretches(fd: int, size: int) -> tuple[tuple[int, int], ...]:
    """Where its data is (lseek(2), SEEK_DATA). The last one ends the file, of no length when that is a hole."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data up to the end
                raise
            break
        if begin >= size:
            break
        last = len(found) == MAX_STRETCHES - 2
        at = size if last else min(size, os.lseek(fd, begin, os.SEEK_HOLE))
        found.append((begin, at - begin))
    if not found or sum(found[-1]) < size:
        found.append((size, 0))
    return tuple(found)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


END = bytes(2 * BLOCK)


def _seconds(ns: int) -> str:
    return f"{'-' if ns < 0 else ''}{abs(ns) // 10**9}.{abs(ns) % 10**9:09d}"


def _map(stretches: tuple[tuple[int, int], ...]) -> bytes:
    numbers = [len(stretches), *(number for stretch in stretches for number in stretch)]
    text = b"".join(b"%d\n" % number for number in numbers)
    return text + padding(len(text))
