"""Stand-ins for secrets: their text, their digest, and where they stand in bytes. Pure; the randomness is an argument.

    <prefix of the provider> EXAMPLE <26 of a-z2-7> <padding to the provider's length> <suffix>

26 x 5 bits = 130 bits of randomness. EXAMPLE tells scanners of repositories that this is no real token, and us where
to look. Must never be logged, stored or sent to a worker as text: its digest is enough.
"""

from __future__ import annotations

import base64
import hashlib

from ringfence.host.kernel.outward.shapes import Shape

MARKER = b"EXAMPLE"
RANDOM = 26
RANDOM_BYTES = 17  # 136 bits, of which 130 are used
_CORE = len(MARKER) + RANDOM
_BASE32 = b"abcdefghijklmnopqrstuvwxyz234567"
# What may stand in a token of any provider: RFC 3986's unreserved characters. The rest ends one.
_TOKEN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def make(shape: Shape, randomness: bytes) -> str:
    """`randomness`: at least RANDOM_BYTES from the system's generator, used for this one. ValueError: fewer."""
    if len(randomness) < RANDOM_BYTES:
        raise ValueError(f"a placeholder takes {RANDOM_BYTES} random bytes")
    unique = base64.b32encode(randomness[:RANDOM_BYTES])[:RANDOM].lower().decode()
    core = f"{shape.prefix}{MARKER.decode()}{unique}"
    return core + shape.padding * (shape.length - len(core) - len(shape.suffix)) + shape.suffix


def digest(text: str | bytes) -> str:
    """SHA-256 in hex: what workers and the store know of one."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def find(data: bytes) -> list[tuple[int, int]]:
    """(start, end) of everything that has the marker and 26 characters of its alphabet behind it, widened to whole
    tokens, from left to right, apart. A token that is longer than a known placeholder has another digest: it is an
    unknown one. Looks at the bytes as they are: whoever means decoded ones (Basic, percent) decodes first.
    """
    found: list[tuple[int, int]] = []
    at = data.find(MARKER)
    while at >= 0:
        if not _random(data[at + len(MARKER) : at + _CORE]):
            at = data.find(MARKER, at + 1)
            continue
        start, end = at, at + _CORE
        while start > 0 and data[start - 1] in _TOKEN:
            start -= 1
        while end < len(data) and data[end] in _TOKEN:
            end += 1
        found.append((start, end))
        at = data.find(MARKER, end)
    return found


def _random(data: bytes) -> bool:
    return len(data) == RANDOM and not data.translate(None, _BASE32)
