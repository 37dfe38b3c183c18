"""What the file of a whole backup is made of: a tar of plain files, each a gzip member of at most PART bytes. Bytes and checks only.

    manifest.json                     what it is of; always first
    ITEM.00000000.gz, ITEM.00000001.gz, ...      one after the other; `cat` of them, then `zcat`, is the item
    index                             a line of JSON: of each item its parts, bytes and SHA-256; and the SHA-256 of every byte before
                                      this second line, in hex; always last

Cut into parts, nothing has to know how long a tree is before it is read, and neither side holds more than one of them. A file
that was cut, or changed anywhere, does not end right; one that could not be made whole ends with `failed.json`, which says why.
It is read as hostile input: a header that is not byte for byte the one that would have been written is refused, and with it every
link, device, owner, mode, path and extension that a tar can have otherwise; sizes and numbers are bounded before anything is read.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ringfence.host.kernel.errors import Invalid

FORM = 1
PART = 4 << 20  # bytes of content: so much is in memory at once, on both sides
MANIFEST, INDEX, FAILED = "manifest.json", "index", "failed.json"
MAX_JSON = 256 << 20  # of the index: 1,000,000 items of 250 bytes
MAX_ITEMS = 1_000_000
_BLOCK = 512  # of a tar
_MAX_STORED = PART + (PART >> 8) + 1024  # what cannot be packed grows by 5 bytes in 16 KiB, and a header
_NAME = re.compile(r"[a-z0-9][A-Za-z0-9._/-]{0,79}")
_MEMBER = re.compile(r"([a-z0-9][A-Za-z0-9._/-]{0,79})\.([0-9]{8})\.gz")
_LEVEL = 1  # of gzip: 100 MB/s on one core; level 6 takes three times as long for a tenth less
_SAMPLE = 64 << 10
_DIGEST = 64  # hex digits of SHA-256
_WORTH = 0.95  # what packs no better than to so much is stored as it is, ten times as fast


class Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Item:
    """As the index has it. `size`: bytes of content; `stored`: of its parts."""

    parts: int = 0
    size: int = 0
    stored: int = 0
    sha256: str = ""  # of the parts as they are stored


@dataclass(frozen=True, slots=True)
class Part:
    item: str
    number: int
    data: bytes


class Writing:
    """Gives the bytes of one backup, in order; writes nothing. `manifest` comes first, `end` or `failed` last, each once."""

    def __init__(self) -> None:
        self._all = hashlib.sha256()
        self._items: dict[str, Item] = {}
        self._now = ""
        self._hash = hashlib.sha256()

    def manifest(self, facts: Mapping[str, Any]) -> bytes:
        return self._member(MANIFEST, _json({"ringfence_backup": FORM, **facts}))

    def part(self, item: str, data: bytes, *, pack: bool = True) -> bytes:
        """The next part of an item, PART bytes at most. `pack`: False for what is packed already. Blocks for as long as packing
        takes. Items follow one another: one that another came after is over."""
        if item != self._now or not item:
            self._over()
            if not _NAME.fullmatch(item) or item in self._items or len(self._items) >= MAX_ITEMS:
                raise ValueError(f"no item of a backup: {item!r}")
            self._now, self._hash, self._items[item] = item, hashlib.sha256(), Item()
        stored = _packed(data, _LEVEL if pack and _packs(data) else 0)
        self._hash.update(stored)
        before = self._items[item]
        self._items[item] = Item(before.parts + 1, before.size + len(data), before.stored + len(stored))
        return self._member(f"{item}.{before.parts:08d}.gz", stored)

    def begun(self, item: str) -> bool:
        return item in self._items

    def end(self, notes: Mapping[str, Any]) -> bytes:
        """The index. `notes`: what was found on the way."""
        self._over()
        items = {name: asdict(item) for name, item in self._items.items()}
        line = _json({**notes, "items": items}) + b"\n"
        digest = self._all.copy()
        digest.update(header(INDEX, len(line) + _DIGEST) + line)
        return self._member(INDEX, line + digest.hexdigest().encode()) + bytes(2 * _BLOCK)

    def failed(self, error: Mapping[str, Any]) -> bytes:
        """In the place of the index: why it was not made whole."""
        return self._member(FAILED, _json(error)) + bytes(2 * _BLOCK)

    def _over(self) -> None:
        if self._now:
            done = self._items[self._now]
            self._items[self._now] = Item(done.parts, done.size, done.stored, self._hash.hexdigest())
            self._now = ""

    def _member(self, name: str, data: bytes) -> bytes:
        whole = b"".join((header(name, len(data)), data, bytes(-len(data) % _BLOCK)))
        self._all.update(whole)
        return whole


class Reading:
    """Reads one backup, a part at a time, in one pass. Blocks. Invalid: anything that `Writing` would not have given, and what a
    backup that was not made whole says of that."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._all = hashlib.sha256()
        self._found: dict[str, Item] = {}
        self.index: dict[str, Any] = {}  # once `parts` has come to its end
        name, size = self._head()
        if name != MANIFEST or size > PART:
            raise bad("it does not begin as one")
        self.manifest = _object(self._content(size))
        form = self.manifest.get("ringfence_backup")
        if form != FORM:
            raise Invalid(
                f"the backup has form {form!r:.40}, this release reads {FORM}",
                remedy=f"take the release that made it: {self.manifest.get('release')!r:.60}",
            )

    @property
    def items(self) -> Mapping[str, Item]:
        """What has been read so far."""
        return self._found

    def parts(self) -> Iterator[Part]:
        """Each in its order. Ends when index and digests were found right."""
        now, digest = "", hashlib.sha256()
        while True:
            name, size = self._head()
            match = _MEMBER.fullmatch(name)
            if match is None:
                self._close(now, digest.hexdigest())
                self._last(name, size)
                return
            item, number = match[1], int(match[2])
            if item != now:
                self._close(now, digest.hexdigest())
                if item in self._found or len(self._found) >= MAX_ITEMS or not _NAME.fullmatch(item):
                    raise bad(f"{item} is in it twice")
                now, digest, self._found[item] = item, hashlib.sha256(), Item()
            so_far = self._found[item]
            if number != so_far.parts or size > _MAX_STORED:
                raise bad(f"a part of {item} is missing, or larger than a part may be")
            stored = self._content(size)
            digest.update(stored)
            data = _unpacked(stored, item)
            self._found[item] = Item(number + 1, so_far.size + len(data), so_far.stored + size)
            yield Part(item, number, data)

    def _close(self, item: str, sha256: str) -> None:
        if item:
            done = self._found[item]
            self._found[item] = Item(done.parts, done.size, done.stored, sha256)

    def _last(self, name: str, size: int) -> None:
        if name not in (INDEX, FAILED) or size > MAX_JSON:
            raise bad(f"{name:.100} is nothing that is in a backup")
        digest = self._all.copy()
        content = self._content(size)
        said = _object(content if name == FAILED else content[:-_DIGEST])
        if name == FAILED:
            raise Invalid(
                f"the backup was not made whole: {said.get('message')!s:.1000}", remedy=f"{said.get('remedy')!s:.1000}"
            )
        digest.update(content[:-_DIGEST])
        if content[-_DIGEST:] != digest.hexdigest().encode():
            raise bad("its bytes are not those that were written")
        if said.get("items") != {name: asdict(item) for name, item in self._found.items()}:
            raise bad("what is in it is not what its index says")
        if self._take(2 * _BLOCK) != bytes(2 * _BLOCK) or self._source.read(1):
            raise bad("there is something else behind its end")
        self.index = said

    def _head(self) -> tuple[str, int]:
        block = self._take(_BLOCK)
        self._all.update(block)
        try:
            name = block[:100].rstrip(b"\0").decode("ascii")
            size = int(block[124:135], 8)
            right = header(name, size) == block
        except ValueError:
            right = False
        if not right:
            raise bad("what should be the head of a part is none that a backup has")
        return name, size

    def _content(self, size: int) -> bytes:
        padded = self._take(size + -size % _BLOCK)
        self._all.update(padded)
        if any(padded[size:]):
            raise bad("there is something between two parts")
        return padded[:size]

    def _take(self, size: int) -> bytes:
        taken, left = [], size
        while left:
            data = self._source.read(min(left, PART))
            if not data:
                raise bad("it is cut")
            taken.append(data)
            left -= len(data)
        return b"".join(taken)


def header(name: str, size: int) -> bytes:
    """Of a plain file, mode 0600, of nobody (POSIX.1-1988 ustar, tar(5))."""
    raw = name.encode("ascii")
    if not 0 < len(raw) <= 100 or not 0 <= size < 8**11:
        raise ValueError(f"no member: {name!r} of {size} bytes")
    fields = (
        raw.ljust(100, b"\0"), b"0000600\0", b"0000000\0", b"0000000\0", b"%011o\0" % size, b"00000000000\0",
        b" " * 8, b"0", bytes(100), b"ustar\x0000", bytes(32), bytes(32), b"0000000\0", b"0000000\0", bytes(155), bytes(12),
    )  # fmt: skip
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def bad(why: str) -> Invalid:
    return Invalid(f"this is no whole backup: {why}", remedy="take another copy of it, or an older backup")


def _packs(data: bytes) -> bool:
    """By its middle: what is packed already, or is random, is not worth the time."""
    middle = max(0, (len(data) - _SAMPLE) // 2)
    sample = data[middle : middle + _SAMPLE]
    return len(zlib.compress(sample, _LEVEL)) < len(sample) * _WORTH


def _packed(data: bytes, level: int) -> bytes:
    packer = zlib.compressobj(level, wbits=31)
    return packer.compress(data) + packer.flush()


def _unpacked(stored: bytes, item: str) -> bytes:
    """PART bytes at most, however well they are packed."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        data = unpacker.decompress(stored, PART + 1)
    except zlib.error as error:
        raise bad(f"a part of {item} is damaged") from error
    if len(data) > PART or not unpacker.eof or unpacker.unused_data:
        raise bad(f"a part of {item} is damaged, or larger than a part may be")
    return data


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise bad("a part of it is no JSON") from error
    if not isinstance(value, dict):
        raise bad("a part of it has another shape")
    return value
