"""Fuzz target: whatever ClientHello ours accepts, OpenSSL reads for the same name, however its records are cut.

An input is a hello on the wire. The good ones are OpenSSL's own, taken apart and put together otherwise. How to run it:
tests/fuzz/running.py.
"""

from __future__ import annotations

import random
import ssl
import struct
import sys
from contextlib import suppress

from ringfence.host.egress.hello import MOST, Hello, Malformed, Short, parse
from ringfence.host.kernel.outward import authority
from tests.fuzz.running import Target, damaged

_RECORD = 5  # bytes of a record's header: RFC 8446 section 5.1
_FIXED = 4 + 2 + 32  # type and length of the message, version, random
_NOT_ASCII = "\ufffd"
NAMES = [
    *(b"api.test", b"API.Test", b"api.test.", b"a..b", b"127.0.0.1", b"::1", b"", b"a" * 64 + b".test", b"x" * 300),
    *(
        b"api.test\0.evil.test",
        b"api test",
        b"\xc3\xa9.test",
        b"xn--pple-43d.com",
        b"_dmarc.api.test",
        b"0x7f.1",
        b"api-.test",
    ),
]
SPICE = [
    b"\0",
    b"\x16\x03\x01",
    b"\0\0",
    b"\xff\xff",
    b"\xfe\x0d\0\0",
    b"\0\x10\0\0",
    b"\x01",
    b"api.test",
    b"\x15\x03\x01\0\x02\x01\0",
]


def _greeting(name: str | None, least: ssl.TLSVersion) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = context.maximum_version = least
    context.set_alpn_protocols(["h2", "http/1.1"])
    out = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


HELLOS = [
    _greeting(name, least) for name in ("api.test", None) for least in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
]


def _server(said: list[str | None]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: said.append(name)
    return context


def one_input(wire: bytes) -> bool:
    said: list[str | None] = []
    _openssl(wire, said)
    try:
        read = parse(wire)
    except Malformed:
        return False
    if isinstance(read, Short):
        assert len(wire) < read.need <= MOST
        assert not said, "OpenSSL needs no more of it"
        return False
    if read.name is not None:
        assert authority.host(read.name) == read.name and authority.literal(read.name) is None
    if said:
        assert said == [read.name] or (said[0] or "").lower().removesuffix(".") == read.name, (said, read)
    _in_pieces(wire, read)
    return True


def _openssl(wire: bytes, said: list[str | None]) -> None:
    """`said`: the name that a real server is told, once; of one that is not ASCII Python says so by a hook alone."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: said.append(_NOT_ASCII)
    incoming = ssl.MemoryBIO()
    incoming.write(wire)
    try:
        _server(said).wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLError:
        pass
    finally:
        sys.unraisablehook = hook


def _in_pieces(wire: bytes, read: Hello) -> None:
    """Any beginning is short, and says by how much; what follows does not count; records may be cut anywhere."""
    low, high = 0, len(wire)  # the hello ends at `high` at the latest
    while low < high:
        middle = (low + high) // 2
        if isinstance(parse(wire[:middle]), Short):
            low = middle + 1
        else:
            high = middle
    for cut in {0, 1, _RECORD, low // 2, low - 1}:
        short = parse(wire[:cut])
        assert isinstance(short, Short) and cut < short.need <= _whole(wire, low)
    assert parse(wire[:low] + b"\xff" * 9) == read
    assert parse(records(_message(wire[:low]), 50)) == read


def _whole(wire: bytes, end: int) -> int:
    """Where the record ends in which `end` is: OpenSSL reads none by half."""
    at = 0
    while at < end:
        at += _RECORD + int.from_bytes(wire[at + 3 : at + _RECORD], "big")
    return at


def _message(wire: bytes) -> bytes:
    """Of its records."""
    message, at = b"", 0
    while at + _RECORD <= len(wire):
        size = int.from_bytes(wire[at + 3 : at + _RECORD], "big")
        message += wire[at + _RECORD : at + _RECORD + size]
        at += _RECORD + size
    return message


def records(message: bytes, size: int) -> bytes:
    pieces = (message[at : at + size] for at in range(0, len(message), size))
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(piece)) + piece for piece in pieces)


def extensions(hello: bytes) -> tuple[bytes, list[tuple[int, bytes]]]:
    """(what stands before them, they) of a message of one record."""
    message = _message(hello)
    at = _FIXED
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    before, at, found = message[4:at], at + 2, []
    while at < len(message):
        kind, size = struct.unpack_from("!HH", message, at)
        found.append((kind, message[at + 4 : at + 4 + size]))
        at += 4 + size
    return before, found


def _vector(data: bytes) -> bytes:
    return struct.pack("!H", len(data)) + data


def _names(chance: random.Random) -> bytes:
    """A server_name extension (RFC 6066 section 3), mostly with one name."""
    count = chance.choice((1, 1, 1, 1, 1, 1, 0, 2))
    kinds = (chance.choice((0, 0, 0, 0, 0, 0, 0, 1)) for _ in range(count))
    return _vector(b"".join(bytes([kind]) + _vector(chance.choice(NAMES)) for kind in kinds))


def _otherwise(chance: random.Random, found: list[tuple[int, bytes]]) -> None:
    at = chance.randrange(len(found))
    match chance.randrange(5):
        case 0:
            found[:] = [(0, _names(chance)), *(each for each in found if each[0] != 0)]
        case 1:
            found.insert(at, found[chance.randrange(len(found))])
        case 2:
            del found[at]
        case 3:
            found.insert(
                at,
                (chance.choice((0, 16, 21, 0xFE0D, 0xFF02, 0xFFCE, 0x0A0A, 41)), chance.randbytes(chance.randrange(9))),
            )
        case _:
            chance.shuffle(found)


def mutated(chance: random.Random) -> bytes:
    before, found = extensions(chance.choice(HELLOS))
    for _ in range(chance.choice((0, 1, 1, 2))):
        if found:
            _otherwise(chance, found)
    body = before + _vector(b"".join(struct.pack("!H", kind) + _vector(data) for kind, data in found))
    data = bytearray(
        records(b"\x01" + len(body).to_bytes(3, "big") + body, chance.choice((16384, 16384, 16384, 100, 7)))
    )
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        damaged(chance, data, SPICE)
    return bytes(data)


TARGET = Target(one_input, mutated)

if __name__ == "__main__":
    TARGET.main()
