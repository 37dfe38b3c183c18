"""Netlink messages as bytes, and one exchange with the kernel. Pure but for `exchange`.

Formats: Linux uapi netlink.h, rtnetlink.h, nfnetlink.h, nf_tables.h; man 7 netlink. Must never be given bytes of a box.
"""

from __future__ import annotations

import os
import socket
import struct

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

REQUEST, ACK, CREATE, EXCL = 0x1, 0x4, 0x400, 0x200
APPEND = 0x800
_NESTED = 0x8000
_ERROR = 2
_HEADER = struct.Struct("=IHHII")


def message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def attribute(kind: int, data: bytes) -> bytes:
    """One attribute, padded to 4 bytes."""
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(parts))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def word(kind: int, value: int) -> bytes:
    """A 32-bit number in network order, as nf_tables takes them."""
    return attribute(kind, struct.pack(">I", value & 0xFFFF_FFFF))


def exchange(protocol: int, data: bytes, acknowledgements: int) -> None:
    """Sends `data` and reads that many acknowledgements. Raises the first error among them as OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as channel:
        channel.settimeout(5)  # the kernel answers before send returns; a silent one must not hang the spawner
        channel.send(data)
        while acknowledgements > 0:
            acknowledgements -= _acknowledged(channel.recv(65536))


def _acknowledged(data: bytes) -> int:
    """How many acknowledgements are in one datagram. Raises OSError for a refusal."""
    offset = found = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, offset)
        if kind == _ERROR:
            (code,) = struct.unpack_from("=i", data, offset + _HEADER.size)
            if code:
                raise OSError(-code, os.strerror(-code), "netlink")
            found += 1
        offset += (length + 3) & ~3
    return found
