"""Fuzz target: the box's resolver answers what a third reader finds asked, and nothing else; answers from outside are read or not.

An input is its first byte (a box's question, or a server's answer), and the packet. How to run it: tests/fuzz/running.py.
"""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address

import dns.message
import dns.rcode
import dns.rdatatype

from ringfence.host.egress import resolver
from ringfence.host.egress.dns_answers import Answers
from ringfence.host.egress.synthetic import Names
from ringfence.host.kernel.outward import authority
from tests.fuzz.running import Target, damaged

REACHABLE = frozenset({"api.test", "a.api.test", "xn--pple-43d.com"})
_A, _AAAA, _TXT, _ANY, _HTTPS, _CNAME, _OPT = 1, 28, 16, 255, 65, 5, 41
_HEADER = struct.Struct("!HHHHHH")
_NAMES = Names(b"k" * 32)
_MOST = 600  # bytes of an answer beside the question: two records and OPT have less
NAMES = [
    *(("api", "test"), ("API", "tEst"), ("a", "api", "test"), ("xn--pple-43d", "com")) * 5,
    *(("evil", "test"), ("secret" * 9, "evil", "test"), ()),
    *(("api.test",), ("api", "test\0"), ("127", "0", "0", "1"), ("é", "test"), ("a" * 63,) * 3, ("_x", "api", "test")),
]
SPICE = [
    b"\xc0\x0c",
    b"\xc0\xff",
    b"\0",
    b"\xff",
    b"\x3f",
    b"\x40",
    b"\x03api\x04test\0",
    b"\0\x29\x04\xd0\0\0\0\0\0\0",
    b"\0\x01",
]


def name(labels: tuple[str, ...]) -> bytes:
    return b"".join(bytes([len(raw)]) + raw for raw in (label.encode()[:63] for label in labels)) + b"\0"


def one_input(data: bytes) -> bool:
    return _outside(data[1:]) if data and data[0] % 4 == 3 else _asked(data[1:])


# --- a box's question -------------------------------------------------------------------------------------------------


def _asked(wire: bytes) -> bool:
    denied: list[str] = []
    said = Answers(_NAMES, REACHABLE.__contains__, denied.append).answer(wire)
    assert REACHABLE.isdisjoint(denied)
    if len(wire) < _HEADER.size or wire[2] & 0x80:
        assert said is None
        return False
    assert said is not None and len(said) <= len(wire) + _MOST
    ident, flags, questions, answers, authorities, _ = _HEADER.unpack_from(said)
    assert ident == _HEADER.unpack_from(wire)[0] and flags & 0x8000 and not authorities
    code = dns.message.from_wire(said).rcode()
    found = _plainly(wire)
    if code is not dns.rcode.NOERROR:
        assert not answers and (code is not dns.rcode.NXDOMAIN or denied)
        return False
    assert found is not None and questions == 1 and not denied, (found, said)
    host, kind = found
    assert host in REACHABLE
    assert answers == (kind in (_A, _AAAA)), "nothing but addresses is ever said"
    if answers:
        v4, v6 = _NAMES.addresses(host)
        assert said.endswith(ip_address(v4 if kind == _A else v6).packed) or b"\0\0\x29" in said
        assert _NAMES.name_of(v4) == _NAMES.name_of(v6) == host
    return True


def _plainly(wire: bytes) -> tuple[str, int] | None:
    """(canonical name, type) of the one question of class IN; None: there is none, or not in the shortest words."""
    if _HEADER.unpack_from(wire)[2] != 1:
        return None
    labels, at = [], _HEADER.size
    while at < len(wire) and (size := wire[at]):
        if size > 63:
            return None
        labels.append(wire[at + 1 : at + 1 + size])
        at += 1 + size
    if len(wire) < at + 5 or wire[at + 3 : at + 5] != b"\0\x01" or any(b"." in label for label in labels):
        return None
    try:
        return authority.host(b".".join(labels)), int.from_bytes(wire[at + 1 : at + 3], "big")
    except authority.Malformed:
        return None


# --- a server's answer ------------------------------------------------------------------------------------------------

QUERY = dns.message.make_query("api.test.", dns.rdatatype.A, id=7)


def _outside(wire: bytes) -> bool:
    read = resolver._parsed(wire, QUERY)
    if read is None:
        return False
    assert read.id == QUERY.id and read.question == QUERY.question
    found = resolver._read(read, dns.rdatatype.A)
    assert not found.addresses or found.final
    for address in found.addresses:
        literal = authority.literal(address)
        assert literal is not None and str(literal) == address and literal.packed in wire
    assert resolver._SHORTEST <= found.ttl <= resolver._LONGEST
    return bool(found.addresses)


# --- inputs -----------------------------------------------------------------------------------------------------------


def _question(chance: random.Random) -> bytes:
    flags = chance.choice((0x0100,) * 12 + (0, 0x2900, 0x8180))
    count = chance.choice((1,) * 10 + (0, 2))
    kinds = (*(_A, _AAAA) * 4, _TXT, _ANY, _HTTPS, 2, 12, 0, 252)
    asked = b"".join(
        name(chance.choice(NAMES)) + struct.pack("!HH", chance.choice(kinds), chance.choice((1,) * 10 + (3, 255)))
        for _ in range(count)
    )
    edns = chance.random() < 0.4
    option = b"\0" + struct.pack("!HHIH", _OPT, 1232, chance.choice((0, 0, 0x8000, 0x10000)), 0) if edns else b""
    return _HEADER.pack(chance.randrange(65536), flags, count, 0, 0, int(edns)) + asked + option


def _answer(chance: random.Random) -> bytes:
    """To QUERY: a chain of aliases, and addresses at its end or elsewhere."""
    owners = [name(("api", "test")), name(("b", "test")), name(("c", "test")), b"\xc0\x0c"]
    records = []
    for _ in range(chance.randrange(5)):
        kind = chance.choice((_A, _A, _CNAME, _AAAA))
        data = {_A: chance.randbytes(4), _AAAA: chance.randbytes(16)}.get(kind, chance.choice(owners))
        ttl = chance.choice((0, 30, 300, 2**31, 2**32 - 1))
        records.append(chance.choice(owners) + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data)
    code = chance.choice((0, 0, 0, 0, 2, 3))
    head = _HEADER.pack(chance.choice((7, 7, 7, 7, 8)), 0x8180 | code, 1, len(records), 0, 0)
    return head + name(("api", "test")) + struct.pack("!HH", _A, 1) + b"".join(records)


def mutated(chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    data = bytearray(_answer(chance) if kind == 3 else _question(chance))
    for _ in range(chance.choice((0, 0, 0, 1, 1, 3))):
        damaged(chance, data, SPICE)
    return bytes([kind]) + bytes(data)


TARGET = Target(one_input, mutated)

if __name__ == "__main__":
    TARGET.main()
