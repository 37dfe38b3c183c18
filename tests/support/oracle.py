"""What the outside world has seen, in an append-only file of its own: whoever is killed or lies, this stays.

One line a fact, `<what> <key>`: `arrived` a request with that key, `carried` it was carried out. A receiver that does not look
at keys carries out each request that comes so far; so `carried` counts what a user would have paid.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path


class EffectLog:
    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, what: str, key: str) -> None:
        """On disk when it returns. Blocks for a sync."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{what} {key}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def counted(self, what: str) -> Counter[str]:
        """By key."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return Counter(key for kind, key in map(str.split, lines) if kind == what)
