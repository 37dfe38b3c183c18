"""Heads of HTTP/1 messages, read strictly: what h11 is too kind about is refused here, before it or anybody sees it. Pure.

Source: the parsing table (D) of the design, RFC 9110 and 9112. Whatever two parsers could read in two ways is an error, never
a guess. It must never repair a head, nor take more or less of the stream than the head.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringfence.host.egress.configuration import Bounds
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.kernel.outward import checking

END = b"\r\n\r\n"
METHODS = checking.METHODS | {"CONNECT"}
TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# Fixed patterns in which no two repetitions that take the same bytes follow each other: linear in their input.
_REQUEST_LINE = re.compile(rb"(%s) ([!-~]+) HTTP/1\.([01])" % TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t -~\x80-\xff]*))?")
_FIELD = re.compile(rb"(%s):([\t -~\x80-\xff]*)" % TOKEN)
_LENGTH = re.compile(rb"[0-9]{1,18}")  # 10^18 fits in 63 bits
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
# Gateways behind the upstream (CGI, WSGI, FastCGI) read whatever is no letter and no digit as one and the same character.
ALIKE = bytes(each if bytes([each]).isalnum() else ord("-") for each in range(256))
# What must not come under a name that they would read as these headers.
_LOOKALIKES = frozenset({b"content-length", b"transfer-encoding", b"proxy-authorization", b"x-api-key"})
Fields = tuple[tuple[bytes, bytes], ...]
"""(name in lower case, value without white space around it), in the order of the wire."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: str
    target: bytes
    minor: int  # of HTTP/1
    fields: Fields
    raw: bytes  # with its end

    @property
    def has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and int(value)) for name, value in self.fields
        )

    @property
    def last(self) -> bool:
        """Whether its sender asks nothing more of the connection: RFC 9112 section 9.3; of HTTP/1.0 none is kept here."""
        said = (value for name, value in self.fields if name == b"connection")
        return self.minor == 0 or any(each.strip().lower() == b"close" for value in said for each in value.split(b","))

    def one(self, name: bytes) -> bytes | None:
        """The first of that name."""
        return one(self.fields, name)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    status: int
    reason: bytes
    minor: int
    fields: Fields
    raw: bytes


def one(fields: Fields, name: bytes) -> bytes | None:
    return next((value for key, value in fields if key == name), None)


def early(partial: bytes | bytearray, bounds: Bounds, since: int = 0) -> None:
    """What can be refused before the end of a head has come: bare line ends, a request line or a head without end. `since`:
    what stands before was looked at; a head that comes byte by byte is not read over and over."""
    if partial.startswith(b"PRI * HTTP/2") or partial[:1] == b"\x16":
        raise _bad("another protocol than HTTP/1.1 was spoken")
    bare = _BARE.search(partial, max(0, since - 1))
    if bare and bare.end() < len(partial):  # a CR at the very end may yet get its LF
        raise _bad("a line ends in a bare CR or LF")
    if bare and bare.group() == b"\n":
        raise _bad("a line ends in a bare CR or LF")
    if len(partial) > bounds.target + 64 and b"\r\n" not in partial:  # 64: a method, a version, two spaces
        raise _long_target(bounds)
    if len(partial) > bounds.head_bytes:
        raise _large(bounds)


def request(raw: bytes, bounds: Bounds) -> RequestHead:
    """A request's head with its end. Raises Refusal, always with `close`."""
    lines = _lines(raw, bounds)
    found = _REQUEST_LINE.fullmatch(lines[0])
    if found is None:
        raise _bad("the request line is not METHOD SP TARGET SP HTTP/1.1")
    method, target, minor = found.group(1).decode(), found.group(2), int(found.group(3))
    if method.upper() != method:
        raise _bad("a method is written in capitals")
    if len(target) > bounds.target:
        raise _long_target(bounds)
    if method not in METHODS:
        raise Refusal(Code.MALFORMED, "this method is never let through", status=405, close=True)
    fields = _fields(lines[1:], bounds)
    _framing(fields, minor)
    _host(fields, minor)
    expect = one(fields, b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise Refusal(Code.MALFORMED, "only 100-continue can be expected", status=417, close=True)
    return RequestHead(method, target, minor, fields, raw)


def response(raw: bytes, bounds: Bounds) -> ResponseHead:
    """An upstream's. Raises Refusal as a request's; the caller makes it `upstream_failed`."""
    lines = _lines(raw, bounds)
    found = _STATUS_LINE.fullmatch(lines[0])
    if found is None:
        raise _bad("the status line is not HTTP/1.1 SP STATUS SP REASON")
    fields = _fields(lines[1:], bounds)
    _framing(fields, int(found.group(1)))
    return ResponseHead(int(found.group(2)), found.group(3) or b"", int(found.group(1)), fields, raw)


def _lines(raw: bytes, bounds: Bounds) -> list[bytes]:
    if len(raw) > bounds.head_bytes:
        raise _large(bounds)
    if not raw.endswith(END):
        raise _bad("the head has no end")
    if _BARE.search(raw):
        raise _bad("a line ends in a bare CR or LF")
    return raw[: -len(END)].split(b"\r\n")


def _fields(lines: list[bytes], bounds: Bounds) -> Fields:
    if len(lines) > bounds.fields:
        raise Refusal(Code.TOO_LARGE, f"more than {bounds.fields} header fields", status=431, close=True)
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise _bad("a header line is folded, has no name, a space before the colon or a control character")
        name = found.group(1).lower()
        alike = name.translate(ALIKE)
        if alike != name and alike in _LOOKALIKES:
            raise _bad("a header name with _ or the like, that others read as -")
        fields.append((name, found.group(2).strip(b" \t")))
    return tuple(fields)


def _framing(fields: Fields, minor: int) -> None:
    """One length or exactly `chunked`, never both: RFC 9112 section 6.3."""
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if codings and (lengths or len(codings) > 1 or codings[0] != b"chunked"):
        raise _bad("Transfer-Encoding is `chunked`, once, and never beside Content-Length")
    if codings and minor == 0:
        raise _bad("HTTP/1.0 has no Transfer-Encoding")
    if len(lengths) > 1 or (lengths and _LENGTH.fullmatch(lengths[0]) is None):
        raise _bad("Content-Length is one number in digits")


def _host(fields: Fields, minor: int) -> None:
    hosts = sum(name == b"host" for name, _ in fields)
    if hosts > 1 or (hosts == 0 and minor == 1):
        raise _bad("a request has exactly one Host")


def _bad(message: str) -> Refusal:
    return Refusal(Code.MALFORMED, message, close=True)


def _large(bounds: Bounds) -> Refusal:
    return Refusal(Code.TOO_LARGE, f"the head is longer than {bounds.head_bytes} bytes", status=431, close=True)


def _long_target(bounds: Bounds) -> Refusal:
    return Refusal(Code.TOO_LARGE, f"the target is longer than {bounds.target} bytes", status=414, close=True)
