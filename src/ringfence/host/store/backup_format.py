"""What a backup file is made of: gzip over lines of JSON. Bytes and checks only; knows no table.

    {"ringfence_backup": 1, "made_at", "release", "schema", "floor", "generation", "installation", "dialect", "audit"}
    {"table": name, "columns": [[name, kind], ...]}
    [value, ...]                                         one line a row, in the order of the columns; null = NULL
    ...
    {"end": {"rows": {table: number}, "sha256": of every byte before this line, in hex}}

A kind is one of text, int, float, bool, time (ISO 8601, UTC), bytes (base64). The first line is the manifest and the
last one its seal: a file that was cut, or changed anywhere, does not end right. The same form for both databases, so a
backup of one may be put back into the other. It is read as hostile input: bounded lines, strict shapes, nothing is
executed.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import IO, Any

from ringfence.host.kernel.errors import DiskFull, Invalid, Unavailable
from ringfence.host.store.failures import no_room

FORM = 1
MAX_LINE = 64 << 20  # the largest value is a blob chunk or an event of 2 MiB; as escapes in JSON six times that
_LEVEL = 1  # of gzip: 60 MB/s on one core and a fifth of the size; level 9 takes ten times as long for a tenth less
_GENERATIONS = (1 << 31) - 1  # the column keeps as many, and a restore begins one more
_CUT = "the file is cut or damaged"


@dataclass(frozen=True, slots=True)
class Manifest:
    made_at: str
    release: str
    schema: str  # the newest revision of the database
    floor: str  # its newest contraction
    generation: int
    installation: str
    dialect: str
    audit: tuple[tuple[str, int, str], ...]  # head of each chain: (chain, seq, hash)


@dataclass(frozen=True, slots=True)
class TableHead:
    name: str
    columns: tuple[tuple[str, str], ...]  # (name, kind)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the last line says."""

    rows: dict[str, int]
    sha256: str


class Writing:
    """Writes one backup; `seal` comes last, and once. Any of it: DiskFull, or Unavailable: the file takes no more."""

    def __init__(self, file: IO[bytes], manifest: Manifest) -> None:
        self._file = file
        with _written():  # its header goes out at once
            self._packed = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_LEVEL, mtime=0, filename="")
        self._hash = hashlib.sha256()
        self._rows: dict[str, int] = {}
        self._line({"ringfence_backup": FORM, **asdict(manifest)})

    def table(self, head: TableHead) -> None:
        self._line({"table": head.name, "columns": [list(column) for column in head.columns]})
        self._rows[head.name] = 0

    def row(self, table: str, values: Sequence[Any]) -> None:
        self._line([_packed(value) for value in values])
        self._rows[table] += 1

    def seal(self) -> Sealed:
        sealed = Sealed(self._rows, self._hash.hexdigest())
        self._line({"end": {"rows": sealed.rows, "sha256": sealed.sha256}})
        with _written():
            self._packed.close()
            self._file.flush()  # a full volume is to be found here, not when the file is closed
        return sealed

    def _line(self, value: object) -> None:
        line = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self._hash.update(line)
        with _written():
            self._packed.write(line)


@contextmanager
def _written() -> Iterator[None]:
    """An error of the file is none of the database."""
    try:
        yield
    except OSError as error:
        if no_room(error):
            raise DiskFull("there is no room for the backup", remedy="take another place for it (df -h)") from error
        raise Unavailable(f"the backup cannot be written: {error}", remedy="take another place for it") from error


def _packed(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    return value


class Reading:
    """Reads one backup, a line at a time. Invalid: anything that `Writing` would not have written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._packed = gzip.GzipFile(fileobj=file, mode="rb")
        self._hash = hashlib.sha256()
        self._sealed: Sealed | None = None
        self.rows: dict[str, int] = {}
        self.manifest = _manifest(self._next())

    @property
    def sealed(self) -> Sealed:
        """Only after `parts` has come to its end."""
        assert self._sealed is not None
        return self._sealed

    def parts(self) -> Iterator[TableHead | list[Any]]:
        """Each table's head, then its rows with the types of their columns. Ends when the seal was found right."""
        head: TableHead | None = None
        while True:
            before = self._hash.hexdigest()
            value = self._next()
            if isinstance(value, list) and head is not None:
                self.rows[head.name] += 1
                yield _row(value, head)
            elif isinstance(value, dict) and set(value) == {"table", "columns"}:
                head = _head(value)
                if head.name in self.rows:
                    raise _bad(f"table {head.name} is in it twice")
                self.rows[head.name] = 0
                yield head
            elif isinstance(value, dict) and set(value) == {"end"}:
                self._finish(value["end"], before)
                return
            else:
                raise _bad("a line is neither a table, nor a row, nor the end")

    def _finish(self, end: Any, before: str) -> None:
        if not isinstance(end, dict) or end.get("sha256") != before:
            raise _bad("its bytes are not those that were written")
        if end.get("rows") != self.rows:
            raise _bad("its rows are not as many as it says")
        if self._read(1):
            raise _bad("there is more behind its end")
        self._sealed = Sealed(dict(self.rows), before)

    def _next(self) -> Any:
        try:
            line = self._packed.readline(MAX_LINE)
        except (OSError, EOFError, zlib.error) as error:
            raise _bad(_CUT) from error
        if not line.endswith(b"\n"):
            raise _bad(_CUT)
        self._hash.update(line)
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _bad("a line of it is no JSON") from error

    def _read(self, size: int) -> bytes:
        try:
            return self._packed.read(size)
        except (OSError, EOFError, zlib.error) as error:
            raise _bad(_CUT) from error


def _manifest(value: Any) -> Manifest:
    form = value.get("ringfence_backup") if isinstance(value, dict) else None
    if form is None:
        raise _bad("it does not begin as one")
    if form != FORM:
        raise Invalid(f"the backup has form {form}, this release reads {FORM}", remedy="take the release that made it")
    try:
        audit = tuple((str(chain), int(seq), str(head)) for chain, seq, head in value["audit"])
        texts = {name: value[name] for name in ("made_at", "release", "schema", "floor", "installation", "dialect")}
        if not all(isinstance(text, str) for text in texts.values()) or type(value["generation"]) is not int:
            raise ValueError("types")
        if not 1 <= value["generation"] < _GENERATIONS:
            raise ValueError("generation")
        return Manifest(**texts, generation=value["generation"], audit=audit)
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(f"its first line is no manifest ({error})") from error


def _head(value: dict[str, Any]) -> TableHead:
    try:
        columns = tuple((str(name), str(kind)) for name, kind in value["columns"])
    except (TypeError, ValueError) as error:
        raise _bad("a table's head has another shape") from error
    return TableHead(str(value["table"]), columns)


def _row(values: list[Any], head: TableHead) -> list[Any]:
    if len(values) != len(head.columns):
        raise _bad(f"a row of {head.name} has {len(values)} values for {len(head.columns)} columns")
    try:
        return [_unpacked(value, kind) for value, (_, kind) in zip(values, head.columns, strict=True)]
    except (TypeError, ValueError, binascii.Error) as error:
        raise _bad(f"a row of {head.name} has a value of another type") from error


def _unpacked(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "time":
        return datetime.fromisoformat(value).astimezone(UTC)
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    types: dict[str, tuple[type, ...]] = {"text": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}
    if kind not in types or not isinstance(value, types[kind]) or (kind != "bool" and isinstance(value, bool)):
        raise ValueError(kind)
    return value


def _bad(why: str) -> Invalid:
    return Invalid(f"this is no whole backup: {why}", remedy="take another copy of it, or an older backup")
