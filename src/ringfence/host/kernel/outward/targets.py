"""Which path is meant: a request-target in origin-form (RFC 9112 3.2.1), and its one reading for rules. Pure.

The raw bytes are what is forwarded, the canonical path is what is judged. So that no server can read the first as
anything but the second, whatever would have to be repaired on the way (dot segments, empty segments, parameters) is
refused, and so is what reads otherwise when it is decoded twice. A query is never decoded or encoded: signatures are
over its bytes.

Canonical: printable ASCII. An escape of a printable character is taken for the character, but for those that divide
(`/ ? # % ;`), which stay escaped, as does the rest; hexadecimal digits in upper case. `canonical(canonical(x)) ==
canonical(x)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.host.kernel.outward.authority import Malformed

LONGEST = 8 << 10
ENCODED_SLASH = "%2F"
_EMPTY = ("//", "/%2F", "%2F/", "%2F%2F")  # whichever slash a server takes for one
_PRINTABLE = bytes(range(0x21, 0x7F))
_HEX = frozenset("0123456789abcdefABCDEF")
_DIVIDE = frozenset("/?#%;")
_PERCENT = "%25"


class TooLong(Malformed):
    code = "too_large"
    http_status = 414


@dataclass(frozen=True, slots=True)
class Target:
    """`raw`: to be forwarded as it is. `query`: as it is, without the question mark; "" for none."""

    raw: bytes
    path: str
    query: str


def target(raw: bytes, *, encoded_slash: bool = False) -> Target:
    """`encoded_slash`: %2F is let through as what it is, no divider. Only for a host with a rule that names it
    (`Matcher.encoded_slash`): npm asks for /@scope%2Fname, GitLab for /projects/group%2Fname. Malformed, TooLong.
    """
    if len(raw) > LONGEST:
        raise TooLong(f"the target is longer than {LONGEST} bytes")
    if not raw.startswith(b"/"):
        raise Malformed("the target is not in origin-form")
    if raw.translate(None, _PRINTABLE):
        raise Malformed("the target has a space, a control or a byte that is not ASCII")
    if b"#" in raw:
        raise Malformed("the target has a fragment")
    path, _, query = raw.decode("ascii").partition("?")
    return Target(raw, canonical(path, encoded_slash=encoded_slash), query)


def canonical(path: str, *, encoded_slash: bool = False) -> str:
    """Of a path that begins with `/` and is printable ASCII, without a query. Malformed."""
    if "\\" in path:
        raise Malformed("the path has a backslash")
    if ";" in path:
        raise Malformed("the path has a parameter (;)")
    read = _unescaped(path) if "%" in path else path
    if _PERCENT in read and _twice(read):
        raise Malformed("the path is encoded twice")
    if ENCODED_SLASH in read and not encoded_slash:
        raise Malformed(
            "the path has an encoded slash (%2F)", remedy="a rule of this host that has %2F in its paths admits it"
        )
    if any(each in read for each in _EMPTY):
        raise Malformed("the path has an empty segment")
    if "." in read and _dots(read):
        raise Malformed("the path has a dot segment")
    return read


def segments(path: str) -> list[str]:
    """Of a canonical path: what stands behind each slash. What stands behind an encoded one begins with `%2F`."""
    return path.replace(ENCODED_SLASH, "/" + ENCODED_SLASH).split("/")[1:]


def _dots(path: str) -> bool:
    """Servers that know parameters take `..%3Bx` for `..`."""
    return any(each.removeprefix(ENCODED_SLASH).partition("%3B")[0] in (".", "..") for each in segments(path))


def _twice(path: str) -> bool:
    """Whether a percent sign begins another escape once it is decoded. Of the path as it was read: the digits behind it
    may have been escaped themselves (`%25%32%65`)."""
    return any(len(each) > 1 and _HEX.issuperset(each[:2]) for each in path.split(_PERCENT)[1:])


def _unescaped(path: str) -> str:
    first, *rest = path.split("%")
    read, octets = [first], bytearray(first, "ascii")
    for piece in rest:
        code, tail = piece[:2], piece[2:]
        if len(code) != 2 or not _HEX.issuperset(code):
            raise Malformed("the path has a % that begins no escape")
        octet = int(code, 16)
        read.append(_one(octet) + tail)
        octets.append(octet)
        octets += tail.encode("ascii")
    try:
        octets.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed("the path is not UTF-8") from None
    return "".join(read)


def _one(octet: int) -> str:
    """What an escape of `octet` becomes."""
    character = chr(octet)
    if octet < 0x20 or octet == 0x7F:
        raise Malformed("the path has an encoded control character")
    if character == "\\":
        raise Malformed("the path has an encoded backslash")
    if 0x20 < octet < 0x7F and character not in _DIVIDE:
        return character
    return f"%{octet:02X}"
