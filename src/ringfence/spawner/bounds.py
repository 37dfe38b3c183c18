"""What a box may use, and what the spawner bounds that by. Data only; protocol.py names it again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What a box may use. Sizes in bytes; `cpu_milli` 1000 = one core."""

    memory: int = 1 << 30
    pids: int = 512
    cpu_milli: int = 2000
    nofile: int = 65536  # hard limit; the soft one is 4096
    fsize: int = 8 << 30
    shm: int = 256 << 20
    run: int = 32 << 20  # the /run tmpfs
    disk: int = 8 << 30  # of the tree: home, workspace and tmp together
    inodes: int = 500_000  # files, folders and links in it


# Bounds that the spawner enforces whatever the kernel says: (least, most).
BOUNDS: dict[str, tuple[int, int]] = {
    "memory": (96 << 20, 1 << 50),
    "pids": (32, 65536),
    "cpu_milli": (50, 1_024_000),
    "nofile": (256, 1 << 20),
    "fsize": (1 << 20, 1 << 50),
    "shm": (1 << 20, 1 << 45),
    "run": (1 << 20, 1 << 40),
    "disk": (32 << 20, 1 << 43),
    "inodes": (1024, 1 << 31),
}
