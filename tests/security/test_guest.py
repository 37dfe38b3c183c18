"""Inside a box: what a command may do to PID 1, to the loops and to the command spawner (threats H01-H04, H15).

Every attack runs as an ordinary command in a real box. Its positive control is the same attack on a sibling command,
which no wall protects: it must succeed there, or the attack proves nothing.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner.seccomp import program
from tests.support.guest_rig import Box, Host, built_tree, running_box

ATTACKS = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
name, pid = sys.argv[1], int(sys.argv[2])
def call(number, *args):
    if libc.syscall(number, *(ctypes.c_long(arg) for arg in args)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def memory():
    line = next(l for l in open(f"/proc/{pid}/maps") if "rw-p" in l)
    with open(f"/proc/{pid}/mem", "rb", 0) as f:
        f.seek(int(line.split("-")[0], 16)); assert f.read(8)
def write_memory():
    open(f"/proc/{pid}/mem", "r+b", 0).close()
def environ():
    open(f"/proc/{pid}/environ", "rb").read()
def descriptors():
    os.readlink(f"/proc/{pid}/fd/0")
def steal():
    pidfd = os.pidfd_open(pid); call(438, pidfd, 0, 0)
def trace():
    if libc.ptrace(16, pid, 0, 0) < 0: raise OSError(ctypes.get_errno(), "attach")
    os.waitpid(pid, 0x40000000); libc.ptrace(17, pid, 0, 0)
def vm_read():
    class V(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
    line = next(l for l in open(f"/proc/{pid}/maps") if "rw-p" in l); buffer = ctypes.create_string_buffer(8)
    a = V(ctypes.addressof(buffer), 8); b = V(int(line.split("-")[0], 16), 8)
    if libc.process_vm_readv(pid, ctypes.byref(a), 1, ctypes.byref(b), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "vm_readv")
def term(): os.kill(pid, 15)
def kill(): os.kill(pid, 9)
def stop(): os.kill(pid, 19)
def prlimit():
    class R(ctypes.Structure): _fields_ = [("soft", ctypes.c_uint64), ("hard", ctypes.c_uint64)]
    r = R(64, 64)
    if libc.prlimit(pid, 7, ctypes.byref(r), None) < 0: raise OSError(ctypes.get_errno(), "prlimit")
try:
    globals()[name]()
    print("ok")
except (OSError, StopIteration) as error:
    print(json.dumps([type(error).__name__, getattr(error, "errno", 0)]))
"""

READING = ["memory", "write_memory", "environ", "descriptors", "steal", "trace", "vm_read"]
SIGNALS = ["term", "kill", "stop"]


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with built_tree() as made:
        yield made


@pytest.fixture(scope="module")
def box(tree: Path) -> Iterator[Box]:
    """Without seccomp: what holds here, dumpable and Landlock hold."""
    with running_box(tree) as made:
        yield made
        assert made.process.poll() is None, made.said()


@pytest.fixture(scope="module")
def host(box: Box) -> Iterator[Host]:
    with box.dial() as made:
        (box.home / "attack.py").write_text(ATTACKS)
        made.request("run.start", **run_start())
        yield made


def run_start() -> dict[str, Any]:
    message = {"role": "user", "author": "a", "text": "x", "cursor": 1}
    names = ("run", "token", "thread", "actor", "model", "posture")
    return {**dict.fromkeys(names, "r"), "epoch": 1, "messages": [message], "checkpoint": None, "next_step": 1}


class Attack:
    """Runs attacks as commands. The box outlives a test and answers a key that it knows with what it kept, so that no
    key may come twice: one counter for all tests of the module."""

    numbers = itertools.count(1)

    def __init__(self, host: Host) -> None:
        self.host = host

    def key(self) -> str:
        return f"a/{next(self.numbers)}"

    def __call__(self, name: str, pid: int) -> str:
        """`ok`, or the error as JSON."""
        argv = ["python3", "attack.py", name, str(pid)]
        ended = self.host.run(self.key(), *argv)
        assert ended.code == 0, ended
        return ended.stdout.decode().strip()

    def sibling(self) -> int:
        """A command that nothing protects from other commands."""
        return int(self.host.spawn(self.key(), "sleep", "60")["pid"])

    def on(self, name: str, victim: str) -> str:
        """The attack on one of `helpers`; looked up again when it was replaced between look-up and attack."""
        answer = self(name, self.helpers()[victim])
        return self(name, self.helpers()[victim]) if "FileNotFound" in answer or "ProcessLookup" in answer else answer

    def helpers(self) -> dict[str, int]:
        """Pids, in the box, of what a command must leave alone."""
        script = "for p in /proc/[0-9]*; do grep -q init.pyc $p/cmdline 2>/dev/null && cat $p/stat; done; true"
        lines = self.host.sh(self.key(), script).stdout.decode().splitlines()
        sessions = {int(line.split()[0]): int(line.rpartition(")")[2].split()[3]) for line in lines}
        loop = int(self.host.request("run.start", **run_start())["pid"])
        spawner = next(pid for pid, session in sessions.items() if pid not in (1, loop, session))
        return {"pid 1": 1, "loop": loop, "command spawner": spawner}


@pytest.fixture
def attack(host: Host) -> Attack:
    return Attack(host)


def refused(answer: str) -> bool:
    return answer != "ok" and json.loads(answer)[0] in ("PermissionError", "OSError")


@pytest.mark.parametrize("name", READING)
def test_h01_h02_the_attack_works_on_a_sibling_command(attack: Attack, name: str) -> None:
    assert attack(name, attack.sibling()) == "ok"


@pytest.mark.parametrize("victim", ["pid 1", "loop", "command spawner"])
@pytest.mark.parametrize("name", READING)
def test_h01_h02_memory_environment_and_descriptors_are_out_of_reach(attack: Attack, name: str, victim: str) -> None:
    assert refused(attack.on(name, victim))


@pytest.mark.parametrize("name", SIGNALS)
def test_h03_the_signal_works_on_a_sibling_command(attack: Attack, name: str) -> None:
    assert attack(name, attack.sibling()) == "ok"


@pytest.mark.parametrize("victim", ["pid 1", "loop"])
@pytest.mark.parametrize("name", SIGNALS)
def test_h03_h15_no_signal_reaches_pid_1_or_a_loop(attack: Attack, name: str, victim: str) -> None:
    pid = attack.helpers()[victim]
    assert json.loads(attack(name, pid)) == ["PermissionError", 1]
    assert attack.helpers()[victim] == pid


@pytest.mark.parametrize("name", ["kill", "stop"])
def test_h03_a_command_spawner_that_a_command_ends_is_replaced(attack: Attack, name: str) -> None:
    before = attack.helpers()
    assert attack.on(name, "command spawner") == "ok"
    assert attack.host.sh(f"after/{name}", "echo on").stdout == b"on\n"
    after = attack.helpers()
    assert after["command spawner"] != before["command spawner"]
    states = attack.host.sh(f"states/{name}", "cat /proc/[0-9]*/stat").stdout.decode().splitlines()
    assert not [line for line in states if line.rpartition(")")[2].split()[0] in "TZ" and "python" in line]


def test_h15_the_last_signal_does_not_end_the_box_even_without_a_domain(attack: Attack, box: Box) -> None:
    """The kernel ignores a KILL of PID 1 from inside its own namespace."""
    attack("kill", 1)
    assert box.process.poll() is None
    assert attack.host.sh("h15", "echo on").stdout == b"on\n"


def test_h04_there_is_no_socket_that_a_command_could_connect_to(attack: Attack, box: Box) -> None:
    look = "cat /proc/net/unix; find / -xdev -type s 2>/dev/null; ls /run 2>/dev/null"
    listed = attack.host.sh("h04", look).stdout.decode()
    assert str(box.socket) not in listed
    assert [line for line in listed.splitlines() if "/" in line] == []
    connect = (
        "import socket,os\nfor name in ('host.sock','/s','s'):\n"
        "  try: socket.socket(socket.AF_UNIX).connect(name); print('in')\n  except OSError as e: print('out')"
    )
    assert attack.host.run("h04b", "python3", "-c", connect).stdout == b"out\nout\nout\n"


def test_h04_a_command_has_no_descriptor_of_the_wire(attack: Attack) -> None:
    links = attack.host.sh("h04c", "ls -l /proc/self/fd").stdout.decode()
    assert "socket" not in links


def test_a_commands_parent_is_pid_1_so_that_its_status_cannot_be_forged(attack: Attack) -> None:
    assert attack.host.run("parent", "python3", "-c", "import os; print(os.getppid())").stdout == b"1\n"


def test_a_renamed_file_crosses_folders_in_the_domain(attack: Attack) -> None:
    """A Landlock domain of an old ABI would forbid it."""
    assert attack.host.sh("mv", "mkdir -p d1 d2; echo x > d1/f; mv d1/f d2/f; cat d2/f").stdout == b"x\n"


@pytest.mark.parametrize("abi", [2, 4, 6, 7])
def test_a_domain_of_each_abi_keeps_tracing_out_and_renames_working(abi: int, tmp_path: Path) -> None:
    """The domain for older kernels, made on this one: it must at least hold what they can hold."""
    import subprocess
    import sys

    from ringfence.guest.syscalls import landlock_abi

    if abi > landlock_abi():
        abi = landlock_abi()
    script = f"""
import os, sys
from ringfence.guest.syscalls import confine
os.chdir({str(tmp_path)!r}); os.makedirs("a", exist_ok=True); os.makedirs("b", exist_ok=True)
victim = os.fork()
if not victim:
    import time; time.sleep(30)
def look():
    try: open(f"/proc/{{victim}}/mem", "rb").close(); return "read"
    except PermissionError: return "refused"
before = look()
if not os.fork():
    confine({abi})
    open("a/f{abi}", "w").close(); os.rename("a/f{abi}", "b/f{abi}")
    print(before, look(), flush=True); os._exit(0)
os.wait(); os.kill(victim, 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["read", "refused"], done.stderr


# --- with the seccomp table: what equal uids would otherwise allow ----------------------------------------------------


@pytest.fixture(scope="module")
def filtered(tree: Path) -> Iterator[Attack]:
    with running_box(tree, seccomp=program()) as made, made.dial() as host:
        (made.home / "attack.py").write_text(ATTACKS)
        assert host.greeting["seccomp"] >= 1
        yield Attack(host)


def test_h15_prlimit_on_pid_1_works_without_the_table(tree: Path) -> None:
    with running_box(tree) as bare, bare.dial() as host:
        (bare.home / "attack.py").write_text(ATTACKS)
        assert Attack(host)("prlimit", 1) == "ok"
        limits = Path(f"/proc/{bare.guest_pid()}/limits").read_text()
        assert "Max open files            64 " in limits


@pytest.mark.parametrize("name", ["prlimit", "trace", "steal", "vm_read", "term", "kill", "stop"])
def test_h15_with_the_table_nothing_touches_pid_1(filtered: Attack, name: str) -> None:
    assert refused(filtered(name, 1))
    assert filtered.host.sh(f"on/{name}", "echo on").stdout == b"on\n"


def test_the_guest_works_under_the_table(filtered: Attack) -> None:
    host = filtered.host
    assert host.sh("t/1", "yes | head -c 100000 | wc -c").stdout.strip() == b"100000"
    ended = host.sh("t/2", "sleep 30", timeout=0.3, grace=0.2)
    assert (ended.reason, ended.signal) == ("timeout", signal.SIGTERM)
    assert host.request("run.start", **run_start())["pid"] > 1
