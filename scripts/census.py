"""Counts the files and lines of one suffix below a folder. What the demo's agents run."""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: str, suffix: str) -> None:
    files = sorted(path for path in Path(folder).rglob(f"*{suffix}") if path.is_file())
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    print(f"{len(files)} files end in {suffix}; together they have {lines} lines")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
