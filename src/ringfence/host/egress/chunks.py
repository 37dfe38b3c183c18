"""The lines of a chunked body, checked beside h11, which takes sizes of 20 digits where 64 bits have 16, and bare line feeds
behind the last chunk. Pure.

RFC 9112 section 7.1: a recipient must anticipate large numbers. It must never hold more of a body than one unfinished line.
"""

from __future__ import annotations

import re

from ringfence.host.egress.refusals import Code, Refusal

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]*)?")
_LONGEST = 1024  # characters of a size with extensions, which nobody has use for
_LONGEST_TRAILER = 8 << 10  # of one line; all of them are dropped
_LINE_END = 2


class Sizes:
    """Of one body, fed in the order of the wire. After its last line, the empty one, nothing is looked at."""

    def __init__(self) -> None:
        self._line = b""
        self._left = 0  # bytes of the present chunk that are still to come, with its line end
        self._last = False  # trailers follow, then the empty line
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Refusal `malformed`."""
        at = 0
        while at < len(data) and not self._ended:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            stop = len(data) if end < 0 else end + 1
            self._line += data[at:stop]
            at = stop
            if len(self._line) > (_LONGEST_TRAILER if self._last else _LONGEST):
                raise _bad()
            if end >= 0:
                (self._trailer if self._last else self._read)(self._line)
                self._line = b""

    def _trailer(self, line: bytes) -> None:
        if not line.endswith(b"\r\n") or b"\r" in line[:-_LINE_END]:
            raise Refusal(Code.MALFORMED, "a line behind the last chunk ends in a bare CR or LF", close=True)
        self._ended = line == b"\r\n"

    def _read(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line.removesuffix(b"\r\n")) if line.endswith(b"\r\n") else None
        if found is None:
            raise _bad()
        size = int(found.group(1), 16)
        self._last = size == 0
        self._left = 0 if self._last else size + _LINE_END


def _bad() -> Refusal:
    return Refusal(Code.MALFORMED, "a chunk's size is at most 16 hexadecimal digits on a line of its own", close=True)
