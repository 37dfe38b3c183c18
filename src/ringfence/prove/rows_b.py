"""Group B: /proc, /sys, devices, terminals (docs/threats.md)."""

from __future__ import annotations

from pathlib import Path

from ringfence.prove.attacks.trying import DONE
from ringfence.prove.row import Row, Tries, program, ran
from ringfence.prove.stage import ATTACKER, Stage

DAC = "the kernel's own checks: the box's host id is not 0 and it has no capability"
INFORMATION = "/proc/cmdline /proc/version /proc/cpuinfo /proc/loadavg /proc/mounts /proc/self/cgroup /proc/net/unix"
ESCAPE = "\x1b[31mred"


def _words(stage: Stage) -> str:
    """What no file that a box can read may say."""
    return ",".join((str(stage.root), stage.canaries.secret, stage.canaries.flag, stage.installation))


def _scratch(stage: Stage) -> str:
    """A file that anybody may write: what a reopening control opens."""
    path = stage.canaries.host / "open" / "scratch"
    if not path.exists():
        path.touch()
        path.chmod(0o666)
    return str(path)


def _names(stage: Stage, _runner: str) -> Tries:
    """A file name that would colour the operator's terminal, shown by the command line."""
    stage.exec(ATTACKER, ["touch", f"/home/user/{ESCAPE}"])
    seen = {words: stage.made.run(*words.split()).out for words in (f"files ls {ATTACKER} .", "box ls")}
    return Tries({name: f"{DONE} an escape" if b"\x1b" in out else "inert" for name, out in seen.items()})


def _raw_names(stage: Stage) -> Tries:
    out = stage.shell(ATTACKER, f"printf '{ESCAPE}\\n'")["stdout"]
    return Tries({"raw output": f"{DONE} an escape" if "\x1b" in out else "inert"})


def _legacy() -> str:
    """Why TIOCSTI cannot be shown here; empty where the kernel still has it."""
    path = Path("/proc/sys/dev/tty/legacy_tiocsti")
    return "this kernel has TIOCSTI switched off" if path.exists() and path.read_text().strip() == "0" else ""


ROWS: tuple[Row, ...] = (
    program(
        "B01",
        "open core_pattern, modprobe, overcommit_memory and others below /proc/sys for writing",
        "EACCES or EROFS",
        DAC,
        ("kernelfiles", "sysctls"),
        ran(lambda stage: stage.rooted("kernelfiles", "sysctls")),
    ),
    program(
        "B03",
        "open kcore, kmsg, kpageflags, slabinfo and sysrq-trigger",
        "EACCES or ENOENT",
        DAC,
        ("kernelfiles", "kernel_memory"),
        ran(lambda stage: stage.rooted("kernelfiles", "kernel_memory")),
    ),
    program(
        "B04",
        "search what /proc tells everybody for paths of the host and secrets",
        "information only",
        "opaque names; the cgroup and network namespaces",
        ("files", "words"),
        ran(lambda stage: stage.bare("files", "words", _words(stage), str(stage.canaries.host / "secret"))),
        arguments=lambda stage: (_words(stage), *INFORMATION.split()),
    ),
    program(
        "B05",
        "/proc/1: environment, memory, descriptors, root",
        "EACCES",
        "PID 1 is not dumpable",
        ("kernelfiles", "hidden"),
        ran(lambda stage: stage.loose("kernelfiles", "hidden")),
    ),
    program(
        "B06",
        "/proc/1/environ and /proc/1/cmdline: a secret or a path of the host",
        "none",
        "bubblewrap is started with an empty environment and its arguments in a descriptor",
        ("files", "words"),
        ran(
            lambda stage: stage.loose(
                "files",
                "words",
                stage.canaries.secret,
                "/proc/1/environ",
                without=("--as-pid-1",),
                environment={"TOKEN": stage.canaries.secret},
            )
        ),
        arguments=lambda stage: (_words(stage), "/proc/1/environ", "/proc/1/cmdline"),
    ),
    program(
        "B07",
        "open /proc/1/exe, the interpreter and the guest for writing, also by way of O_PATH",
        "EACCES, EROFS or ETXTBSY",
        "programs are root's and bound read-only; bubblewrap is not started as root",
        ("kernelfiles", "reopening"),
        ran(lambda stage: stage.bare("kernelfiles", "reopening", _scratch(stage))),
        arguments=lambda _stage: ("/proc/1/exe", "/proc/self/exe", "/usr/bin/python3", "/opt/ringfence/init.pyc"),
    ),
    program(
        "B08",
        "open memory, disks, kvm, fuse, tun and other devices",
        "ENOENT",
        "a /dev of its own with null, zero, full, random, urandom, tty and ptys",
        ("kernelfiles", "devices"),
        ran(lambda stage: stage.rooted("kernelfiles", "devices")),
    ),
    program(
        "B09",
        "make a file in /, /dev, /etc, /usr, /opt/ringfence and /proc",
        "EROFS",
        "remounted read-only after the last mount",
        ("kernelfiles", "making"),
        ran(
            lambda stage: stage.loose(
                "kernelfiles", "making", "/", "/dev", without=("--remount-ro /", "--remount-ro /dev")
            )
        ),
        arguments=lambda _stage: ("/", "/dev", "/etc", "/usr", "/opt", "/opt/ringfence", "/proc"),
    ),
    program(
        "B10",
        "/sys: devices, firmware, cgroups of the host",
        "absent",
        "not mounted",
        ("kernelfiles", "listing"),
        ran(lambda stage: stage.bare("kernelfiles", "listing", "/sys")),
        arguments=lambda _stage: ("/sys", "/sys/fs/cgroup", "/sys/kernel"),
    ),
    program(
        "B11",
        "TIOCSTI and TIOCLINUX into a terminal",
        "EPERM",
        "seccomp; second: a session of its own",
        ("kernelfiles", "injecting"),
        ran(lambda stage: stage.loose("kernelfiles", "injecting", without=("--seccomp",)), _legacy()),
    ),
    program(
        "B12",
        "open the controlling terminal of whoever started the server",
        "ENXIO",
        "a session of its own",
        ("kernelfiles", "terminal"),
        ran(lambda stage: stage.loose("kernelfiles", "terminal", "own")),
    ),
    Row(
        "B13",
        "escape sequences in a file's name, listed by the operator",
        "inert",
        "the command line shows names with control characters escaped",
        _names,
        ran(_raw_names),
        "h",
    ),
)
