"""The box's packet rules as one nfnetlink batch: a constant, built once, no program run.

    table inet ringfence {
      chain out { type nat hook output priority -100;
        ip daddr 127.0.0.0/8 return; ip6 daddr ::1 return;
        meta l4proto tcp redirect to :TRANSPARENT; udp dport 53 redirect to :DNS; }
      chain guard { type filter hook output priority 0;
        ip daddr 127.0.0.0/8 accept; ip6 daddr ::1 accept; udp sport 53 accept; meta l4proto udp reject; }
    }

A client that asked another address for a name is, all addresses being local, at that address itself: the answer to it does
not go to the loopback. Its source port 53 is nobody's in the box.

Numbers: Linux uapi linux/netfilter/nf_tables.h. Nothing here depends on a box.
"""

from __future__ import annotations

import struct
from functools import cache

from ringfence.spawner import netlink
from ringfence.spawner.netlink import attribute, nested, text, word

# Below 1024: nothing in the box can bind them first (it has no capability in this namespace's owner).
TRANSPARENT_PORT = 1022
DNS_PORT = 53

_INET, _IPV4, _IPV6 = 1, 2, 10  # NFPROTO_*
_TCP, _UDP = 6, 17
_SUBSYSTEM = 10 << 8  # NFNL_SUBSYS_NFTABLES
_TABLE, _CHAIN, _RULE = _SUBSYSTEM, _SUBSYSTEM | 3, _SUBSYSTEM | 6
_BATCH_BEGIN, _BATCH_END = 16, 17
_OUTPUT = 3  # NF_INET_LOCAL_OUT
_META_NFPROTO, _META_L4PROTO = 15, 16
_NETWORK, _TRANSPORT = 1, 2  # payload bases
_RETURN, _ACCEPT = -5, 1
_REGISTER = 1  # NFT_REG_1, 16 bytes
_NAME = "ringfence"


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *attributes))  # NFTA_LIST_ELEM { NAME, DATA }


def _meta(key: int) -> bytes:
    return _expression("meta", word(1, _REGISTER), word(2, key))


def _equals(value: bytes) -> bytes:
    return _expression("cmp", word(1, _REGISTER), word(2, 0), nested(3, attribute(1, value)))


def _payload(base: int, offset: int, length: int) -> bytes:
    return _expression("payload", word(1, _REGISTER), word(2, base), word(3, offset), word(4, length))


def _verdict(code: int) -> bytes:
    return _expression("immediate", word(1, 0), nested(2, nested(2, word(1, code))))


def _redirect(port: int) -> bytes:
    value = nested(2, attribute(1, struct.pack(">H", port)))
    return _expression("immediate", word(1, _REGISTER), value) + _expression("redir", word(1, _REGISTER))


def _loopback4() -> bytes:
    # Offset 16 of the IPv4 header is the destination; its first byte is enough for 127.0.0.0/8.
    return _meta(_META_NFPROTO) + _equals(bytes([_IPV4])) + _payload(_NETWORK, 16, 1) + _equals(b"\x7f")


def _loopback6() -> bytes:
    return _meta(_META_NFPROTO) + _equals(bytes([_IPV6])) + _payload(_NETWORK, 24, 16) + _equals(b"\0" * 15 + b"\x01")


def _protocol(number: int) -> bytes:
    return _meta(_META_L4PROTO) + _equals(bytes([number]))


def _rules() -> list[tuple[str, bytes]]:
    dns = _payload(_TRANSPORT, 2, 2) + _equals(struct.pack(">H", 53))
    answer = _payload(_TRANSPORT, 0, 2) + _equals(struct.pack(">H", DNS_PORT))
    reject = _expression("reject", word(1, 2), attribute(2, b"\x01"))  # ICMPX, port unreachable
    return [
        ("out", _loopback4() + _verdict(_RETURN)),
        ("out", _loopback6() + _verdict(_RETURN)),
        ("out", _protocol(_TCP) + _redirect(TRANSPARENT_PORT)),
        ("out", _protocol(_UDP) + dns + _redirect(DNS_PORT)),
        ("guard", _loopback4() + _verdict(_ACCEPT)),
        ("guard", _loopback6() + _verdict(_ACCEPT)),
        ("guard", _protocol(_UDP) + answer + _verdict(_ACCEPT)),
        ("guard", _protocol(_UDP) + reject),
    ]


def _message(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    family = struct.pack(">BBH", _INET, 0, 0)
    return netlink.message(kind, netlink.REQUEST | netlink.ACK | netlink.CREATE | flags, sequence, family + body)


def _chain(name: str, kind: str, priority: int) -> bytes:
    hook = nested(4, word(1, _OUTPUT), word(2, priority))
    return text(1, _NAME) + text(3, name) + hook + text(7, kind)


@cache
def batch() -> tuple[bytes, int]:
    """(bytes for NETLINK_NETFILTER, acknowledgements to expect). Atomic: all of it or nothing."""
    bodies = [(_TABLE, 0, text(1, _NAME)), (_CHAIN, 0, _chain("out", "nat", -100))]
    bodies.append((_CHAIN, 0, _chain("guard", "filter", 0)))
    for chain, expressions in _rules():
        rule = text(1, _NAME) + text(2, chain) + nested(4, expressions)
        bodies.append((_RULE, netlink.APPEND, rule))
    bound = struct.pack(">BBH", 0, 0, 10)  # res_id: the subsystem
    data = netlink.message(_BATCH_BEGIN, netlink.REQUEST, 0, bound)
    data += b"".join(_message(kind, flags, n, body) for n, (kind, flags, body) in enumerate(bodies, 1))
    data += netlink.message(_BATCH_END, netlink.REQUEST, len(bodies) + 1, bound)
    return data, len(bodies)
