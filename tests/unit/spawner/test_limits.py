"""The arithmetic of limits: sizes nest whatever the kernel asks for."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel import boxes
from ringfence.host.kernel.boxes import effective
from ringfence.spawner import cgroup_host, limits
from ringfence.spawner.cgroup_host import Mounted
from ringfence.spawner.limits import MIB, Knob, Whole, share
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
        "memory.kmem.tcp.limit_in_bytes",
        "pids.max",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
    ]
    assert limits.cmds_knobs(1, frozenset({"pids"}), shares) == [Knob("pids.max", "480")]
    assert limits.box_knobs(2, frozenset(), shares) == []


def test_the_host_keeps_room() -> None:
    """max(1 GiB, 10 %) of memory, half of a tiny host's; a quarter of the pids; 0.2 core, half of a tiny share's."""
    nothing = Whole(0, 0, 0)
    assert limits.total(Whole(16 << 30, 32768, 400_000), nothing) == Whole(
        (16 << 30) - (16 << 30) // 10, 24576, 380_000
    )
    assert limits.total(Whole(4 << 30, 1000, 100_000), nothing) == Whole(3 << 30, 750, 80_000)
    assert limits.total(Whole(1 << 30, 1000, 20_000), nothing) == Whole(512 * MIB, 750, 10_000)


def test_what_is_asked_for_all_boxes_counts_up_to_what_the_host_has() -> None:
    host = Whole(4 << 30, 1000, 200_000)
    assert limits.total(host, Whole(1 << 30, 100, 50_000)) == Whole(1 << 30, 100, 50_000)
    assert limits.total(host, Whole(1 << 40, 10_000, 10**9)) == host


def test_files_of_all_boxes() -> None:
    whole = Whole(1 << 30, 750, 180_000)
    assert limits.parent_knobs(2, ALL, whole) == [
        *[Knob("memory.max", str(1 << 30)), Knob("memory.swap.max", "0", optional=True)],
        Knob("pids.max", "750"),
        Knob("cpu.max", "180000 100000"),
        Knob("cpu.weight", "100", optional=True),
    ]
    assert [k.file for k in limits.parent_knobs(1, frozenset({"cpu"}), whole)] == [
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
        "cpu.shares",
    ]
    assert limits.parent_knobs(2, frozenset(), whole) == []


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


@given(any_limits)
def test_people_are_told_of_the_sizes_that_a_box_gets(asked: Limits) -> None:
    """The kernel process knows this arithmetic too, as it may not ask the spawner's."""
    shares = share(asked)
    told = {**asdict(asked), **effective(boxes.Limits(**asdict(asked)), {})}
    assert (told["shm"], told["run"]) == (shares.shm, shares.run)
    assert {n: v for n, v in told.items() if n not in ("shm", "run")} == {
        n: v for n, v in asdict(asked).items() if n not in ("shm", "run")
    }


def test_no_box_has_more_than_all_boxes_together() -> None:
    asked = boxes.Limits(memory=4 << 30, pids=512, cpu_milli=2000)
    assert effective(asked, {"memory": 2 << 30, "pids": 512, "cpu_milli": 1800}) == {
        "memory": 2 << 30,
        "cpu_milli": 1800,
    }
