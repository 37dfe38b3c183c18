"""Frames: one line of JSON each. Bytes in, lines and objects out; no I/O, no clock, no state but a half line.

Both ends use it, PID 1 of a box among them, which must be up within twice the start of a bare interpreter. So it
imports nothing that costs: the C scanner and encoder behind `json`, and `json` itself (8 ms) only where they are
missing. It must never raise anything but ProtocolError for what arrives, and never let a frame of the far end cost
more than a constant factor of its own length.

    ProtocolError
    ├── LocalProtocolError    we tried to say what may not be said: a fault of ours, nothing was sent
    └── RemoteProtocolError   the far end said it: the connection is ended
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_native: "Any"
try:
    import _json as _native
except ImportError:  # an interpreter without the C accelerator: same rules, slower
    _native = None

MAX_FRAME = 1024 * 1024
"""Bytes of one frame, its newline not counted."""
MAX_LOOP_FRAME = MAX_FRAME - 64
"""Bytes of a frame of an agent loop: the wrapper around it (14 bytes and a run id of at most 40) must fit as well."""
MAX_DEPTH = 64
MAX_KEYS = 10_000
MAX_RUN_ID = 40
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
_INT_DIGITS = 20  # a sign and 19 digits: longer ones are refused before anything converts them
_RUN_HEAD, _RUN_MID, _RUN_TAIL = b'{"run":"', b'","f":', b"}"
_RUN_CHARS = b"abcdefghijklmnopqrstuvwxyz0123456789_"


class ProtocolError(Exception):
    """The rules of the wire were broken."""


class LocalProtocolError(ProtocolError):
    """By this end."""


class RemoteProtocolError(ProtocolError):
    """By the far end."""


class LineBuffer:
    """Cuts a stream of bytes into lines. Work and memory are linear in what is fed."""

    __slots__ = ("_limit", "_parts", "_size")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        """`limit`: bytes of one line without its newline."""
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes of the frame that has begun and not ended."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without newlines. RemoteProtocolError: a line is longer than the limit;
        the buffer is of no use afterwards."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts, self._size = [], 0
        for line in lines:
            if len(line) > self._limit:
                raise RemoteProtocolError(f"a frame of {len(line)} bytes; the limit is {self._limit}")
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise RemoteProtocolError(f"a frame of more than {self._limit} bytes, the limit")
            if len(self._parts) > 1024:  # a far end that sends byte by byte must not cost an object for each of them
                self._parts = [b"".join(self._parts)]
        return lines

    def at_eof(self) -> None:
        """RemoteProtocolError when the stream ends within a frame."""
        if self._size:
            raise RemoteProtocolError(f"the stream ended after {self._size} bytes of a frame")


# --- the wrapper of an agent loop's frames ---------------------------------------------------------------------------


def wrap_run(run_id: bytes | str, frame: bytes) -> bytes:
    """`{"run":"<id>","f":<frame>}` and a newline. The frame is not parsed, it is put in as it is (a newline at its end
    is dropped); whatever it holds, `unwrap_run` gives exactly these bytes back. LocalProtocolError: no run id."""
    name = run_id.encode("ascii", "replace") if isinstance(run_id, str) else run_id
    if not _is_run_id(name):
        raise LocalProtocolError(f"no run id: {name!r}")
    return _RUN_HEAD + name + _RUN_MID + frame.rstrip(b"\n") + _RUN_TAIL + b"\n"


def is_wrapped(line: bytes) -> bool:
    """Whether `unwrap_run` gives a loop's frame for it, or refuses it: nothing of such a line is parsed here."""
    return line.startswith(_RUN_HEAD)


def unwrap_run(line: bytes) -> tuple[str, bytes] | None:
    """(run id, frame) of a wrapped line, None for a line that is not wrapped. By exact prefix: the wrapper has no
    spaces, no other order and no escapes. RemoteProtocolError: begins like one and is none."""
    if not is_wrapped(line):
        return None
    start = len(_RUN_HEAD)
    end = line.find(_RUN_MID, start, start + MAX_RUN_ID + len(_RUN_MID))
    name = line[start:end] if end >= 0 else b""
    if not _is_run_id(name) or not line.endswith(_RUN_TAIL):
        raise RemoteProtocolError("a malformed wrapper of a run's frame")
    return name.decode("ascii"), line[end + len(_RUN_MID) : -1]


def _is_run_id(name: bytes) -> bool:
    return 1 <= len(name) <= MAX_RUN_ID and not name.strip(_RUN_CHARS)


# --- encode ----------------------------------------------------------------------------------------------------------


def encode(value: "dict[str, Any]", limit: int = MAX_FRAME) -> bytes:
    """One frame: ASCII JSON and a newline. LocalProtocolError for what the far end would refuse (too long, too deep,
    too many keys, an integer beyond 64 bits, a lone surrogate, NaN) and for what JSON cannot say."""
    try:
        _check(value, LocalProtocolError)
        text = "".join(_encoder(value, 0))
    except (ValueError, RecursionError) as error:
        raise LocalProtocolError(f"cannot be said in JSON: {error}") from None
    if len(text) > limit:
        raise LocalProtocolError(f"a frame of {len(text)} bytes; the limit is {limit}")
    return text.encode("ascii") + b"\n"


def _unsayable(value: object) -> "NoReturn":
    raise LocalProtocolError(f"cannot be said in JSON: {type(value).__name__}")


def _new_encoder() -> "Any":
    if _native is not None:  # markers, default, string encoder, indent, separators, sort, skip keys, NaN
        quote = _native.encode_basestring_ascii
        return _native.make_encoder(None, _unsayable, quote, None, ":", ",", False, False, False)
    from json import JSONEncoder

    slow = JSONEncoder(allow_nan=False, separators=(",", ":"), default=_unsayable)
    return lambda value, level: (slow.encode(value),)


# --- decode ----------------------------------------------------------------------------------------------------------


def decode(line: bytes) -> "dict[str, Any]":
    """The object of one frame. Strict: UTF-8, an object, nothing before or after it, at most MAX_DEPTH levels and
    MAX_KEYS keys, no key twice, integers within 64 bits, finite numbers, no lone surrogates.
    RemoteProtocolError, and nothing else, says what is wrong."""
    try:
        text = line.decode("utf-8")
        value, end = _scanner(text, 0)
    except UnicodeDecodeError:
        raise RemoteProtocolError("a frame that is not UTF-8") from None
    except RecursionError:
        raise RemoteProtocolError(f"a frame deeper than {MAX_DEPTH} levels") from None
    except (ValueError, StopIteration, SystemError):  # SystemError: the C scanner, while json.decoder is not imported
        raise RemoteProtocolError("a frame that is not JSON") from None
    if end != len(text):
        raise RemoteProtocolError("a frame with more than one value")
    if type(value) is not dict:
        raise RemoteProtocolError("a frame that is not an object")
    if _may_break_bounds(line):
        _check(value, RemoteProtocolError)
    return value


def _may_break_bounds(line: bytes) -> bool:
    """Cheap and never wrong in the bad direction: brackets, colons and escapes bound depth, keys and surrogates."""
    return (
        line.count(b"{") + line.count(b"[") > MAX_DEPTH
        or line.count(b":") > MAX_KEYS
        or b"\\ud" in line
        or b"\\uD" in line
    )


def _pairs(pairs: "list[tuple[str, Any]]") -> "dict[str, Any]":
    value = dict(pairs)
    if len(value) != len(pairs):
        raise RemoteProtocolError("a frame that has a key twice")
    return value


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= _INT_DIGITS else INT_MAX + 1
    if not INT_MIN <= value <= INT_MAX:
        raise RemoteProtocolError("a frame with an integer beyond 64 bits")
    return value


def _number(digits: str) -> float:
    value = float(digits)
    if value - value != 0.0:  # 1e999 is read as infinity
        raise RemoteProtocolError("a frame with a number that is not finite")
    return value


def _constant(name: str) -> "NoReturn":
    raise RemoteProtocolError(f"a frame with {name}, which is not JSON")


class _Rules:
    """What the C scanner asks its context for."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_pairs)
    parse_float = staticmethod(_number)
    parse_int = staticmethod(_integer)
    parse_constant = staticmethod(_constant)


def _new_scanner() -> "Any":
    if _native is not None:
        return _native.make_scanner(_Rules)
    from json import JSONDecoder

    slow: Any = JSONDecoder(
        strict=True, object_pairs_hook=_pairs, parse_float=_number, parse_int=_integer, parse_constant=_constant
    )
    return slow.scan_once


def _check(value: object, error: type[ProtocolError]) -> None:
    """Depth, keys, integers and text of a value, without recursion: one level of the tree after the other."""
    level: list[object] = [value]
    depth = keys = 0
    while level:
        depth += 1
        below: list[object] = []
        for item in level:
            if depth > MAX_DEPTH and isinstance(item, (dict, list, tuple)):
                raise error(f"a frame deeper than {MAX_DEPTH} levels")
            if type(item) is dict:
                keys += len(item)
                if keys > MAX_KEYS:
                    raise error(f"a frame of more than {MAX_KEYS} keys")
                below.extend(item)
                below.extend(item.values())
            elif type(item) is list or type(item) is tuple:
                below.extend(item)
            elif type(item) is str:
                if not item.isascii():
                    _check_text(item, error)
            elif type(item) is int and not INT_MIN <= item <= INT_MAX:
                raise error("a frame with an integer beyond 64 bits")
        level = below


def _check_text(text: str, error: type[ProtocolError]) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise error("a frame with half of a surrogate pair") from None


_encoder = _new_encoder()
_scanner = _new_scanner()
