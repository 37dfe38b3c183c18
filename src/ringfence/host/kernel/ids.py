"""Ids: a prefix and 20 base32 characters, sortable by the time they were made. Box ids are random only.

Pure: time and randomness come in as arguments (the Ids port supplies them).
"""

from __future__ import annotations

from typing import NewType

TenantId = NewType("TenantId", str)  # ten_...
UserId = NewType("UserId", str)  # usr_...
TokenId = NewType("TokenId", str)  # tok_...
BoxId = NewType("BoxId", str)  # 16 characters, no prefix: it names directories, cgroups, sockets
ThreadId = NewType("ThreadId", str)  # thr_...
MessageId = NewType("MessageId", str)  # msg_...
TurnId = NewType("TurnId", str)  # trn_...
RunId = NewType("RunId", str)  # run_...

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_TIME_CHARS = 10  # 50 bits of milliseconds: until the year 37,000
_RANDOM_CHARS = 10  # 50 random bits beside the time


def base32(number: int, width: int) -> str:
    """`width` characters of ALPHABET, most significant first. ALPHABET sorts as its values only for letters before
    digits in no common collation, so `sortable` below uses its own order."""
    out = []
    for _ in range(width):
        out.append(ALPHABET[number & 31])
        number >>= 5
    return "".join(reversed(out))


_SORTED = "234567abcdefghijklmnopqrstuvwxyz"  # the same characters in ASCII order


def sortable(prefix: str, millis: int, randomness: int) -> str:
    """`prefix_` + 20 characters; ids of later milliseconds compare greater."""
    number = ((millis & ((1 << 50) - 1)) << 50) | (randomness & ((1 << 50) - 1))
    text = base32(number, _TIME_CHARS + _RANDOM_CHARS)
    return f"{prefix}_{text.translate(str.maketrans(ALPHABET, _SORTED))}"


def box_id(randomness: int) -> BoxId:
    """16 random characters: 80 bits."""
    return BoxId(base32(randomness, 16))
