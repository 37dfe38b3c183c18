"""Group H: a command of the box against what else lives in it: PID 1, the command spawner, agent loops.

`done`: it got at the other process. Must never signal a process that is not of its own pid namespace.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfence.prove.attacks.trying import Outcomes, Place, attempt, each, machine, open_for_writing, read, syscall

PTRACE_SEIZE = 0x4206
NUMBERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "prlimit64": (302, 261),
    "sched_setscheduler": (144, 119),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
DEEPEST = 100
OWN_HOOKS = ("json.py", "socket.py", "sitecustomize.py", "usercustomize.py", "ringfence.py")


def number(name: str) -> int:
    return NUMBERS[name][machine() == "aarch64"]


def loop_at_work() -> int:
    """The pid that `linger` has left; 0: there is none."""
    path = Path("/tmp/.loop")
    return int(path.read_text()) if path.exists() else 0


def command_spawner() -> int:
    """What has PID 1's command line and is neither PID 1 nor a loop."""
    own = Path("/proc/1/cmdline").read_bytes()
    known = {1, loop_at_work(), os.getpid()}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) not in known and read(f"/proc/{name}/cmdline") == own:
            return int(name)
    raise RuntimeError("no command spawner")


def targets(place: Place) -> list[int]:
    """Of the arguments (a control's own child), else PID 1, the command spawner and the loop at work."""
    if place.arguments:
        return [int(word) for word in place.arguments]
    return [pid for pid in (1, command_spawner(), loop_at_work()) if pid and pid != os.getpid()]


def worst(pids: list[int], work: Callable[[int], object]) -> str:
    """`done` with the first one that it worked on; else what stopped it, of all."""
    said: dict[str, list[int]] = {}
    for pid in pids:
        outcome = attempt(lambda pid=pid: work(pid))  # type: ignore[misc]
        if outcome.split(" ")[0] == "done":
            return f"done on {pid}"
        said.setdefault(outcome, []).append(pid)
    return ", ".join(f"{outcome} ({len(found)})" for outcome, found in said.items()) or "nobody there"


@contextmanager
def own_child() -> Iterator[int]:
    """A child to be attacked, for the control: same id, no wall between."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def with_child(attack: Callable[[Place], Outcomes]) -> Callable[[Place], Outcomes]:
    """The control of an attack: the same on an own child."""

    def control(place: Place) -> Outcomes:
        with own_child() as pid:
            return attack(Place([str(pid)]))

    return control


def memory(place: Place) -> Outcomes:
    """H01. Opening is enough to tell: nothing is read or written."""
    pids = targets(place)

    def maps(pid: int) -> None:
        if not read(f"/proc/{pid}/maps"):
            raise PermissionError(13, "empty")

    def environment(pid: int) -> None:
        read(f"/proc/{pid}/environ")

    return {
        "mem": worst(pids, lambda pid: os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))),
        "mem_write": worst(pids, lambda pid: open_for_writing(f"/proc/{pid}/mem")),
        "maps": worst(pids, maps),
        "environ": worst(pids, environment),
        "fds": worst(pids, lambda pid: os.listdir(f"/proc/{pid}/fd")),
        "root": worst(pids, lambda pid: os.listdir(f"/proc/{pid}/root/")),
        "cwd": worst(pids, lambda pid: os.listdir(f"/proc/{pid}/cwd/")),
    }


def steal(place: Place) -> Outcomes:
    """H02."""
    pids = targets(place)

    def getfd(pid: int) -> None:
        pidfd = syscall(number("pidfd_open"), pid, 0)
        try:
            os.close(syscall(number("pidfd_getfd"), pidfd, 0, 0))
        finally:
            os.close(pidfd)

    def seize(pid: int) -> None:
        syscall(number("ptrace"), PTRACE_SEIZE, pid, 0, 0)  # our end lets go of it

    def vm(pid: int) -> None:
        buffer = ctypes.create_string_buffer(8)
        vector = struct.pack("PP", ctypes.addressof(buffer), 8)
        there = struct.pack("PP", 0x400000, 8)
        try:
            syscall(number("process_vm_readv"), pid, vector, 1, there, 1, 0)
        except OSError as error:
            if error.errno != 14:  # EFAULT: it was let in, and nothing is mapped there
                raise

    return {"pidfd_getfd": worst(pids, getfd), "ptrace": worst(pids, seize), "vm": worst(pids, vm)}


def signals(place: Place) -> Outcomes:
    """H03: signals and bounds for PID 1 and for loops. The command spawner shares the commands' domain: `replaced`."""
    pids = [int(word) for word in place.arguments] or [pid for pid in (1, loop_at_work()) if pid]
    limit = struct.pack("QQ", 0, 0)

    def scheduler(pid: int) -> None:
        syscall(number("sched_setscheduler"), pid, 5, ctypes.byref(ctypes.c_int(0)))  # SCHED_IDLE

    return {
        "cont": worst(pids, lambda pid: os.kill(pid, signal.SIGCONT)),
        "urg": worst(pids, lambda pid: os.kill(pid, signal.SIGURG)),
        "prlimit": worst(pids, lambda pid: syscall(number("prlimit64"), pid, 4, limit, ctypes.c_void_p(None))),
        "scheduler": worst(pids, scheduler),
        "priority": worst(pids, lambda pid: syscall(number("setpriority"), 0, pid, 19)),
        "io": worst(pids, lambda pid: syscall(number("ioprio_set"), 1, pid, 3 << 13)),
    }


def wire(place: Place) -> Outcomes:
    """H04: the host's wire, by every name that the box knows. Arguments: a path that listens, and then that one alone: what else
    listens on a host, for everybody, is no wire."""
    found = place.arguments or _known_names()
    return {"connect": worst_name(found, connect), "links": worst_name(_fd_links(), connect)}


def _known_names() -> list[str]:
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if len(line.split()) > 7]
    found = [name for name in names if name.startswith(("/", "@"))]
    for folder in ("/run", "/tmp", "/opt/ringfence", "/home/user", "/workspace"):
        for base, folders, files in os.walk(folder):
            found += [f"{base}/{name}" for name in files if is_socket(f"{base}/{name}")]
            if base.count("/") > DEEPEST:  # somebody's tree of thousands of levels: os.walk calls itself for each
                folders.clear()
    return found


def is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:  # a folder that may be listed and not entered
        return False


def worst_name(names: list[str], work: Callable[[str], object]) -> str:
    said: set[str] = set()
    for name in names:
        outcome = attempt(lambda name=name: work(name))  # type: ignore[misc]
        if outcome.split(" ")[0] == "done":
            return f"done {name}"
        said.add(outcome)
    return ", ".join(sorted(said)) or "no name"


def connect(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(2)
        sock.connect(f"\0{name[1:]}" if name.startswith("@") else name)


def _fd_links() -> list[str]:
    return [f"/proc/{pid}/fd/{fd}" for pid in (1, os.getppid()) for fd in range(3, 12)]


def plant(place: Place) -> Outcomes:
    """H05, I01: what a loop or PID 1 would run or read if it trusted HOME or the working folder. Says who runs it."""
    hook = "import os\nopen('/home/user/hooked', 'a').write(' '.join(open('/proc/self/comm').read().split()) + '\\n')\n"
    shell = "echo shell >> /home/user/hooked\n"
    version = f"python3.{sys.version_info.minor}"
    folders = ("/home/user", "/workspace", "/tmp", f"/home/user/.local/lib/{version}/site-packages")
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
        for name in OWN_HOOKS:
            Path(f"{folder}/{name}").write_text(hook)
    for name in (".bashrc", ".profile", ".bash_profile", ".bash_login", ".bash_logout", ".zshrc", ".shrc", ".ENV"):
        Path(f"/home/user/{name}").write_text(shell)
    Path("/home/user/.gitconfig").write_text("[core]\n\tfsmonitor = echo git >> /home/user/hooked\n")
    return {"planted": "ready"}


def hooked(place: Place) -> Outcomes:
    """Whether any of that has run since."""
    path = Path("/home/user/hooked")
    return {"hooks": f"done {path.read_text().split()}" if path.exists() else "nothing has run"}


def unplant(place: Place) -> Outcomes:
    for folder in ("/home/user", "/workspace", "/tmp"):
        for name in OWN_HOOKS:
            Path(f"{folder}/{name}").unlink(missing_ok=True)
    Path("/home/user/hooked").unlink(missing_ok=True)
    return {"planted": "gone"}


def trusts_folder(place: Place) -> Outcomes:
    """The control of `plant`: an interpreter that is not isolated, in a folder with a json.py. Arguments: the folder."""
    folder = Path(place.arguments[0]) / f"hook-{os.getpid()}"
    folder.mkdir()
    (folder / "json.py").write_text("print('hijacked')\n")
    done = subprocess.run(["/usr/bin/python3", "-c", "import json"], cwd=folder, capture_output=True, text=True)
    (folder / "json.py").unlink()
    for left in sorted(folder.rglob("*"), reverse=True):
        left.unlink() if left.is_file() else left.rmdir()
    folder.rmdir()
    return {"json": "done" if "hijacked" in done.stdout else "not run"}


def code(place: Place) -> Outcomes:
    """H06: what loops and PID 1 are made of. Arguments: of a control, a file that may be written."""
    files = place.arguments or [
        "/opt/ringfence/init.pyc",
        "/opt/ringfence/bundle",
        "/opt/ringfence/bin/no-root",
        "/opt/ringfence/lib/ringfence/guest/loop.pyc",
        os.path.realpath("/usr/bin/python3"),
        os.__file__,
        "/etc/passwd",
        "/etc/ld.so.cache",
    ]
    if place.arguments:
        return {"write": worst_name(files, open_for_writing)}
    return {
        "write": worst_name(files, open_for_writing),
        **each(
            make=lambda: Path("/opt/ringfence/new").touch(),
            mode=lambda: os.chmod("/opt/ringfence/init.pyc", 0o777),
            replace=lambda: os.rename("/home/user", "/opt/ringfence/bin"),
            preload=lambda: Path("/etc/ld.so.preload").write_text(""),
        ),
    }


def linger(place: Place) -> Outcomes:
    """A loop that is there to be attacked. Arguments: seconds."""
    path = Path("/tmp/.loop")
    path.write_text(str(os.getpid()))
    time.sleep(float(place.arguments[0]))
    path.unlink()
    return {"linger": "lived"}


def kill_spawner(place: Place) -> Outcomes:
    """H13."""
    os.kill(command_spawner(), getattr(signal, place.arguments[0]))
    return {"killed": "ready"}


def init(place: Place) -> Outcomes:
    """H15: every signal to PID 1. That this program goes on to say so shows that the box lives."""
    said = {attempt(lambda n=n: os.kill(1, n)) for n in range(1, 65) if n not in (32, 33)}  # type: ignore[misc]
    alive = attempt(lambda: os.kill(1, 0)) != "ESRCH" and os.path.exists("/proc/1")
    return {"signals": f"PID 1 lives ({', '.join(sorted(said))})" if alive else "done"}


def kill_own(place: Place) -> Outcomes:
    """The control of `init`: the same signals to an own child."""
    with own_child() as pid:
        os.kill(pid, signal.SIGTERM)
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # still there for own_child to wait for
        killed = info is not None and info.si_code == os.CLD_KILLED
        return {"kill": "done" if killed else "lives"}


ATTACKS = {
    "memory": memory,
    "steal": steal,
    "signals": signals,
    "wire": wire,
    "plant": plant,
    "hooked": hooked,
    "unplant": unplant,
    "trusts_folder": trusts_folder,
    "code": code,
    "init": init,
    "linger": linger,
    "kill_spawner": kill_spawner,
    "memory_of_child": with_child(memory),
    "steal_from_child": with_child(steal),
    "signals_to_child": with_child(signals),
    "kill_own": kill_own,
}
