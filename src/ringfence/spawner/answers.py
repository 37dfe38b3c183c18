"""What an operation gives back to the loop. Must never hold a descriptor that the spawner still needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ringfence.spawner import protocol
from ringfence.spawner.cgroups import Usage
from ringfence.spawner.disk_use import Use
from ringfence.spawner.registry import Entry


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and the descriptors that go with it; the server closes them once sent."""

    body: object
    fds: tuple[int, ...] = ()


def observed(
    entry: Entry,
    disk: Use,
    state: Literal["stopped", "running"],
    identity: protocol.Identity | None,
    used: Usage,
    *,
    frozen: bool,
) -> protocol.Observed:
    return protocol.Observed(
        state=state,
        identity=identity,
        uid=entry.uid,
        pids=used.pids,
        memory=used.memory,
        memory_peak=used.peak,
        memory_limit=used.limit,
        oom_kills=used.oom_kills,
        frozen=frozen,
        cpu_usec=used.cpu_usec,
        disk_by=disk.by,
        disk_used=disk.used,
        disk_free=disk.free,
        inodes=disk.inodes,
        inode_limit=disk.inode_limit,
        disk_problem=disk.problem,
        disk_holder=disk.holder,
    )
