"""Reads an archive that is taken for hostile, whoever made it, from a stream. Opens nothing.

tarfile takes a header apart; the stream is ours, so that memory and work follow limits and never what an archive says of
itself. A name that leads out, a device, an entry of a kind that no tree is packed into, and what is longer than its limit are
refused with their reason. Must never give a caller a name that starts with `/`, has a part `..`, or does not begin with one of
the parts that were asked for.
"""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Iterator

from ringfence.spawner.archive import BLOCK, CODING, MAX_PATH, MAX_STRETCHES, Entry, Kind, refused
from ringfence.spawner.files_protocol import FilesError

MAX_NAME = 255
MAX_RECORDS = 64 << 10  # bytes of one entry's pax records: a name and a target of 4096 each, and seven times that
MAX_SIZE = 1 << 62
MAX_SECONDS = 10**12  # before and after 1970
MAX_TAIL = 1 << 20  # zeros after the end: tar pads to 10 KiB, or as it is told
_OLD = "in GNU's old form: make the archive with --format=pax"
_REFUSED = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.XGLTYPE: "a record for all that follows",
    tarfile.GNUTYPE_LONGNAME: f"a name {_OLD}",
    tarfile.GNUTYPE_LONGLINK: f"a name {_OLD}",
    tarfile.GNUTYPE_SPARSE: f"a sparse file {_OLD}",
}

_KINDS: dict[bytes, Kind] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
}


class Reader:
    """Entries of a stream, one after the other; between two of them the content of the former is read, or skipped."""

    def __init__(self, source: Iterator[memoryview], parts: tuple[str, ...]) -> None:
        """`source`: the archive's bytes; each piece is valid until the next is asked for. `parts`: what a name may begin
        with. FilesError from every method."""
        self._source = source
        self._parts = tuple(part.encode() for part in parts)
        self._piece = memoryview(b"")
        self._left = 0  # of the content and padding of the entry that was given last
        self._padding = 0

    def next(self) -> Entry | None:
        """None: the end, behind which nothing came."""
        self._skip()
        block = self._take(BLOCK)
        if not any(block):
            self._end()
            return None
        records: dict[bytes, bytes] = {}
        info = _header(block)
        if info.type == tarfile.XHDTYPE:
            if not 0 <= info.size <= MAX_RECORDS:
                raise FilesError("refused", f"{info.size} bytes of records of one entry; the limit is {MAX_RECORDS}")
            records = _records(self._take(info.size))
            self._take(-info.size % BLOCK)
            info = _header(self._take(BLOCK))
        return self._entry(info, records)

    def content(self) -> Iterator[memoryview]:
        """What is stored of the file that was given last."""
        while self._left:
            if not self._piece:
                self._more()
            count = min(self._left, len(self._piece))
            chunk, self._piece = self._piece[:count], self._piece[count:]
            self._left -= count
            yield chunk

    def _entry(self, info: tarfile.TarInfo, records: dict[bytes, bytes]) -> Entry:
        sparse = b"GNU.sparse.major" in records
        name = records.get(b"GNU.sparse.name") if sparse else records.get(b"path")
        if name is None:
            name = info.name.encode(*CODING)
        kind = _KINDS.get(info.type)
        if kind is None:
            raise refused(name, _REFUSED.get(info.type, f"an entry of a kind that is none here ({info.type!r})"))
        path = self._path(name)
        size = _number(records[b"size"], path) if b"size" in records else info.size
        if not 0 <= size <= MAX_SIZE or (size and kind != "file") or (sparse and kind != "file"):
            raise refused(path, f"a {kind} of {size} bytes")
        self._left, self._padding = size, -size % BLOCK
        target = records.get(b"linkpath", info.linkname.encode(*CODING))
        if kind == "hardlink":
            target = self._path(target)
        elif kind == "symlink" and (not 0 < len(target) <= MAX_PATH or b"\0" in target):
            raise refused(path, "a link to a place that cannot be")
        whole, stretches = size, None
        if sparse:
            whole, stretches = self._sparse(path, records)
        mtime = _nanoseconds(records[b"mtime"], path) if b"mtime" in records else _header_time(info, path)
        return Entry(path, kind, stat.S_IMODE(info.mode), mtime, whole, target, stretches)

    def _sparse(self, path: bytes, records: dict[bytes, bytes]) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Its size and its map, which is the begin of its content. Only what one pass can write: stretches in order, within the
        size, and all that is stored in one of them."""
        if (records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")) != (b"1", b"0"):
            raise refused(path, "a sparse file in another form than 1.0")
        size, numbers, taken = _number(records.get(b"GNU.sparse.realsize", b""), path), _Lines(self, path), 0
        count = numbers.next()
        if count > MAX_STRETCHES:
            raise refused(path, f"{count} stretches of data; the limit is {MAX_STRETCHES}")
        found: list[tuple[int, int]] = []
        at = 0
        for _ in range(count):
            offset, length = numbers.next(), numbers.next()
            if offset < at or offset + length > size:
                raise refused(path, "a map of a sparse file that leads out of it")
            at, taken = offset + length, taken + length
            found.append((offset, length))
        if size > MAX_SIZE or taken != self._left:
            raise refused(path, "a map of a sparse file that is not that of what is stored")
        return size, tuple(found)

    def map_block(self, path: bytes) -> bytes:
        """The next block of the content."""
        if self._left < BLOCK:
            raise refused(path, "a map of a sparse file that has no end")
        self._left -= BLOCK
        return self._take(BLOCK)

    def _path(self, name: bytes) -> bytes:
        if name.startswith(b"/"):
            raise refused(name, "an absolute name")
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        path = b"/".join(parts)
        if b".." in parts:
            raise refused(name, "a name that leads out")
        if b"\0" in path or len(path) > MAX_PATH or any(len(part) > MAX_NAME for part in parts):
            raise refused(name, f"no name of a file (at most {MAX_PATH} bytes, {MAX_NAME} between two slashes)")
        if not parts or parts[0] not in self._parts:
            raise refused(name, f"not below {' or '.join(part.decode() for part in self._parts)}")
        return path

    def _skip(self) -> None:
        for _ in self.content():
            pass
        self._take(self._padding)
        self._padding = 0

    def _end(self) -> None:
        """The second block of zeros, and at most some more."""
        tail = 0
        if any(self._take(BLOCK)):
            raise FilesError("refused", "the archive goes on behind its end")
        while (piece := next(self._source, None) if not self._piece else self._piece) is not None:
            self._piece, tail = memoryview(b""), tail + len(piece)
            if tail > MAX_TAIL or any(piece):
                raise FilesError("refused", "the archive goes on behind its end")

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            if not self._piece:
                self._more()
            wanted = count - len(data)
            data += self._piece[:wanted]
            self._piece = self._piece[wanted:]
        return data

    def _more(self) -> None:
        piece = next(self._source, None)
        if piece is None:
            raise FilesError("refused", "the archive ends too early")
        self._piece = piece


class _Lines:
    """Numbers of a map, a line each."""

    def __init__(self, reader: Reader, path: bytes) -> None:
        self._reader, self._path, self._have = reader, path, b""

    def next(self) -> int:
        while (line := self._have.partition(b"\n"))[1] == b"":
            self._have += self._reader.map_block(self._path)
        self._have = line[2]
        return _number(line[0], self._path)


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, *CODING)
    except (tarfile.HeaderError, ValueError) as error:
        raise FilesError("refused", "no header of an archive where one should be") from error


def _records(data: bytes) -> dict[bytes, bytes]:
    """pax: `<length> <key>=<value>` and a newline each, the length in it (POSIX.1-2017, pax, Extended Header)."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at] != 0:
        digits = data[at : at + 8].partition(b" ")
        length = int(digits[0]) if digits[1] and digits[0].isdigit() else 0
        key, mark, value = data[at + len(digits[0]) + 1 : at + length - 1].partition(b"=")
        if length < 5 or at + length > len(data) or data[at + length - 1] != 10 or not mark:
            raise FilesError("refused", "a record of an entry that is none")
        found[key] = value
        at += length
    return found


def _number(text: bytes, path: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise refused(path, "a size that is no number")
    return int(text)


def _nanoseconds(text: bytes, path: bytes) -> int:
    sign, digits = (-1, text[1:]) if text.startswith(b"-") else (1, text)
    whole, _, part = digits.partition(b".")
    if not whole.isdigit() or len(whole) > 12 or (part and not part.isdigit()):
        raise refused(path, "a time that is none")
    return sign * (int(whole) * 10**9 + int(part[:9].ljust(9, b"0") or b"0"))


def _header_time(info: tarfile.TarInfo, path: bytes) -> int:
    if not -MAX_SECONDS <= info.mtime <= MAX_SECONDS:
        raise refused(path, "a time that is none")
    return int(info.mtime) * 10**9
