"""Fuzz target: whatever an authority, a target and a head are, they are read in one way or refused, and a decision comes.

An input is an authority, a target and the rest, divided by line feeds. How to run it: tests/fuzz/running.py.
"""

from __future__ import annotations

import random
import socket
from ipaddress import ip_address
from itertools import pairwise
from urllib.parse import unquote_to_bytes

from ringfence.host.kernel.outward import addresses, authority, placeholders, targets
from ringfence.host.kernel.outward.authority import Malformed
from ringfence.host.kernel.outward.matching import Matcher, compile_rules
from ringfence.host.kernel.outward.rules import EgressRule, Layer, Request, Verdict
from ringfence.host.kernel.outward.shapes import SHAPES
from tests.fuzz.running import Target, damaged

_ALLOW, _DENY, _ASK = Verdict.ALLOW, Verdict.DENY, Verdict.ASK
PLACEHOLDER = placeholders.make(SHAPES["github"], bytes(range(17))).encode()
SECRET_PATH = "/admin"
RULES = (
    EgressRule("r1", _ALLOW, "api.test", (443, 8443), paths=("/**", "/*%2F*", "/a/*/**/b"), websocket=True),
    EgressRule("r2", _DENY, "api.test", (), paths=(f"{SECRET_PATH}/**",)),
    EgressRule("r3", _ALLOW, "**.api.test", methods=frozenset({"GET"}), query=(("service", "git-upload-pack"),)),
    EgressRule("r4", _ASK, "*", (80, 443), plain=True),
    EgressRule("r5", _ALLOW, "0.0.0.0/0", layer=Layer.TENANT),
    EgressRule("r6", _ALLOW, "::/0", layer=Layer.TENANT),
    EgressRule("r7", _DENY, "**.evil.test", (), layer=Layer.INSTALLATION),
)
AUTHORITIES = [
    *(
        b"api.test",
        b"API.test.:443",
        b"a.api.test:8443",
        b"x.evil.test:80",
        b"[::1]:443",
        b"[::ffff:7f00:1]",
        b"127.0.0.1",
    ),
    *(b"2130706433", b"0x7f.1", b"0177.0.0.1", b"169.254.169.254", b"api.test@evil.test", b"127.0.0.1\0.api.test"),
    *(
        b"[64:ff9b::a9fe:a9fe]",
        b"xn--pple-43d.com",
        b"metadata.google.internal",
        b"[fe80::1%25lo]",
        b"a..b",
        b"api.test:0443",
    ),
]
TARGETS = [
    *(
        b"/",
        b"/admin",
        b"/%61dmin/x",
        b"/a/../admin",
        b"/a%2fb",
        b"//admin",
        b"/a/b?service=git-upload-pack",
        b"/admin%2Fx",
    ),
    *(
        b"/%2e%2e/admin",
        b"/a;x=1",
        b"/%c3%a9",
        b"/%ff",
        b"/x?service=git-upload-pack&service=x",
        b"/a/b/c/b",
        b"/%252e",
    ),
]
RESTS = [b"", b"Authorization: Bearer " + PLACEHOLDER, PLACEHOLDER + b"x", b"EXAMPLE" * 3, b"x:" + PLACEHOLDER[:20]]
SPICE = [
    *(b"%25", b"%32", b"%35", b"%65", b"2", b"5", b"e", b"f"),
    b"%00",
    b"%2e",
    b"%2F",
    b"\\",
    b"\0",
    b".",
    b"..",
    b"//",
    b";",
    b"#",
    b"?",
    b"@",
    b":",
    b"[",
    b"]",
    b"%",
    b"\xff",
    b"xn--",
]
_MATCHER: Matcher = compile_rules(RULES)


def one_input(data: bytes) -> bool:
    """True when both were read. AssertionError, or any other error: a bug."""
    first, _, behind = data.partition(b"\n")
    second, _, rest = behind.partition(b"\n")
    _tokens(rest)
    try:
        host, port = authority.authority(first, 443)
        found = targets.target(second, encoded_slash=_MATCHER.encoded_slash("api.test"))
    except Malformed as error:
        assert error.reason.isascii()
        return False
    _host(first, host)
    assert targets.canonical(found.path, encoded_slash=True) == found.path
    once = unquote_to_bytes(found.path)
    assert unquote_to_bytes(once) == once  # who decodes twice reads no other path
    _decision(Request(host, port, port != 80, "GET", found.path, found.query))
    return True


def _host(raw: bytes, host: str) -> None:
    assert authority.host(host) == host
    assert authority.unicode_warning(host) is None or "xn--" in host
    address = authority.literal(host)
    try:
        taken = ip_address(socket.inet_aton(raw.decode()))
    except (OSError, ValueError):
        return
    assert address == taken  # whatever a resolver would take for an address, in any notation, is that address


def _decision(asked: Request) -> None:
    decision = _MATCHER.request(asked)
    connection = _MATCHER.connection(asked.host, asked.port, asked.tls)
    assert decision.answer is _DENY or connection.answer is not _DENY
    if asked.host.endswith(".evil.test") or addresses.metadata_name(asked.host):
        assert decision.answer is connection.answer is _DENY
    if asked.host == "api.test" and asked.path.replace("%2F", "/").split("/")[1] == SECRET_PATH[1:]:
        assert decision.answer is _DENY
    if decision.missing is not None:
        assert compile_rules((*RULES, decision.missing)).request(asked).answer is _ALLOW
    address = authority.literal(asked.host)
    if address is not None and decision.answer is not _DENY:
        assert not addresses.metadata(address)


def _tokens(data: bytes) -> None:
    spans = placeholders.find(data)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert (PLACEHOLDER not in data) or any(PLACEHOLDER in data[start:end] for start, end in spans)


def mutated(chance: random.Random) -> bytes:
    parts = [bytearray(chance.choice(each)) for each in (AUTHORITIES, TARGETS, RESTS)]
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        damaged(chance, chance.choice(parts), SPICE)
    return b"\n".join(parts)


TARGET = Target(one_input, mutated)

if __name__ == "__main__":
    TARGET.main()
