"""The arithmetic of a box's limits, and which control file gets which value. Pure.

Sizes nest: tmpfs (shm + run) < cmds < box < all boxes, so that a command that fills everything it can is what the kernel
kills, never PID 1 (hardening.md 5.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.spawner.protocol import Limits

MIB = 1 << 20
PERIOD = 100_000  # microseconds, the kernel's default: one core = 100 000 of quota
RESERVED_PIDS = 32  # PID 1, its command spawner and a loop or two with room to fork


@dataclass(frozen=True, slots=True)
class Shares:
    """What a Limits means for the box and for its leaf `cmds`."""

    memory: int
    cmds_memory: int
    pids: int
    cmds_pids: int
    quota: int  # microseconds of CPU in each PERIOD
    shm: int
    run: int


@dataclass(frozen=True, slots=True)
class Knob:
    """One control file. `optional`: a kernel may lack it (swap accounting)."""

    file: str
    value: str
    optional: bool = False


def share(limits: Limits) -> Shares:
    """cmds keeps max(64 MiB, 1/16) below the box's memory and 32 below its pids (at least half of them); shm is at most
    1/2 of cmds and run 1/8, so that both full still leave 3/8 for processes."""
    cmds_memory = limits.memory - max(64 * MIB, limits.memory // 16)
    return Shares(
        memory=limits.memory,
        cmds_memory=cmds_memory,
        pids=limits.pids,
        cmds_pids=max(limits.pids - RESERVED_PIDS, limits.pids // 2),
        quota=limits.cpu_milli * PERIOD // 1000,
        shm=min(limits.shm, cmds_memory // 2),
        run=min(limits.run, cmds_memory // 8),
    )


def total(host_memory: int, host_pids: int) -> Limits:
    """For all boxes together: the host keeps max(512 MiB, 1/8) of its memory (half of a tiny one) and 1/4 of its pids,
    so that the kernel always has room. CPU is not limited there."""
    kept = min(max(512 * MIB, host_memory // 8), host_memory // 2)
    return Limits(memory=host_memory - kept, pids=host_pids - host_pids // 4, cpu_milli=0)


def box_knobs(version: int, controllers: frozenset[str], shares: Shares) -> list[Knob]:
    """For the box's directory, or the parent of all (quota 0: no CPU limit)."""
    knobs = _memory(version, shares.memory) if "memory" in controllers else []
    if "pids" in controllers:
        knobs.append(Knob("pids.max", str(shares.pids)))
    if "cpu" in controllers and shares.quota:
        knobs += _cpu(version, shares.quota)
    return knobs


def cmds_knobs(version: int, controllers: frozenset[str], shares: Shares) -> list[Knob]:
    """For the leaf that commands are in. CPU is the box's alone."""
    knobs = _memory(version, shares.cmds_memory) if "memory" in controllers else []
    if "pids" in controllers:
        knobs.append(Knob("pids.max", str(shares.cmds_pids)))
    return knobs


def _memory(version: int, size: int) -> list[Knob]:
    if version == 2:
        return [Knob("memory.max", str(size)), Knob("memory.swap.max", "0", optional=True)]
    return [
        Knob("memory.limit_in_bytes", str(size)),
        Knob("memory.memsw.limit_in_bytes", str(size), optional=True),
    ]


def _cpu(version: int, quota: int) -> list[Knob]:
    if version == 2:
        return [Knob("cpu.max", f"{quota} {PERIOD}")]
    return [Knob("cpu.cfs_period_us", str(PERIOD)), Knob("cpu.cfs_quota_us", str(quota))]
