"""A box's whole life through a real spawner, seen from the host: who its processes are, what they hold, what is left."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringfence.spawner import bubblewrap, protocol
from ringfence.spawner.errors import StartRefused
from ringfence.spawner.protocol import Limits
from tests.support import spawner_rig
from tests.support.spawner_rig import INSTALLATION, Refusal, Rig, status_of

pytestmark = pytest.mark.root
A, B = "a" * 16, "b" * 16
SMALL = Limits(memory=128 << 20, pids=64, cpu_milli=500, shm=16 << 20, run=4 << 20)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = spawner_rig.make()
    made.start()
    yield made
    made.clean()


def identity(started: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = started["identity"]
    return found


def processes_of(uid: int) -> list[str]:
    """Living ones: a dead one may wait for its reaper a moment longer."""
    command = ["ps", "-o", "stat=,pid=,ppid=,args=", "-U", str(uid)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [line for line in lines if not line.startswith("Z")]


def directories(box: str, installation: str = INSTALLATION) -> list[Path]:
    """Cgroups of the box."""
    return list(Path("/sys/fs/cgroup").glob(f"**/ringfence-{installation}/{box}"))


def test_the_host_sees_a_box_without_rights(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    started = identity(rig.start_box(A))
    rig.shell(A, "true")  # the guest answers: bubblewrap is through
    status = status_of(started["pid"])
    assert status["Uid"].split() == [str(uid)] * 4 and status["Gid"].split() == [str(uid)] * 4
    assert {status[f"Cap{n}"] for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["Seccomp"], status["NoNewPrivs"], status["Groups"]) == ("2", "1", "")
    assert status["NSpid"].split()[-1] == "1"
    outer = status_of(int(status["PPid"]))
    assert outer["Uid"].split() == [str(uid)] * 4 and outer["CapEff"] == "0" * 16
    assert started["pid_ns"] == os.stat(f"/proc/{started['pid']}/ns/pid").st_ino
    assert started["net_ns"] == os.stat(f"/proc/{started['pid']}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
    assert Path(f"/proc/{status['PPid']}/environ").read_bytes() == b""
    assert rig.home.name not in Path(f"/proc/{status['PPid']}/cmdline").read_text()


def test_pid_1_holds_exactly_the_allow_list(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    told = rig.tell(A, {"fds": 1})
    names = {int(n): target for n, target in told["fds"].items()}
    kinds = [names[0], names[1].split(":")[0], names[2].split(":")[0], names[3].split(":")[0]]
    assert kinds == ["/dev/null", "pipe", "pipe", "socket"]
    rest = [names[n] for n in sorted(names) if n > 3]
    assert rest and all(t.endswith(f"ringfence-{INSTALLATION}/{A}/cmds/cgroup.procs") for t in rest)
    assert told["argv"][1:] == ["3", ",".join(str(n) for n in sorted(names) if n > 3), "d" * 64]
    assert set(told["environ"]) - {"PWD"} == {"PATH", "HOME", "USER", "LANG", "SHELL", "PYTHONSAFEPATH"}


def test_the_view_from_inside(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    told = rig.shell(A, "id -u; id -un; hostname; cat /etc/machine-id; ls /; cat /proc/1/environ | tr '\\0' '\\n'")
    lines = told["out"].split("\n")
    assert lines[:3] == ["1000", "user", "box"]
    assert set(lines[4:18]) >= {"etc", "home", "opt", "proc", "run", "tmp", "usr", "workspace"}
    assert not {"boot", "root", "srv", "sys", "var", "source", "old"} & set(lines)
    for command in ("touch /x", "touch /dev/x", "touch /etc/x", "touch /usr/x", "touch /opt/ringfence/x"):
        assert "Read-only" in rig.shell(A, command)["err"], command
    for command in ("touch /home/user/x", "touch /workspace/x", "touch /tmp/x", "touch /dev/shm/x", "touch /run/x"):
        assert rig.shell(A, command)["rc"] == 0, command
    assert "denied" in rig.shell(A, "echo x > /proc/sys/kernel/core_pattern")["err"]
    assert rig.shell(A, "git config safe.directory; awk 'BEGIN{print 1}'")["out"] == "*\n1\n"


def test_its_network_refuses_at_once(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    for address in ("1.1.1.1", "169.254.169.254", "127.0.0.1", "::1", "2001:db8::1"):
        script = f"import socket; socket.create_connection(({address!r}, 443), 5)"
        told = rig.shell(A, f'python3 -c "{script}"')
        assert "refused" in told["err"].lower(), told["err"]  # what is not answered is a time-out
    listener = socket.create_server(("127.0.0.1", 0))  # the host's own loopback is another one
    with listener:
        port = listener.getsockname()[1]
        told = rig.shell(A, f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {port}), 5)\"")
        assert "refused" in told["err"].lower()
    told = rig.shell(A, "python3 -c \"import socket; socket.socket().bind(('127.0.0.1', 1022))\"")
    assert "Permission denied" in told["err"]  # the transparent port cannot be squatted


def test_limits_hold_for_commands_and_pid_1_survives(rig: Rig) -> None:
    rig.provision(A)
    pid = identity(rig.start_box(A, SMALL))["pid"]
    eaten = rig.shell(A, "python3 -c 'x = bytearray(200 << 20)'")
    assert eaten["rc"] in (-9, 137)
    filled = rig.shell(A, "head -c 20M /dev/zero > /dev/shm/x; head -c 6M /dev/zero > /run/x; du -sm /dev/shm /run")
    assert "No space" in filled["err"] and filled["out"].split()[0] == "16"
    forked = rig.shell(
        A,
        "python3 -c 'import os, time\nn = 0\ntry:\n  while n < 200:\n    os.fork() or (time.sleep(3), os._exit(0))\n    n += 1\nexcept OSError: pass\nprint(n)'",
    )
    assert 16 < int(forked["out"]) < 33
    seen = rig.ask(protocol.Observe(A))
    assert seen["state"] == "running" and seen["identity"]["pid"] == pid and seen["oom_kills"] >= 1
    assert seen["memory_limit"] == 64 << 20 and 0 < seen["memory"] <= 128 << 20 and seen["pids"] > 0
    rig.ask(protocol.SetLimits(A, Limits(memory=512 << 20)))
    assert rig.ask(protocol.Observe(A))["memory_limit"] == 448 << 20
    assert rig.shell(A, "python3 -c 'x = bytearray(200 << 20)'")["rc"] == 0  # the control: it was the limit


def test_stop_keeps_files_empties_tmp_and_leaves_no_process(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    pid = identity(rig.start_box(A))["pid"]
    rig.shell(A, "echo kept > /home/user/f; mkdir -p /tmp/d/e; touch /tmp/d/e/f; setsid sleep 60 >/dev/null 2>&1 &")
    assert len(processes_of(uid)) >= 3 and directories(A)
    rig.ask(protocol.Stop(A))
    assert processes_of(uid) == [] and directories(A) == [] and not Path(f"/proc/{pid}").exists()
    tree = rig.home / "boxes" / A / "tree"
    assert os.listdir(tree / "tmp") == [] and (tree / "home" / "f").read_text() == "kept\n"
    assert (tree / "home" / "f").stat().st_uid == uid
    assert rig.ask(protocol.Observe(A))["state"] == "stopped"
    rig.ask(protocol.Stop(A))
    assert identity(rig.start_box(A))["pid"] != pid
    assert rig.shell(A, "cat /home/user/f; ls /tmp")["out"] == "kept\n"


@pytest.mark.parametrize("mode", ["0", "100", "444"])
def test_a_box_that_takes_all_rights_off_its_own_trees_is_stopped_started_and_removed(rig: Rig, mode: str) -> None:
    rig.provision(A)
    rig.start_box(A)
    rig.shell(A, f"mkdir -p /tmp/d; touch /tmp/d/f /workspace/f; chmod {mode} /tmp /workspace /home/user")
    tree = rig.home / "boxes" / A / "tree"
    assert (tree / "tmp").stat().st_mode & 0o777 == int(mode, 8)  # control
    rig.ask(protocol.Stop(A))
    assert os.listdir(tree / "tmp") == []
    rig.start_box(A)
    assert rig.shell(A, f"chmod {mode} /tmp; id -u")["out"] == "1000\n"
    rig.ask(protocol.Remove(A))
    assert os.listdir(rig.home / "boxes") == []


def test_start_is_idempotent_and_boxes_outlive_the_spawner(rig: Rig) -> None:
    rig.provision(A)
    first = rig.start_box(A)
    again = rig.start_box(A)
    assert (first["already"], again["already"]) == (False, True) and first["identity"] == again["identity"]
    rig.kill()
    assert rig.shell(A, "echo alive")["out"] == "alive\n"
    rig.start()
    assert rig.ask(protocol.ListBoxes()) == {"boxes": [A], "running": [A], "more": False, "jails": []}
    adopted = rig.start_box(A)
    assert adopted["already"] and adopted["identity"] == first["identity"]
    rig.ask(protocol.Stop(A))
    assert rig.ask(protocol.ListBoxes()) == {"boxes": [A], "running": [], "more": False, "jails": []}


def warmers(rig: Rig) -> list[int]:
    """The children of an idle spawner whose kernel is this test."""
    assert rig.process is not None
    return [int(word) for word in Path(f"/proc/{rig.process.pid}/task/{rig.process.pid}/children").read_text().split()]


def test_the_warmer_has_no_right_and_two_descriptors_and_ends_with_the_spawner(rig: Rig) -> None:
    (pid,) = warmers(rig)
    rig.provision(A)
    rig.start_box(A)
    status = status_of(pid)
    assert {status[f"Cap{n}"] for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Groups"]) == ("1", "")
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in sorted(os.listdir(f"/proc/{pid}/fd"), key=int)]
    assert links[:3] == ["/dev/null"] * 3 and links[3].startswith("pipe:") and len(links) == 5
    place = Path(links[4]).parent
    assert links[4].endswith(f"ringfence-{INSTALLATION}/server/cgroup.procs")
    assert Path(links[4]).read_text().split() == [str(pid)]  # it has written: that is where it is now
    rig.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/status").exists() and not status_of(pid)["State"].startswith("Z"):
        assert time.monotonic() < deadline
    rig.start()
    (heir,) = warmers(rig)
    rig.stop()
    assert not Path(f"/proc/{heir}").exists() and not place.exists()


def test_a_box_starts_without_the_warmer(rig: Rig) -> None:
    spawner_rig.end_quietly(*warmers(rig))
    rig.provision(A)
    rig.start_box(A)
    assert rig.shell(A, "id -u")["out"] == "1000\n"


def test_a_box_that_died_by_itself_starts_clean(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    pid = identity(rig.start_box(A))["pid"]
    rig.shell(A, "touch /tmp/left")
    spawner_rig.end_quietly(pid)
    deadline = time.monotonic() + 30
    while rig.ask(protocol.Observe(A))["state"] != "stopped":
        assert time.monotonic() < deadline
    started = rig.start_box(A)
    assert not started["already"] and rig.shell(A, "ls /tmp")["out"] == ""
    assert len(processes_of(uid)) == 2


def test_another_process_is_never_taken_for_pid_1(rig: Rig) -> None:
    rig.provision(A)
    rig.start_box(A)
    live = rig.home / "boxes" / A / "live.json"
    text = live.read_text()
    rig.ask(protocol.Stop(A))
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        pid = text.split('"pid": ')[1].split(",")[0]
        live.write_text(text.replace(f'"pid": {pid}', f'"pid": {bystander.pid}'))
        live.chmod(0o600)
        assert rig.ask(protocol.Observe(A))["state"] == "stopped"
        rig.ask(protocol.Stop(A))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_remove_leaves_nothing(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    rig.start_box(A)
    rig.shell(A, "mkdir -p /home/user/$(seq -s/ 1 400); chmod 0 /home/user/1; ln -s /etc /workspace/etc; mkfifo /tmp/p")
    reply, fds = rig.ask_fds(protocol.Files(A))
    assert reply == {} and len(fds) == 1
    rig.ask(protocol.Remove(A))
    os.close(fds[0])
    assert processes_of(uid) == [] and directories(A) == [] and os.listdir(rig.home / "boxes") == []
    assert str(rig.home) not in Path("/proc/self/mountinfo").read_text() and Path("/etc/passwd").exists()
    assert rig.ask(protocol.Observe(A))["state"] == "absent"
    rig.ask(protocol.Remove(A))
    assert rig.provision(A)["uid"] != uid


def test_a_failing_start_says_why_and_leaves_nothing(rig: Rig) -> None:
    uid = rig.provision(A)["uid"]
    rig.stop()
    launcher = next(rig.home.rglob("site/ringfence/spawner/profile.py"))
    launcher.write_text(launcher.read_text().replace('Bind(usr, "/usr")', 'Bind("/nowhere", "/usr")'))
    rig.start()
    with pytest.raises(Refusal, match="nowhere") as caught:
        rig.start_box(A)
    assert caught.value.code == "failed"
    assert processes_of(uid) == [] and directories(A) == [] and rig.ask(protocol.Observe(A))["state"] == "stopped"


def test_two_boxes_start_side_by_side(rig: Rig) -> None:
    boxes = [n * 16 for n in "abcdef"]
    for box in boxes:
        rig.provision(box)
    numbers = {rig.send(protocol.Start(box, Limits())): box for box in boxes}
    replies: dict[int, dict[str, Any]] = {}
    for _ in boxes:
        reply, _ = rig.receive()
        replies[reply["id"]] = reply["ok"]["identity"]
    assert set(replies) == set(numbers) and len({r["net_ns"] for r in replies.values()}) == 6
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        alone = pool.map(lambda box: rig.shell(box, "ls -d /proc/[0-9]* | wc -l"), boxes)
        assert all(int(told["out"]) <= 5 for told in alone)  # each sees its own few processes


def test_a_start_is_fast_also_when_starts_are_far_apart(rig: Rig) -> None:
    """Against starts that follow at once, in turn with them: the least of each, for the tests share the machine."""
    rig.provision(A)
    took: dict[float, list[float]] = {0.0: [], 0.3: []}
    for pause in list(took) * 12:
        time.sleep(pause)
        begun = time.monotonic()
        rig.start_box(A)
        took[pause].append(time.monotonic() - begun)
        rig.ask(protocol.Stop(A))
    assert min(took[0.3]) < 2 * min(took[0.0]), took


def test_the_kernels_process_has_no_right(rig: Rig) -> None:
    """The kernel is a stand-in that reports its own status: what it was given, not what it does."""
    rig.stop()
    app = rig.home / "runtime" / "test" / "site" / "ringfence" / "host" / "app.py"
    app.parent.mkdir()
    (app.parent / "__init__.py").touch()
    app.write_text(
        "import json, os, socket, sys\n"
        "def main():\n"
        "    end = socket.socket(fileno=int(sys.argv[1]))\n"
        "    end.send(json.dumps({'id': 1, 'op': 'greet', 'version': 1}).encode())\n"
        "    reply = json.loads(end.recv(65536))\n"
        "    fds = {n: os.readlink(f'/proc/self/fd/{n}') for n in sorted(os.listdir('/proc/self/fd'))[:-1]}\n"
        "    print(json.dumps({'reply': reply, 'fds': fds, 'env': dict(os.environ), 'argv': sys.argv,\n"
        "        'status': open('/proc/self/status').read()}), flush=True)\n"
        "    sys.exit(7)\n"
    )
    code = f"import sys; sys.path.insert(0, {str(app.parents[2])!r}); from ringfence.spawner.main import main; main({str(rig.config)!r})"
    done = subprocess.run(
        [spawner_rig.PYTHON, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, timeout=120, env={"S": "x"}
    )
    assert done.returncode == 7, done.stderr
    told = json.loads(done.stdout)
    lines = dict(line.split(":\t", 1) for line in told["status"].splitlines() if ":\t" in line)
    assert lines["Uid"].split() == [str(spawner_rig.FIRST_ID)] * 4
    assert {lines[f"Cap{n}"] for n in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert lines["NoNewPrivs"] == "1" and lines["Groups"].strip() == ""
    assert set(told["fds"]) <= {"0", "1", "2", "3"} and told["fds"]["0"] == "/dev/null"
    assert told["reply"]["ok"]["installation"] == INSTALLATION and told["argv"][1:] == [
        "3",
        str(rig.home / "run/kernel.json"),
    ]
    assert "S" not in told["env"]
    rig.start()


WAITING_KERNEL = """
import signal, socket, sys, time
def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    end = socket.socket(fileno=int(sys.argv[1]))
    print("kernel", flush=True)
    end.recv(1) if "end" in open(sys.argv[2]).read() else time.sleep(60)
"""


def serve(rig: Rig, word: str) -> subprocess.Popen[str]:
    """The real entry with a kernel that waits."""
    rig.stop()
    app = rig.home / "runtime" / "test" / "site" / "ringfence" / "host" / "app.py"
    app.parent.mkdir(exist_ok=True)
    (app.parent / "__init__.py").touch()
    app.write_text(WAITING_KERNEL)
    (rig.home / "run").chmod(0o755)
    (rig.home / "run" / "kernel.json").write_text(word)
    site = str(app.parents[2])
    code = (
        f"import sys; sys.path.insert(0, {site!r}); from ringfence.spawner.main import main; main({str(rig.config)!r})"
    )
    argv = [spawner_rig.PYTHON, "-I", "-S", "-B", "-c", code]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "kernel\n"
    return process


def test_sigterm_ends_the_kernel_and_hands_on_its_status(rig: Rig) -> None:
    with serve(rig, "sleep") as process:
        process.terminate()
        assert process.wait(60) == 3
    rig.start()


def test_each_ends_when_the_other_does(rig: Rig) -> None:
    with serve(rig, "sleep") as process:
        kernel = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]  # the eldest
        os.kill(int(kernel), 9)
        assert process.wait(60) == 128 + 9
    with serve(rig, "end") as process:
        kernel = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]  # the eldest
        process.kill()
        process.wait(60)
        deadline = time.monotonic() + 30
        while Path(f"/proc/{kernel}").exists() and not status_of(int(kernel))["State"].startswith("Z"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    rig.start()


@pytest.fixture
def bubblewrap_copy() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="ringfence-test-", dir="/usr/local/lib"))
    directory.chmod(0o755)
    copy = directory / "bwrap"
    shutil.copy("/usr/bin/bwrap", copy)
    yield copy
    shutil.rmtree(directory)


def test_unfit_bubblewraps_are_refused_with_the_remedy(bubblewrap_copy: Path) -> None:
    assert bubblewrap.check(str(bubblewrap_copy))  # control
    for mode, remedy in ((0o4755, "chmod u-s"), (0o777, "chmod go-w")):
        bubblewrap_copy.chmod(mode)
        with pytest.raises(StartRefused) as caught:
            bubblewrap.check(str(bubblewrap_copy))
        assert remedy in caught.value.remedy
    bubblewrap_copy.chmod(0o755)
    os.chown(bubblewrap_copy, spawner_rig.FIRST_ID + 8, spawner_rig.FIRST_ID + 8)  # a box could exchange it
    with pytest.raises(StartRefused, match="written by others than root") as caught:
        bubblewrap.check(str(bubblewrap_copy))
    assert "chown root" in caught.value.remedy
    os.chown(bubblewrap_copy, 0, 0)
    bubblewrap_copy.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    bubblewrap_copy.chmod(0o755)
    with pytest.raises(StartRefused, match=r"0\.8\.0 or later is needed, bubblewrap 0\.4\.1 found"):
        bubblewrap.check(str(bubblewrap_copy))
