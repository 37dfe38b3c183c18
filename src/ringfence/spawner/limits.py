"""The arithmetic of a box's limits, and which control file gets which value. Pure.

Sizes nest: tmpfs (shm + run) < cmds < box < all boxes, so that a command that fills everything it can is what the
kernel kills, never PID 1 (hardening.md 5.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfence.spawner.protocol import Limits

MIB = 1 << 20
PERIOD = 100_000  # microseconds, the kernel's default: one core = 100 000 of quota
RESERVED_CPU = PERIOD // 5  # 0.2 core for the server and the host's services
SWAP = {2: "memory.swap.max", 1: "memory.memsw.limit_in_bytes"}  # a kernel without swap accounting has none
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
class Whole:
    """What all boxes together may use, so that host and kernel answer whatever they do. Where it is asked for,
    0 means: by the host."""

    memory: int
    pids: int
    quota: int  # microseconds of CPU in each PERIOD


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


def total(host: Whole, asked: Whole) -> Whole:
    """`host`: all it has. It keeps max(1 GiB, 1/10) of its memory (half of a tiny one), 1/4 of its pids and 0.2 core
    (half of a tiny share). What is asked for replaces that, at most what the host has."""
    memory = host.memory - min(max(1024 * MIB, host.memory // 10), host.memory // 2)
    quota = host.quota - min(RESERVED_CPU, host.quota // 2)
    return Whole(
        min(asked.memory or memory, host.memory),
        min(asked.pids or host.pids - host.pids // 4, host.pids),
        min(asked.quota or quota, host.quota),
    )


def parent_knobs(version: int, controllers: frozenset[str], whole: Whole) -> list[Knob]:
    """For the directory of all boxes."""
    knobs = _memory(version, whole.memory) if "memory" in controllers else []
    if "pids" in controllers:
        knobs.append(Knob("pids.max", str(whole.pids)))
    if "cpu" in controllers:
        knobs += [*_cpu(version, whole.quota), _weight(version)]
    return knobs


def box_knobs(version: int, controllers: frozenset[str], shares: Shares) -> list[Knob]:
    """For the box's directory."""
    knobs = _memory(version, shares.memory) if "memory" in controllers else []
    if "pids" in controllers:
        knobs.append(Knob("pids.max", str(shares.pids)))
    if "cpu" in controllers:
        knobs += _cpu(version, shares.quota)
    return knobs


def cmds_knobs(version: int, controllers: frozenset[str], shares: Shares) -> list[Knob]:
    """For the leaf that commands are in. CPU is the box's alone."""
    knobs = _memory(version, shares.cmds_memory) if "memory" in controllers else []
    if "pids" in controllers:
        knobs.append(Knob("pids.max", str(shares.cmds_pids)))
    return knobs


def milli(quota: int) -> int:
    """Thousandths of a core of microseconds in each PERIOD."""
    return quota * 1000 // PERIOD


def _memory(version: int, size: int) -> list[Knob]:
    if version == 2:
        return [Knob("memory.max", str(size)), Knob(SWAP[2], "0", optional=True)]
    return [
        Knob("memory.limit_in_bytes", str(size)),
        Knob(SWAP[1], str(size), optional=True),
        # v1 counts buffers of TCP and UDP apart and bounds them by nothing (v2: they are memory like any other).
        Knob("memory.kmem.tcp.limit_in_bytes", str(max(32 * MIB, size // 16)), optional=True),
    ]


def _cpu(version: int, quota: int) -> list[Knob]:
    if version == 2:
        return [Knob("cpu.max", f"{quota} {PERIOD}")]
    return [Knob("cpu.cfs_period_us", str(PERIOD)), Knob("cpu.cfs_quota_us", str(quota))]


def _weight(version: int) -> Knob:
    """The default, so that all boxes together count as one process beside them; the server has the quota's rest. Less
    would slow every box of a busy host and make nothing else faster (decision 0022). Written, as a former server wrote
    less."""
    return Knob("cpu.weight", "100", optional=True) if version == 2 else Knob("cpu.shares", "1024", optional=True)
