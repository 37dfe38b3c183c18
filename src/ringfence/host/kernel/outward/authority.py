"""Which host is meant: the one reading of names, for CONNECT, Host, SNI, DNS and rules alike. Pure.

Strict: what two parsers read differently is refused here, so that policy, resolver and dialler mean the same host.
Must never look a name up, decode punycode for a decision, nor repair what is wrong. Nothing else may parse a host.

Sources: RFC 1123 2.1 (letters, digits, hyphens; `_` as DNS has it), RFC 3986 3.2.2 (brackets), RFC 5952 (text of IPv6),
WHATWG URL 3.5 (a last label that is a number makes an IPv4 address).
"""

from __future__ import annotations

import unicodedata
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from ringfence.host.kernel.errors import Invalid

Address = IPv4Address | IPv6Address

LONGEST = 253  # characters of a name, without the trailing dot: 255 octets on the wire (RFC 1035 3.1)
LABEL = 63
PORTS = range(1, 65536)
HTTP, HTTPS = 80, 443
_NAME = b"abcdefghijklmnopqrstuvwxyz0123456789-_."
_DIGITS = frozenset("0123456789")


class Malformed(Invalid):
    """Bytes that have no single meaning. `reason` is constant text: nothing of the bytes is in it."""

    code = "malformed"
    http_status = 400

    @property
    def reason(self) -> str:
        return self.message


def host(raw: bytes | str) -> str:
    """The canonical form: lower case, no trailing dot; an address as RFC 5952 has it, without brackets, IPv4 in IPv6
    taken out. `host(host(x)) == host(x)`. Malformed.
    """
    text = _ascii(raw)
    if text.startswith("["):
        if not text.endswith("]"):
            raise Malformed("a bracket of the host is not closed")
        return _v6(text[1:-1])
    if ":" in text:
        return _v6(text)
    return _name(text)


def authority(raw: bytes | str, default_port: int | None) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port` as (canonical host, port). `default_port` None: the port must be there
    (CONNECT). Malformed: userinfo, an IPv6 address without brackets, a port that is not 1-65535 in plain digits.
    """
    text = _ascii(raw)
    if "@" in text:
        raise Malformed("userinfo stands before the host")
    if text.startswith("["):
        inside, closed, rest = text[1:].partition("]")
        if not closed:
            raise Malformed("a bracket of the host is not closed")
        return _v6(inside), _port(rest, default_port)
    name, colon, number = text.partition(":")
    if ":" in number:
        raise Malformed("an IPv6 address stands without brackets")
    return _name(name), _port(colon + number, default_port)


def literal(canonical: str) -> Address | None:
    """The address that a canonical host is, or None: it is a name. Malformed: it is not canonical."""
    if ":" in canonical:
        return _parsed_v6(canonical)
    if not _numeric(canonical[canonical.rfind(".") + 1 :]):
        return None
    return _parsed_v4(canonical)


def unicode_warning(canonical: str) -> str | None:
    """For people who are asked about a host with `xn--` in it: what it shows as, and that this may imitate another."""
    labels = canonical.split(".")
    if not any(label.startswith("xn--") for label in labels):
        return None
    decoded = [_decoded(label) for label in labels]
    if None in decoded:
        return f"{canonical} has a label that begins with xn-- and does not decode: nobody registers such a name"
    shown = ".".join(label for label in decoded if label is not None)
    marks = ", ".join(dict.fromkeys(_point(each) for each in shown if not each.isascii()))
    visible = shown if shown.isprintable() else ascii(shown)
    return f"{canonical} shows as {visible}, with non-ASCII characters ({marks}): it may imitate another name"


def _ascii(raw: bytes | str) -> str:
    """Lower case. The length is looked at first: the rest may take its time."""
    if len(raw) > LONGEST + 8:  # a trailing dot, `:65535`, and one over
        raise Malformed(f"the host is longer than {LONGEST} characters")
    try:
        text = raw.decode("ascii") if isinstance(raw, bytes) else raw.encode("ascii").decode("ascii")
    except UnicodeError:
        raise Malformed("the host has a byte that is not ASCII") from None
    return text.lower()


def _name(text: str) -> str:
    if text.encode().translate(None, _NAME):
        raise Malformed("the host has a character other than letters, digits, - _ .")
    name = text[:-1] if text.endswith(".") else text
    if len(name) > LONGEST:
        raise Malformed(f"the host is longer than {LONGEST} characters")
    labels = name.split(".")
    for label in labels:
        if not label:
            raise Malformed("a label of the host is empty")
        if len(label) > LABEL:
            raise Malformed(f"a label of the host is longer than {LABEL} characters")
    if _numeric(labels[-1]):
        if name is not text:  # names have a root, addresses have none: parsers differ
            raise Malformed("a dot stands behind an address")
        return str(_parsed_v4(name))
    return name


def _numeric(last: str) -> bool:
    """Whether somebody may read what ends like this as an IPv4 address: decimal, octal, hexadecimal, short."""
    return last.startswith("0x") or _DIGITS.issuperset(last)


def _parsed_v4(text: str) -> IPv4Address:
    """Four decimal numbers without leading zeros, nothing else (inet_aton takes far more)."""
    try:
        return IPv4Address(text)
    except AddressValueError:
        raise Malformed("the host ends in a number and is no dotted quad") from None


def _v6(text: str) -> str:
    return str(_parsed_v6(text))


def _parsed_v6(text: str) -> Address:
    if "%" in text:
        raise Malformed("an address with a zone")
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise Malformed("what stands in brackets or has a colon is no IPv6 address") from None
    return address.ipv4_mapped or address


def _port(rest: str, default: int | None) -> int:
    """`:number` or nothing."""
    if not rest:
        if default is None:
            raise Malformed("there is no port")
        return default
    digits = rest[1:]
    if rest[0] != ":" or not digits or len(digits) > 5 or digits[0] == "0" or not _DIGITS.issuperset(digits):
        raise Malformed("the port is no number from 1 to 65535")
    port = int(digits)
    if port not in PORTS:
        raise Malformed("the port is no number from 1 to 65535")
    return port


def _decoded(label: str) -> str | None:
    if not label.startswith("xn--"):
        return label
    try:
        return label[4:].encode().decode("punycode")
    except (UnicodeError, OverflowError, ValueError):
        return None


def _point(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
