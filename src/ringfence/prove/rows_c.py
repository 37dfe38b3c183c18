"""Group C: namespaces, system calls, and the walls as the host sees them (docs/threats.md)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ringfence.prove import filter_table, outside, outside_limits, planted
from ringfence.prove.copied import JAIL
from ringfence.prove.row import Control, NotHere, Row, Tries, absent, program, ran
from ringfence.prove.stage import ATTACKER, JAIL_SIZE, VICTIM, Stage

FILTER = ("--seccomp",)
NO_NESTING = "seccomp: no user namespace, so no privilege in one"


def _unfiltered(name: str, *arguments: str, impossible: str = "") -> Control:
    """The same in the product's profile without its filter."""
    return ran(lambda stage: stage.loose("kernel", name, *arguments, without=FILTER), impossible)


def _filtered(row_id: str, name: str, attempt: str, expected: str, wall: str = "seccomp") -> Row:
    return program(row_id, attempt, expected, wall, ("kernel", name), _unfiltered(name))


def _strangers(stage: Stage) -> list[str]:
    """PID:START of the server, its kernel and a process of the victim's box."""
    pids = [stage.made.kernel_pid(), *stage.processes(VICTIM)[:1]]
    return [f"{pid}:{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}" for pid in pids]


def _keys(stage: Stage, runner: str) -> Tries:
    """C10: the key in the server's own keyring is given to the box's id, which only has to possess it."""
    user = stage.user(JAIL, **JAIL_SIZE) if runner == "k" else stage.user(ATTACKER)
    if stage.key is not None and stage.mode == "root":
        planted.give(stage.key, int(stage.box(user)["uid"]))
    return stage.attack(runner, ATTACKER, "kernel", "visible_keys")


def _unfiltered_calls(stage: Stage) -> Tries:
    """C26: one line for what an id without rights is told alike with and without the filter."""
    tries = stage.loose("filter_calls", "table", filter_table.argument(), without=FILTER, timeout=60)
    alike = len(tries.outcomes) - len(tries.done)
    told = {name: tries.outcomes[name] for name in tries.done}
    return Tries({**told, f"{alike} that are refused to an id without rights in any case": "alike"} if alike else told)


def _seen(judge: Callable[[Stage, list[int]], Tries]) -> Callable[[Stage, str], Tries]:
    """A look at every process of the attacker's box while a command of it runs."""

    def attack(stage: Stage, _runner: str) -> Tries:
        with stage.acting(ATTACKER).stream(ATTACKER, ["sleep", "20"]):
            return judge(stage, stage.processes(ATTACKER))

    return attack


def _outside(row_id: str, attempt: str, wall: str, judge: Callable[[Stage, list[int]], Tries], control: Control) -> Row:
    return Row(
        row_id, f"from the host, every process of the box: {attempt}", "as it must be", wall, _seen(judge), control, "h"
    )


def _server(stage: Stage) -> int:
    assert stage.made.server is not None
    return stage.made.server.pid


def _root_only(judge: Callable[[int], Tries]) -> Control:
    def how(_stage: Stage) -> Tries:
        if os.geteuid() != 0:
            raise NotHere("a process of an ordinary user has no such right to show")
        return outside.ordinary(judge)

    return ran(how)


def _in_leaves(stage: Stage, pids: list[int]) -> Tries:
    """C24."""
    count = len(outside_limits.parents(stage.installation))
    return outside.cgroup(pids, str(stage.box(ATTACKER)["box"]), count)


ROWS: tuple[Row, ...] = (
    _filtered("C01", "user_namespaces", "unshare, clone and clone3 with every namespace", "EPERM, ENOSYS"),
    _filtered(
        "C02", "mounting", "mount tmpfs, overlay, binfmt_misc, cgroup2 in a namespace of its own", "EPERM", NO_NESTING
    ),
    _filtered("C03", "network", "network settings in a namespace of its own", "EPERM, EROFS", NO_NESTING),
    _filtered("C04", "mount_calls", "mount, umount, pivot_root, chroot and the newer mount calls", "EPERM, ENOSYS"),
    _filtered("C05", "entering", "setns into its own namespaces and those of PID 1", "EPERM, EACCES"),
    _filtered("C06", "surfaces", "bpf, perf_event_open, io_uring, userfaultfd, fanotify", "EPERM"),
    _filtered("C07", "keyrings", "add_key, request_key, keyctl", "EPERM"),
    program(
        "C08",
        "signal processes of the server and of another box",
        "ESRCH",
        "pid namespace; second: another host id",
        ("kernel", "of_the_host"),
        ran(lambda stage: stage.as_box(VICTIM, "kernel", "of_the_host", *_strangers(stage)[1:])),
        arguments=_strangers,
    ),
    _filtered("C09", "on_own_child", "ptrace, process_vm_readv, kcmp, pidfd_getfd, process_madvise", "EPERM"),
    Row(
        "C10",
        "a key that the server has in its session keyring",
        "none is visible",
        "a session keyring of its own before the start",
        _keys,
        ran(lambda stage: stage.bare("kernel", "visible_keys", "make")),
        "ske",
        alone=True,
    ),
    _filtered("C11", "weakening", "personality without random addresses, memfd_secret, modify_ldt", "EPERM, ENOSYS"),
    program(
        "C12",
        "kexec, modules, reboot, swap, acct, clock, syslog, quota, host name",
        "EPERM",
        "seccomp; second: no capability",
        ("kernel", "machine_calls"),
        ran(lambda stage: stage.rooted("kernel", "machine_calls")),
    ),
    program(
        "C13",
        "make a read-only bind writable, or take it away",
        "EPERM",
        "seccomp; second: mounts of an outer namespace are locked",
        ("kernel", "unlocking"),
        _unfiltered("unlocking", "own"),
    ),
    program(
        "C14",
        "gain by a set-user-id program (su, sudo, newuidmap, ping)",
        "no gain",
        "no_new_privs; second: nosuid",
        ("kernel", "privileges"),
        ran(lambda stage: stage.bare("kernel", "privileges")),
    ),
    program(
        "C15",
        "setuid 0, setgroups, capset, ambient capabilities",
        "EPERM, EINVAL",
        "empty capability sets",
        ("kernel", "becoming"),
        ran(lambda stage: stage.rooted("kernel", "becoming")),
    ),
    absent(
        "C17",
        "known kernel exploits",
        "fail at the filter",
        "a smaller surface",
        "needs a host that may be lost: a scratch virtual machine",
    ),
    program(
        "C16",
        "limits and priorities of another process of the same id",
        "EPERM",
        "seccomp, by argument",
        ("kernel", "tuning_others"),
        _unfiltered("tuning_others"),
    ),
    program(
        "C18",
        "system calls by x32 numbers and by int 0x80",
        "killed",
        "the filter checks the architecture first",
        ("kernel", "foreign_numbers"),
        _unfiltered("foreign_numbers", impossible="this kernel has neither x32 nor i386 calls"),
    ),
    program(
        "C19",
        "descriptors that the server left open",
        "none",
        "close_range before the start; an exact list is passed on",
        ("kernel", "descriptors"),
        ran(lambda stage: stage.bare("kernel", "descriptors_kept", str(stage.canaries.host / "secret"))),
        runners="sk",
    ),
    _outside(
        "C20",
        "its ids",
        "the id is dropped before bubblewrap is started",
        lambda stage, pids: outside.ids(pids, int(stage.box(ATTACKER)["uid"])),
        ran(lambda stage: outside.ordinary(lambda pid: outside.ids([pid], int(stage.box(ATTACKER)["uid"])))),
    ),
    _outside(
        "C21",
        "its capabilities",
        "all sets are emptied",
        lambda _stage, pids: outside.capabilities(pids),
        _root_only(lambda pid: outside.capabilities([pid])),
    ),
    _outside(
        "C22",
        "seccomp mode and no_new_privs",
        "the filter is set before the guest runs",
        lambda _stage, pids: outside.filters(outside.inner(pids)),
        ran(lambda _stage: outside.ordinary(lambda pid: outside.filters([pid]))),
    ),
    _outside(
        "C23",
        "its namespaces are neither the host's nor another box's",
        "seven namespaces of its own",
        lambda stage, pids: outside.namespaces(
            outside.inner(pids), [os.getpid(), *outside.inner(stage.processes(VICTIM))]
        ),
        ran(lambda _stage: outside.ordinary(lambda pid: outside.namespaces([pid], [os.getpid()]))),
    ),
    _outside(
        "C24",
        "its cgroup",
        "every process is in a leaf of the box's cgroup",
        _in_leaves,
        ran(lambda stage: outside.ordinary(lambda pid: _in_leaves(stage, [pid]))),
    ),
    _outside(
        "C25",
        "its hard limits, umask, OOM score and session",
        "set before the id is dropped; the server has others",
        lambda stage, pids: outside.bounds([outside.outer(pids), *outside.inner(pids)], _server(stage)),
        ran(lambda _stage: outside.ordinary(lambda pid: outside.bounds([pid], pid))),
    ),
    program(
        "C26",
        "every system call that the filter denies, with arguments that mean nothing",
        "the filter's answer",
        "seccomp: the whole table",
        ("filter_calls", "table"),
        ran(_unfiltered_calls),
        arguments=lambda _stage: [filter_table.argument()],
        timeout=60.0,
    ),
)
