"""The arithmetic of limits: sizes nest whatever the kernel asks for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.spawner import cgroup_host, limits
from ringfence.spawner.cgroup_host import Mounted
from ringfence.spawner.limits import MIB, Knob, share
from ringfence.spawner.protocol import BOUNDS, Limits

ALL = frozenset({"memory", "pids", "cpu"})
any_limits = st.builds(Limits, **{name: st.integers(low, high) for name, (low, high) in BOUNDS.items()})


@given(any_limits)
def test_tmpfs_below_cmds_below_box(asked: Limits) -> None:
    shares = share(asked)
    assert 0 < shares.shm + shares.run < shares.cmds_memory < shares.memory == asked.memory
    assert shares.memory - shares.cmds_memory >= 64 * MIB
    assert 0 < shares.cmds_pids < shares.pids == asked.pids
    assert shares.quota >= 1000  # the kernel's least


def test_defaults() -> None:
    shares = share(Limits())
    assert (shares.cmds_memory, shares.cmds_pids, shares.quota) == (960 * MIB, 480, 200_000)
    assert (shares.shm, shares.run) == (256 * MIB, 32 * MIB)
    assert share(Limits(memory=8 << 30)).cmds_memory == (8 << 30) - (512 << 20)


def test_files_of_each_version() -> None:
    shares = share(Limits())
    assert limits.box_knobs(2, ALL, shares) == [
        Knob("memory.max", str(1 << 30)),
        Knob("memory.swap.max", "0", optional=True),
        Knob("pids.max", "512"),
        Knob("cpu.max", "200000 100000"),
    ]
    assert [k.file for k in limits.box_knobs(1, ALL, shares)] == [
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "pids.max",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
    ]
    assert limits.cmds_knobs(1, frozenset({"pids"}), shares) == [Knob("pids.max", "480")]
    assert limits.box_knobs(2, frozenset(), shares) == []


def test_the_host_keeps_room() -> None:
    whole = limits.total(16 << 30, 32768)
    assert (whole.memory, whole.pids) == (14 << 30, 24576)
    assert limits.total(1 << 30, 1000).memory == 512 * MIB
    assert limits.total(512 * MIB, 1000).memory == 256 * MIB


HYBRID = """30 25 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw,nosuid - cgroup cgroup rw,xattr,name=systemd
35 30 0:29 / /elsewhere rw,nosuid - cgroup cgroup rw,memory
"""


def test_mounts_of_a_hybrid_host() -> None:
    """L5; whose files are whose is test_files_of_each_version."""
    assert cgroup_host.parse_mounts(HYBRID) == [
        Mounted(2, "/sys/fs/cgroup/unified", frozenset()),
        Mounted(1, "/sys/fs/cgroup/cpu,cpuacct", frozenset({"cpu"})),
        Mounted(1, "/sys/fs/cgroup/memory", frozenset({"memory"})),
    ]


def test_own_path() -> None:
    assert cgroup_host.own_path("5:pids:/x\n0::/user.slice/a.scope\n") == "/user.slice/a.scope"
    assert cgroup_host.own_path("5:pids:/x\n") == "/"
