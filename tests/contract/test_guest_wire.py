"""The real guest and its wire: keys, reports, re-dials, garbage, and a command spawner that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.guest_rig import Box, Host, LostWire, built_tree, running_box, spec


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with built_tree() as made:
        yield made


@pytest.fixture
def box(tree: Path) -> Iterator[Box]:
    with running_box(tree) as made:
        yield made
        assert made.process.poll() is None, made.said()


def descendants(box: Box, word: str) -> list[int]:
    return [pid for pid, line in box.command_lines().items() if word in line]


def test_the_hello_says_who_this_is(box: Box) -> None:
    with box.dial() as first:
        one = first.greeting
    with box.dial() as second:
        two = second.greeting
    assert one == two
    assert one["generation"] == 1
    assert one["digest"] == "digest"
    assert one["landlock"] >= 1
    assert len(one["guest"]) == 20
    assert one["runs"] == one["commands"] == one["orphans"] == []


def test_orphans_are_named_in_the_hello(box: Box) -> None:
    with box.dial() as host:
        ended = host.sh("x/1", "setsid sleep 300 >/dev/null 2>&1 & sleep 0.1")
    with box.dial() as host:
        assert host.greeting["orphans"] == ended.left
        host.sh("x/2", f"kill {ended.left[0]}")


def test_m06_m07_a_command_outlives_the_wire_and_its_end_comes_after_the_next_hello(box: Box) -> None:
    host = box.dial()
    host.begin(
        "cmd.spawn",
        **spec("s/r/1", "/bin/sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done", output="keep"),
    )
    host.until(lambda: host.replies)
    host.close()
    time.sleep(1.0)
    with box.dial() as later:
        assert later.greeting["commands"] == [{"key": "s/r/1", "state": "ended"}]
        ended = later.ended("s/r/1")
        assert (ended.code, ended.stdout) == (0, b"1\n2\n3\n4\n5\n6\n")
    with box.dial() as last:
        assert last.greeting["commands"] == []


def test_m06_pid_1_outlives_a_closed_stderr(box: Box) -> None:
    os.close(box.stderr_read)
    for _ in range(3):
        with box.dial() as host:
            host.sock.sendall(b"garbage\n")
            with pytest.raises(LostWire):
                host.until(lambda: False, 3)
    with box.dial() as host:
        assert host.sh("x/1", "echo on").stdout == b"on\n"
    box.stderr_read = os.open("/dev/null", os.O_RDONLY)


def test_a_report_is_sent_again_until_it_is_acknowledged(box: Box) -> None:
    with box.dial(ack=False) as host:
        first = host.sh("x/1", "echo once; exit 4", output="keep")
    for _ in range(3):
        with box.dial(ack=False) as host:
            again = host.ended("x/1")
            assert (again.raw, again.seq) == (first.raw, first.seq)
    with box.dial() as host:
        host.ended("x/1")
    with box.dial() as host:
        host.pump(0.2)
        assert host.ends == {}


def test_the_same_key_attaches_and_never_starts_twice(box: Box) -> None:
    script = "echo $$ >> starts; sleep 0.7; echo end"
    with box.dial(ack=False) as host:
        one = host.spawn("s/r/1", "/bin/sh", "-c", script)
        two = host.spawn("s/r/1", "/bin/sh", "-c", script)
        assert (one["attached"], two["attached"], one["pid"]) == (False, True, two["pid"])
    with box.dial(ack=False) as host:
        assert host.greeting["commands"] == [{"key": "s/r/1", "state": "running"}]
        assert host.spawn("s/r/1", "/bin/sh", "-c", script) == two
        assert host.ended("s/r/1").stdout == b"end\n"
        assert host.spawn("s/r/1", "/bin/sh", "-c", script)["attached"]
        host.until(lambda: len(host.ends["s/r/1"]) == 2)
        assert (box.home / "starts").read_text().count("\n") == 1


def test_a_key_is_free_again_once_its_outcome_was_acknowledged(box: Box) -> None:
    with box.dial() as host:
        host.sh("x/1", "exit 1")
        host.request("cmd.signal", key=_running(host), signal=1)  # the acknowledgement has been read before this
        assert not host.spawn("x/1", "true")["attached"]


def _running(host: Host) -> str:
    host.spawn("x/other", "sleep", "5")
    return "x/other"


def test_the_newest_connection_wins(box: Box) -> None:
    old = box.dial()
    with box.dial() as new:
        with pytest.raises(LostWire):
            old.until(lambda: False, 3)
        assert new.sh("x/1", "echo new").stdout == b"new\n"
    old.close()


def test_a_stream_without_a_wire_waits_and_goes_on_when_somebody_attaches(box: Box) -> None:
    with box.dial() as host:
        host.spawn("x/1", "/bin/sh", "-c", "sleep 0.3; head -c 3000000 /dev/zero; echo end")
    time.sleep(0.6)
    with box.dial() as host:
        assert host.greeting["commands"] == [{"key": "x/1", "state": "running"}]
        assert host.spawn("x/1", "true")["attached"]
        ended = host.ended("x/1")
        assert (len(ended.stdout), ended.code) == (3_000_004, 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\n",
        b"\n",
        b"\x00\xff\xfe\n",
        b"[]\n",
        b'{"m":"ack"}\n',
        b'{"m":"ack","p":{}}\n',  # before the hello
        b'{"id":1,"m":"hello","p":' + b"[" * 100_000 + b"\n",
        b"x" * (1 << 20) + b"xx",
        b'{"id":1,"m":"hello"',  # half a frame, then the end
        b"",
    ],
)
def test_a_host_that_sends_garbage_loses_its_connection_and_nothing_else(box: Box, garbage: bytes) -> None:
    with box.dial() as host:
        host.spawn("x/keeps", "/bin/sh", "-c", "sleep 1; echo kept", output="keep")
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(str(box.socket))
    raw.settimeout(5)
    raw.sendall(garbage)
    raw.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionResetError):
        assert raw.recv(100) == b""
    raw.close()
    with box.dial() as host:
        assert host.ended("x/keeps").stdout == b"kept\n"


def test_after_the_hello_garbage_ends_the_connection_too(box: Box) -> None:
    for garbage in (b'{"id":1,"m":"cmd.spawn","p":{}}\n', b'{"re":1,"ok":{}}\n', b'{"id":2,"m":"x","p":{},"q":1}\n'):
        with box.dial() as host:  # the hello had the id 1
            host.sock.sendall(garbage)
            with pytest.raises(LostWire):
                host.until(lambda: False, 3)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("cmd.fly", {}, "unknown_method"),
        ("cmd.spawn", {}, "invalid"),
        ("cmd.spawn", {**spec("k", "true"), "argv_b64": []}, "invalid"),
        ("cmd.spawn", {**spec("k", "true"), "argv_b64": ["*"]}, "invalid"),
        ("cmd.spawn", {**spec("k", "true"), "argv_b64": 7}, "invalid"),
        ("cmd.spawn", {**spec("k", b"a\0b")}, "invalid"),
        ("cmd.spawn", {**spec("k", "true"), "timeout_ms": "x"}, "invalid"),
        ("cmd.spawn", {**spec("k", "true"), "env_b64": {"A=B": ""}}, "invalid"),
        ("cmd.signal", {"key": "nobody", "signal": 9}, "not_found"),
        ("cmd.signal", {"key": "nobody", "signal": 99}, "invalid"),
        ("cmd.stop", {"key": "nobody", "grace_ms": 1}, "not_found"),
        ("cmd.stop", {}, "invalid"),
        ("run.cancel", {"run": "nobody", "grace_ms": 1}, "not_found"),
        ("run.start", {}, "invalid"),
        ("run.steer", {}, "invalid"),
        ("run.steer", {"run": [], "message": {}}, "invalid"),
        ("run.wind_down", {"run": "nobody"}, "invalid"),
        ("box.resumed", {}, "invalid"),
    ],
)
def test_a_request_that_makes_no_sense_is_answered_with_an_error(
    box: Box, method: str, params: dict[str, object], code: str
) -> None:
    with box.dial() as host:
        reply = host.reply(host.begin(method, **params))
        assert (reply.ok, reply.code) == (None, code)
        for note in ("cmd.stdin", "cmd.grant", "ack", "bye.bye"):
            host.notify(note, nonsense=1)
        assert host.sh("x/1", "echo on").stdout == b"on\n"


def test_a_killed_command_spawner_is_replaced(box: Box) -> None:
    with box.dial() as host:
        host.spawn("x/running", "/bin/sh", "-c", "sleep 0.5; echo survived")
        for round_ in range(5):
            spawner = _command_spawner(host, box, round_)
            os.kill(spawner, signal.SIGKILL)
            assert host.sh(f"x/{round_}", "cat /proc/self/oom_score_adj").stdout == b"200\n"
        assert host.ended("x/running").stdout == b"survived\n"


def test_a_stopped_command_spawner_is_replaced(box: Box) -> None:
    with box.dial() as host:
        host.sh("x/0", "true")
        for pid in _helpers(box):
            os.kill(pid, signal.SIGSTOP)
        assert host.sh("x/1", "echo on").stdout == b"on\n"


def test_commands_that_were_on_their_way_when_it_was_killed_run_once_each(box: Box) -> None:
    with box.dial() as host:
        for number in range(60):
            host.begin("cmd.spawn", **spec(f"x/{number}", "/bin/sh", "-c", f"echo {number} >> ran"))
            if number % 20 == 10:
                for pid in _helpers(box):
                    with suppress(ProcessLookupError):  # it has ended by itself since
                        os.kill(pid, signal.SIGKILL)
        ends = [host.ended(f"x/{number}") for number in range(60)]
        ran = sorted(int(line) for line in (box.home / "ran").read_text().split())
        assert len(ran) == len(set(ran)), "a command ran twice"
        for number, ended in enumerate(ends):
            assert ended.reason in ("exit", "spawn_failed")
            if ended.reason == "exit" and ended.code == 0:
                assert number in ran
            if ended.reason == "spawn_failed":
                assert number not in ran


def _helpers(box: Box) -> list[int]:
    """The command spawner, as the machine counts."""
    guest = box.guest_pid()
    return [pid for pid, line in box.command_lines().items() if pid != guest and "init.pyc" in line]


def _command_spawner(host: Host, box: Box, round_: int) -> int:
    """The one of them that has no session of its own."""
    host.sh(f"x/before{round_}", "true")
    sessions = {pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]) for pid in _helpers(box)}
    return next(pid for pid, session in sessions.items() if session != pid)


def test_back_pressure_holds_the_box_not_its_memory(box: Box) -> None:
    """A host that does not read: PID 1 stops reading its commands and stays small; nothing is lost."""
    with box.dial(grant=False) as host:
        for number in range(20):
            host.begin("cmd.spawn", **spec(f"x/{number}", "head", "-c", "3000000", "/dev/zero"))
            host.notify("cmd.grant", key=f"x/{number}", bytes=10_000_000)
        time.sleep(1.5)
        status = Path(f"/proc/{box.guest_pid()}/status").read_text()
        rss = int(status.split("VmRSS:")[1].split()[0])
        assert rss < 40_000, f"{rss} KiB"
        for number in range(20):
            assert len(host.ended(f"x/{number}").stdout) == 3_000_000


def test_unacknowledged_reports_hold_the_commands_back(box: Box) -> None:
    with box.dial(ack=False) as host:
        for number in range(6):  # 683 KiB each: the sixth passes 4 MiB
            host.sh(f"x/{number}", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2", output="keep")
        host.spawn("x/held", "/bin/sh", "-c", "head -c 1000000 /dev/zero; echo through > through", output="keep")
        host.pump(1.0)
        assert not (box.home / "through").exists()
        host.notify("ack", seqs=[reports[0].seq for reports in host.ends.values()])
        assert host.ended("x/held").raw["stdout"]["total"] == 1_000_000


@pytest.mark.root
def test_a27_when_pid_1_dies_all_of_the_box_dies(tree: Path) -> None:
    with running_box(tree) as box, box.dial() as host:
        host.spawn("x/1", "/bin/sh", "-c", "setsid sleep 301 & sleep 302")
        time.sleep(0.1)
        pids = box.processes()
        os.kill(box.guest_pid(), signal.SIGKILL)
        with pytest.raises(LostWire):
            host.until(lambda: False, 1)
        box.process.wait(2)
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


@pytest.mark.root  # descriptors of a process that is not dumpable are root's to read
def test_each_command_spawner_joins_its_cgroups_and_nobody_else_holds_them(tree: Path, tmp_path: Path) -> None:
    """Plain files stand for the two cgroup.procs: one `0` is appended by each command spawner, before anything runs."""
    names = [tmp_path / "memory", tmp_path / "pids"]
    cmds = tuple(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in names)
    with running_box(tree, cmds=cmds) as box, box.dial() as host:
        for fd in cmds:
            os.close(fd)
        for expected in ("0", "00", "000"):
            host.sh(f"x/{expected}", "true")
            assert [name.read_text() for name in names] == [expected, expected]
            os.kill(_command_spawner(host, box, len(expected)), signal.SIGKILL)
            time.sleep(0.2)  # until PID 1 has heard
        held = host.sh("x/fds", "ls -l /proc/self/fd").stdout.decode()
        assert "memory" not in held
        assert "pids" not in held
        for pid in _helpers(box):
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            assert not [link for link in links if link.endswith(("/memory", "/pids"))]


def test_a_command_spawner_that_cannot_join_its_cgroups_runs_nothing(tree: Path) -> None:
    read_only = os.open("/dev/null", os.O_RDONLY)
    with running_box(tree, cmds=(read_only,)) as box, box.dial() as host:
        os.close(read_only)
        ended = host.sh("x/1", "echo ran")
        assert (ended.reason, ended.stdout) == ("spawn_failed", b"")
