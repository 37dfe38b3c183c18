"""What a file must be to hold the key of a webhook. Pure: whoever reads it brings mode and bytes.

Must never put a byte of a key into what it says.
"""

from __future__ import annotations

import stat

MIN_SECRET, MAX_SECRET = 16, 4096  # bytes, white space around them not counted
MOST_READ = MAX_SECRET + 1024  # room for that white space
LOOSE = 0o037  # bits of a mode that no key's file has: 0640 is the widest, its group the server's
MISSING = "is not there"
"""Of a file that nobody has made yet: no reason to keep a server down, as its calls wait for it."""


def missing_remedy(path: str) -> str:
    return (
        f"put the key that the receiver knows into {path}, for the server's account (mode 0600, or 0640 with its group)"
    )


def secret_from(mode: int, data: bytes) -> tuple[bytes, str]:
    """(the secret without white space around it, what is wrong with the file, as the end of a sentence, or "").
    `mode`: st_mode; `data`: at most MOST_READ bytes."""
    if not stat.S_ISREG(mode):
        return b"", "is no regular file"
    if mode & LOOSE:
        return b"", f"has mode {stat.S_IMODE(mode):04o}: others than the server may read or change it"
    secret = data.strip()
    if not MIN_SECRET <= len(secret) <= MAX_SECRET:
        return b"", f"holds a secret of {len(secret)} bytes; {MIN_SECRET} to {MAX_SECRET} are allowed"
    return secret, ""


def remedy(path: str) -> str:
    """Of a file that is there and is wrong."""
    return f"put {MIN_SECRET} to {MAX_SECRET} bytes into it, readable for the server's account: chmod 600 {path}"
