"""Where a message of HTTP/1.1 ends, on both sides of the gateway. What is usual is framed here, all else by h11: see decision 0067. Pure.

Usual is a head that came whole and says what providers and an egress worker say: of a request a Content-Length or no body, of an
answer a Content-Length or `chunked`, and nothing of the connection but that it is kept. It has one reading. Must never call usual
what h11 would refuse, nor let more or less through as a body than its framing says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

END = b"\r\n\r\n"
MAX_HEAD = 64 * 1024
_MAX_LINE = 1024  # of a chunk's size and what stands behind it; of all trailers 16 times as much
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# Fixed patterns in which nothing can be matched in two ways: linear in their input.
_REQUEST_LINE = re.compile(rb"(%s) (/[!-~]*) HTTP/1\.1" % _TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~\x80-\xff]*)?")
_FIELD = re.compile(rb"(%s):([\t -~\x80-\xff]*)" % _TOKEN)
_WRITTEN = re.compile(rb"%s: [\t -~\x80-\xff]*" % _TOKEN)
_LENGTH = re.compile(r"[0-9]{1,18}")  # 10^18 fits in 63 bits
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t -~\x80-\xff]*|[ \t]*)\r\n")
_STRANGE = (b"HEAD", b"CONNECT")  # whose answers have bodies of other lengths
_OTHERWISE = ("transfer-encoding", "upgrade", "expect")  # in a request
_BODILESS = (204, 304)  # RFC 9112 section 6.3


class Malformed(Exception):
    """It is not framed as HTTP/1.1 has it. Its text names nothing of it."""


@dataclass(frozen=True, slots=True)
class Request:
    """`headers`: by name in lower case, the last of each. `length`: of its body."""

    method: str
    target: bytes
    headers: dict[str, str]
    length: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`headers`: by name in lower case, the first of each. `length`: of its body; None: it comes in chunks."""

    status: int
    headers: dict[str, str]
    length: int | None


def request(raw: bytes) -> Request | None:
    """Of a whole head without its END. None: h11 is to read it."""
    line, *lines = raw.split(b"\r\n")
    found, fields = _REQUEST_LINE.fullmatch(line), _fields(lines)
    if found is None or fields is None or len(raw) > MAX_HEAD or found[1] in _STRANGE:
        return None
    headers = dict(fields)
    if any(name in headers for name in _OTHERWISE) or _names(fields, "host") != 1:
        return None
    length = _length(fields)
    return None if length is None else Request(found[1].decode(), found[2], headers, length)


def reply(raw: bytes) -> Reply | None:
    """Of a whole head without its END. None: h11 is to read it."""
    line, *lines = raw.split(b"\r\n")
    found, fields = _STATUS_LINE.fullmatch(line), _fields(lines)
    if found is None or fields is None or len(raw) > MAX_HEAD or (status := int(found[1])) in _BODILESS:
        return None
    headers = dict(reversed(fields))
    coded = _names(fields, "transfer-encoding")
    if coded:
        usual = coded == 1 and headers["transfer-encoding"] == "chunked" and "content-length" not in headers
        return Reply(status, headers, None) if usual else None
    length = _length(fields) if "content-length" in headers else None
    return None if length is None else Reply(status, headers, length)


def _fields(lines: list[bytes]) -> list[tuple[str, str]] | None:
    """None: not all of them are fields, or one is of the connection and says more than that it is kept."""
    found: list[tuple[str, str]] = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            return None
        name, value = field[1].lower().decode(), field[2].strip(b" \t").decode("latin-1")
        if name == "connection" and value.lower() != "keep-alive":
            return None
        found.append((name, value))
    return found


def _names(fields: list[tuple[str, str]], name: str) -> int:
    return sum(each == name for each, _ in fields)


def _length(fields: list[tuple[str, str]]) -> int | None:
    """0: there is no Content-Length. None: it is not one number in digits."""
    said = [value for name, value in fields if name == "content-length"]
    if not said:
        return 0
    return int(said[0]) if len(said) == 1 and _LENGTH.fullmatch(said[0]) else None


def written(line: bytes, fields: Iterable[tuple[str, str]]) -> bytes:
    """A head with its END. ValueError, which says nothing of it: a field cannot be written."""
    lines = [f"{name}: {value}".encode("latin-1", "replace") for name, value in fields]
    if not all(map(_WRITTEN.fullmatch, lines)):
        raise ValueError("a field that cannot be written")
    return b"\r\n".join((line, *lines)) + END


def chunk(data: bytes) -> bytes:
    """`data` is not empty: that would be the end."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class Chunks:
    """Of one body: `take` what comes. `ended`: with its last chunk, and trailers, which are dropped. `behind`: what came after."""

    def __init__(self) -> None:
        self.ended, self.behind = False, b""
        self._rest = b""  # of a line that has not ended
        self._left = 0  # of the chunk under way
        self._closing = False  # the chunk is over, its CRLF is not
        self._last = False

    def take(self, data: bytes) -> bytes:
        """What of the body is in it. Malformed."""
        data, at, found = self._rest + data, 0, []
        while not self.ended:
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                at, self._left = at + len(piece), self._left - len(piece)
                self._closing = not self._left
            before = at
            at = self._line(data, at)
            if at == before:
                break
        self._rest = data[at:]
        if self.ended:
            self.behind, self._rest = self._rest, b""
        return found[0] if len(found) == 1 else b"".join(found)

    def _line(self, data: bytes, at: int) -> int:
        """Behind the line that begins at `at`; `at`: it is not whole."""
        if self._left:
            return at
        if self._closing or self._last:
            return self._closed(data, at)
        found = _SIZE.match(data, at)
        if found is None:
            if len(data) - at > _MAX_LINE or b"\n" in data[at:]:
                raise Malformed("no size of a chunk")
            return at
        self._left = int(found[1], 16)
        self._last = not self._left
        return found.end()

    def _closed(self, data: bytes, at: int) -> int:
        if data.startswith(b"\r\n", at):
            self.ended, self._closing = self._last, False
            return at + 2
        if self._closing and not b"\r\n".startswith(data[at : at + 2]):
            raise Malformed("a chunk that is longer than its size")
        end = data.find(END, at) if self._last else -1
        if end < 0 and len(data) - at > 16 * _MAX_LINE:
            raise Malformed("trailers without an end")
        self.ended = end >= 0
        return end + len(END) if self.ended else at
