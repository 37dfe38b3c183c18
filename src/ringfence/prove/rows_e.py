"""Group E: a box that takes what there is gets its share, and the others and the host keep theirs.

The limits of one user are set low, so that each attempt is short; what is not reached under them is not tried further.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ringfence.prove import outside, outside_limits
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import Control, NotHere, Row, Tries, absent, no_control, program, ran
from ringfence.prove.stage import ATTACKER, Stage

GREEDY, OTHER = "greedy", "modest"
MEMORY_MIB, PIDS, NOFILE = 192, 96, 1024
BUFFERED_MIB = 96  # the least memory of a box
CPU_MILLI = 50  # the least: less than what is left of a busy processor for the control
DISK_MIB = 128  # building.SETTINGS
SHM_MIB, SIGPENDING = 256, 1024  # of a box by default
ANSWER_SECONDS = 1.0  # threats.md: the kernel answers within this, whatever a box does
CROWD = 8  # boxes started at once
NO_CGROUP = "this host gives no cgroup to boxes (doctor: cgroups)"
KERNELS_OWN = "the kernel's own bound for an id without rights; the box's id is nobody else's, so it is the box's alone"


def greedy(stage: Stage, name: str = "") -> str:
    """A user with low limits; another one for each `name`: what fills a box lets no other row fork in it."""
    user = f"{GREEDY}-{name}" if name else GREEDY
    return _with_limits(stage, user, memory=MEMORY_MIB << 20, pids=PIDS, nofile=NOFILE)


def _with_limits(stage: Stage, user: str, **limits: int) -> str:
    """A user whose box was started under these limits. NotHere: nothing holds them."""
    if "no-cgroup" in stage.client.status().get("weak", []):
        raise NotHere(NO_CGROUP)
    return stage.user(user, **limits)


def _of_low_limits(stage: Stage, name: str) -> str:
    if name == "spin":
        return _with_limits(stage, "sparing", cpu_milli=CPU_MILLI)
    if name == "buffers":
        return _with_limits(stage, "buffered", memory=BUFFERED_MIB << 20)
    return greedy(stage, name)


def _limited(
    row_id: str, attempt: str, expected: str, wall: str, name: str, words: Sequence[str], control: Control
) -> Row:
    """As the user with low limits, which only cgroups hold."""

    def attack(stage: Stage, runner: str) -> Tries:
        user = _of_low_limits(stage, name)
        return stage.attack(runner, user, "resources", name, *words, timeout=60)

    return Row(row_id, attempt, expected, wall, attack, control, "se" if name == "forks" else "s")


def _in_reach(name: str, *words: str, impossible: str = "") -> Control:
    """The same program outside any box, as an id without rights."""
    return ran(lambda stage: stage.bare("resources", name, *words), impossible)


def _row(row_id: str, attempt: str, expected: str, wall: str, name: str, control: Control, *words: str) -> Row:
    return program(
        row_id, attempt, expected, wall, ("resources", name), control, arguments=lambda _stage: words, runners="s"
    )


def _open_folder(stage: Stage) -> str:
    return str(stage.canaries.host / "open")


# --- more than one box ------------------------------------------------------------------------------------------------


def neighbour(stage: Stage, _runner: str) -> Tries:
    """E07: while one box is full of processes, another starts."""
    user = greedy(stage, "crowded")
    stage.user(OTHER)
    stage.client.stop_box(OTHER)
    held = f"for i in $(seq {PIDS * 2}); do sleep 3 & done 2>/dev/null; sleep 2"
    with ThreadPoolExecutor(1) as pool:
        bomb = pool.submit(stage.shell, user, held)
        time.sleep(0.7)
        begun = time.monotonic()
        code = stage.shell(OTHER, "sleep 0 & wait; echo started").get("exit_code")
        took = time.monotonic() - begun
        bomb.result()
    return Tries({"neighbour": f"starts and forks in {took:.2f} s" if code == 0 else f"{DONE} exit {code}"})


def crowd(stage: Stage, _runner: str) -> Tries:
    """E15: many boxes at once. Each comes up, and the server answers meanwhile."""
    users = [f"crowd{number}" for number in range(CROWD)]
    for user in users:
        stage.client.add_user(user)
    with ThreadPoolExecutor(CROWD) as pool:
        starts = [pool.submit(stage.client.start_box, user) for user in users]
        slowest = slowest_answer(stage, 1.0)
        failed = [repr(start.exception()) for start in starts if start.exception() is not None]
    with ThreadPoolExecutor(CROWD) as pool:
        list(pool.map(lambda user: stage.client.remove_user(user, purge=True), users))
    return Tries(
        {
            "boxes": f"{DONE} {failed[0]}" if failed else f"{CROWD} of {CROWD} started",
            "answer": answer_word(slowest),
        }
    )


def all_at_once(stage: Stage, _runner: str) -> Tries:
    """E20: a fork bomb, a memory bomb and four spinners in one box, and how the server answers meanwhile."""
    user = greedy(stage)
    ways = [("forks", str(PIDS * 2)), ("memory", str(MEMORY_MIB * 2)), ("spin", "4", "2", "100000")]
    with ThreadPoolExecutor(len(ways)) as pool:
        under_way = [pool.submit(stage.attack, "s", user, "resources", *words, timeout=60) for words in ways]
        slowest = slowest_answer(stage, 3.0)
        for each in under_way:
            each.exception()
    alive = stage.shell(user, "echo alive", timeout=60).get("stdout") == "alive\n"
    return Tries({"answer": answer_word(slowest), "box": "survives" if alive else f"{DONE} the box is gone"})


def slowest_answer(stage: Stage, seconds: float) -> float:
    slowest, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        stage.client.health()
        slowest = max(slowest, time.monotonic() - begun)
        time.sleep(0.02)
    return slowest


def answer_word(slowest: float) -> str:
    return f"within {slowest * 1e3:.0f} ms" if slowest <= ANSWER_SECONDS else f"{DONE} took {slowest:.1f} s"


def flood(stage: Stage, _runner: str) -> Tries:
    """E10: output without end. What is kept is bounded and counted, and the server does not grow by what is not."""
    before = outside.resident_mib(stage.made)
    outcome = stage.shell(stage.user(ATTACKER), "head -c 64000000 /dev/zero | tr '\\0' x", timeout=60)
    kept, dropped = len(str(outcome.get("stdout", ""))), int(outcome.get("stdout_dropped", 0))
    grown = outside.resident_mib(stage.made) - before
    bounded = kept <= (300 << 10) and dropped > 60_000_000
    return Tries(
        {
            "output": f"{kept} bytes kept, {dropped} counted" if bounded else f"{DONE} {kept} kept, {dropped} dropped",
            "server": f"grew by {max(0, grown)} MiB" if grown < 48 else f"{DONE} grew by {grown} MiB",
        }
    )


def full_disk(stage: Stage, runner: str) -> Tries:
    """E08: bytes of the tree; its inodes are fixed when it is made, and too many for a short row. NotHere: they are counted
    only, and the box is stopped above."""
    if "no-disk-quota" in stage.client.status().get("weak", []):
        raise NotHere("this host bounds no tree: a box above its limit is stopped (doctor: disk)")
    user = stage.user("full")
    told: dict[str, str] = {}
    for folder in ("/home/user", "/workspace", "/tmp"):
        told |= stage.attack(runner, user, "resources", "fill", folder, str(DISK_MIB * 2), timeout=60).outcomes
    return Tries(told)


def devour(stage: Stage, runner: str) -> Tries:
    """E02, and the box's first process is the same afterwards: it has memory that no command can take."""
    user = greedy(stage, "memory")
    before = _first_process(stage, user)
    tries = stage.attack(runner, user, "resources", "memory", str(MEMORY_MIB * 2), timeout=60)
    try:
        same = "the same" if _first_process(stage, user) == before else f"{DONE} another"
    except NotHere:
        same = f"{DONE} none"
    base = [parent / str(stage.box(user)["box"]) for parent in outside_limits.parents(stage.installation)]
    return Tries({**tries.outcomes, "PID 1": same, **outside_limits.leaf_below_box(base).outcomes})


def _first_process(stage: Stage, user: str) -> tuple[int, str]:
    """(host pid, start time) of its PID 1. NotHere: nobody can tell."""
    pid = outside.first(stage.processes(user))
    return pid, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def orphans(stage: Stage, runner: str) -> Tries:
    """E23. They are their leader's, a subreaper, until it has ended; then PID 1's."""
    user = stage.user(OTHER)
    stage.attack(runner, user, "resources", "zombies", "300")
    return stage.attack(runner, user, "resources", "count_zombies")


# --- the rows ---------------------------------------------------------------------------------------------------------

_SWEPT = "pids cgroup of the box (pids.max)"
ROWS: tuple[Row, ...] = (
    _limited(
        "E01", "a fork bomb", "EAGAIN at the limit", _SWEPT, "forks", [str(PIDS * 2)], _in_reach("forks", str(PIDS * 2))
    ),
    Row(
        "E02",
        "allocate until death",
        "an OOM in the box only, and PID 1 lives",
        "memory cgroup, swap included; commands have a leaf with less than the box",
        devour,
        _in_reach("memory", str(MEMORY_MIB * 2)),
    ),
    _row(
        "E03",
        "fill /dev/shm",
        "ENOSPC in the box",
        "sized tmpfs; its pages count as the box's memory",
        "fill",
        ran(lambda stage: stage.bare("resources", "fill", _open_folder(stage), "32")),
        "/dev/shm",
        str(SHM_MIB + 64),
    ),
    _row(
        "E06",
        "fill /run",
        "ENOSPC in the box",
        "sized tmpfs",
        "fill",
        ran(lambda stage: stage.bare("resources", "fill", _open_folder(stage), "40")),
        "/run",
        "64",
    ),
    _limited(
        "E04",
        "spin on every processor",
        "its share and no more",
        "cpu cgroup (cpu.max, cpu.cfs_quota_us)",
        "spin",
        ["4", "2", str(CPU_MILLI)],
        _in_reach("spin", "4", "1", str(CPU_MILLI)),
    ),
    _limited(
        "E05",
        "open files without end",
        "EMFILE at the hard limit",
        "RLIMIT_NOFILE",
        "descriptors",
        [str(NOFILE * 2)],
        _in_reach("descriptors", str(NOFILE * 2), impossible="accounts of this host have a limit as low"),
    ),
    Row(
        "E07",
        "keep another box from starting by using up processes",
        "it starts",
        "an id for each box; processes are counted by cgroup, not by id",
        neighbour,
        no_control("RLIMIT_NPROC counts by id: with one id for two boxes the second cannot fork (hardening.md)"),
        "h",
    ),
    Row(
        "E08",
        "fill the tree",
        "ENOSPC or EDQUOT in the box",
        "an image or a project quota for each box",
        full_disk,
        ran(lambda stage: stage.bare("resources", "fill", _open_folder(stage), str(DISK_MIB * 2))),
    ),
    _row(
        "E09",
        "a sparse file of 10 TB",
        "EFBIG",
        "RLIMIT_FSIZE",
        "sizes",
        ran(
            lambda stage: stage.bare("resources", "sizes", _open_folder(stage)),
            "the host's own file system takes no file of that size",
        ),
        "/home/user",
    ),
    Row(
        "E10",
        "64 MB of output",
        "bounded, counted, and the server does not grow",
        "credits on the wire; head and tail kept",
        flood,
        no_control("the same output read in full is what `exec` without --json passes on"),
        "h",
        alone=True,
    ),
    absent(
        "E11",
        "a flood of connections to the egress listeners",
        "capped",
        "bounds of the worker",
        "egress comes with issue 6",
    ),
    _row(
        "E14",
        "a core dump into the workspace",
        "none",
        "RLIMIT_CORE 1, hard: less than a page, and a handler behind a pipe is not run either",
        "cores",
        ran(
            lambda stage: stage.bare("resources", "cores", _open_folder(stage)),
            "this host makes no core dumps for anybody",
        ),
        "/home/user",
    ),
    Row(
        "E15",
        f"{CROWD} boxes started at once",
        "all start, and the server answers",
        "admission in the spawner; parent cgroup",
        crowd,
        no_control("eight starts at once are what the spawner admits; more would wait"),
        "h",
        alone=True,
    ),
    _row("E16", "message queues without end", "EMFILE", "RLIMIT_MSGQUEUE", "queues", no_control(KERNELS_OWN), "32"),
    _row(
        "E17",
        "queued signals without end",
        "EAGAIN",
        "RLIMIT_SIGPENDING",
        "timers",
        _in_reach("timers", str(SIGPENDING * 2), impossible="accounts of this host have a limit as low"),
        str(SIGPENDING * 2),
    ),
    _row(
        "E18",
        "lock memory",
        "ENOMEM",
        "RLIMIT_MEMLOCK",
        "locked",
        _in_reach("locked", impossible="accounts of this host have a limit as low"),
    ),
    _row(
        "E19",
        "inotify instances without end",
        "EMFILE",
        "counted for each id",
        "watches",
        no_control(KERNELS_OWN),
        "20000",
    ),
    Row(
        "E20",
        "fork bomb, memory bomb and four spinners at once",
        "the server answers within 1 s, the box survives",
        "pids, memory and cpu cgroups; PID 1 in a leaf of its own",
        all_at_once,
        no_control("on a host that is in use nobody lets these go without limits"),
        "h",
        alone=True,
    ),
    _row("E21", "a pipe of 64 MiB", "EPERM", "pipe-max-size", "pipes", no_control(KERNELS_OWN)),
    _row(
        "E22",
        "real time, nice -5, real-time I/O, no OOM; higher hard limits",
        "EPERM, EACCES",
        "no capability; RLIMIT_RTPRIO and RLIMIT_NICE 0",
        "priorities",
        no_control("an account without rights gets none of these either: the box is such an account"),
    ),
    Row(
        "E23",
        "300 orphans that nobody waits for",
        "all reaped",
        "PID 1 reaps",
        orphans,
        no_control("nothing else in a pid namespace can reap an orphan"),
    ),
    _row(
        "E24",
        "out of the own cgroup",
        "ENOENT, ENOSYS",
        "no cgroup mount, cgroup namespace, no descriptor, seccomp on clone3",
        "cgroups",
        ran(lambda stage: stage.bare("resources", "cgroups")),
    ),
    _limited(
        "E25",
        "hold memory in network buffers that nobody reads",
        "EAGAIN, or an OOM in the box",
        "memory cgroup; v1 counts them apart (memory.kmem.tcp.limit_in_bytes)",
        "buffers",
        [str(BUFFERED_MIB * 2)],
        _in_reach("buffers", str(BUFFERED_MIB * 2), impossible="this host bounds everybody's network buffers as low"),
    ),
    _row(
        "E26",
        "asynchronous I/O contexts, which the host has once for all",
        "ENOSYS",
        "seccomp on io_setup",
        "contexts",
        ran(lambda stage: stage.bare("resources", "contexts"), "somebody has taken all of them"),
    ),
    Row(
        "E27",
        "from the host: memory, processes and CPU of all boxes together",
        "less than the host's",
        "limits of the directory that all boxes' cgroups are in",
        lambda stage, _runner: outside_limits.below_the_host(outside_limits.parents(stage.installation)),
        ran(
            lambda stage: outside_limits.below_the_host([p.parent for p in outside_limits.parents(stage.installation)])
        ),
        "h",
    ),
)
