"""Fuzz target: stand-ins are found wherever they stand and however their bytes are cut, and secrets are masked so too.

An input is its first byte (where it is cut), and the bytes to look through. How to run it: tests/fuzz/running.py.
"""

from __future__ import annotations

import base64
import random
import re
from urllib.parse import quote

from ringfence.host.egress.bodies import SCANNED, Upload
from ringfence.host.egress.refusals import Code, Refusal
from ringfence.host.egress.scrub import MASK, Forms, Scrubber, needles
from ringfence.host.kernel.outward import placeholders
from ringfence.host.kernel.outward.shapes import SHAPES
from tests.fuzz.running import Target, damaged

# All of RFC 3986's unreserved characters around a marker and 26 of base32: what `find` says, as one pattern.
_TOKEN = rb"[A-Za-z0-9._~-]"
_STANDIN = re.compile(rb"%s*EXAMPLE[a-z2-7]{26}%s*" % (_TOKEN, _TOKEN))
SECRETS = (b"s3cret/Value+9876543210", b"aaaa", b'"q\xc3\xa9<&>', b"abcabcabcabd", b"%41%41")
FORMS = tuple(Forms.of(needles(secret)) for secret in SECRETS)
STANDINS = [placeholders.make(SHAPES[name], bytes([n + 1]) * 17).encode() for n, name in enumerate(sorted(SHAPES))]
PIECES = [
    *STANDINS,
    *(base64.b64encode(b"x-access-token:" + each) for each in STANDINS[:2]),
    *(b"EXAMPLE", b"EXAMPL", b"a2" * 13, b"a2" * 12, b"EXAMPLEEXAMPLE", b"example" + b"a" * 26, b"EXAMPLE" + b"a" * 25),
    *(b" ", b"\r\n", b"=", b"&", b"%45XAMPLE", b"Bearer ", b"\xff", b"\0", b"/", b"~", b"0", b"1", b"A"),
    *SECRETS,
    *(quote(secret, safe="").encode() for secret in SECRETS),
    *(base64.b64encode(b"x" * n + secret) for n, secret in enumerate(SECRETS)),
    *(secret.hex().encode() for secret in SECRETS),
    *(secret[:-1] for secret in SECRETS),
]


def one_input(data: bytes) -> bool:
    size, data = data[0] % 61 + 1 if data else 1, data[1:]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found = placeholders.find(data)
    assert found == [match.span() for match in _STANDIN.finditer(data)]
    assert _scanned(pieces) is bool(found), "the scan of a body depends on its pieces"
    return _masked(data, pieces) or bool(found)


def _scanned(pieces: list[bytes]) -> bool:
    """Whether a body that comes so is refused."""
    upload = Upload.__new__(Upload)  # its scanner alone: there is no box
    upload._tail = b""
    before = 0
    try:
        for piece in pieces:
            upload.scan(piece, before)
            before += len(piece)
    except Refusal as refusal:
        assert refusal.code is Code.MISPLACED
        return True
    assert before <= SCANNED
    return False


def _masked(data: bytes, pieces: list[bytes]) -> bool:
    masked = False
    for forms in FORMS:
        scrubber = Scrubber(forms)
        out = b"".join([*(scrubber.feed(piece) for piece in pieces), scrubber.end()])
        assert len(out) == len(data)
        assert not any(form in out for form in forms.all)
        assert (scrubber.hits > 0) is any(form in data for form in forms.all)
        assert all(now in (was, MASK[0]) for was, now in zip(data, out, strict=True))
        masked = masked or scrubber.hits > 0
    return masked


def mutated(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choice(PIECES) for _ in range(chance.randint(1, 6))))
    for _ in range(chance.choice((0, 0, 1, 1, 3))):
        damaged(chance, data, PIECES)
    return bytes([chance.randrange(256)]) + bytes(data)


TARGET = Target(one_input, mutated)

if __name__ == "__main__":
    TARGET.main()
