"""Commands in the real guest, as PID 1 of a real box: cases A of docs (numbers in the names), over its own socket."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.guest.command import DRAIN_SECONDS
from ringfence.guest.kept import HEAD, TAIL
from tests.support.guest_rig import PATH, Box, Host, Output, built_tree, running_box, spec


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with built_tree() as made:
        yield made


@pytest.fixture(scope="module")
def box(tree: Path) -> Iterator[Box]:
    with running_box(tree) as made:
        yield made


@pytest.fixture
def host(box: Box) -> Iterator[Host]:
    with box.dial() as made:
        yield made
        made.close()
    assert box.process.poll() is None, box.said()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return f"x/{request.node.name[:60]}"


def grows(path: Path) -> bool:
    size = path.stat().st_size
    time.sleep(0.5)
    return path.stat().st_size != size


def test_a_command_ends_with_its_output_and_status(host: Host, key: str) -> None:
    ended = host.sh(key, "echo out; echo err >&2; sleep 0.2; exit 3")
    assert (ended.code, ended.signal, ended.reason) == (3, None, "exit")
    assert (ended.stdout, ended.stderr) == (b"out\n", b"err\n")
    assert ended.duration_ms >= 200


def test_a1_a_timeout_ends_the_whole_tree_within_its_grace(host: Host, box: Box, key: str) -> None:
    ended = host.sh(key, "echo x | cat; sleep 600", timeout=1, grace=1)
    assert (ended.reason, ended.code, ended.signal) == ("timeout", None, 15)
    assert ended.stdout == b"x\n"
    assert ended.left == []
    assert not any("sleep" in line for line in box.command_lines().values())


def test_a1_a_tree_that_ignores_term_is_killed_after_the_grace(host: Host, key: str) -> None:
    ended = host.sh(key, "trap '' TERM; (trap '' TERM; sleep 600) & sleep 600; sleep 600", timeout=0.3, grace=0.3)
    assert (ended.reason, ended.signal) == ("timeout", 9)
    assert ended.left == []


def test_a2_a_loop_stops_writing_after_its_timeout(host: Host, box: Box, key: str) -> None:
    host.sh(key, "while :; do echo x >> ticks; sleep 0.2; done", timeout=1, grace=0.5)
    assert not grows(box.home / "ticks")


def test_a4_a_daemon_of_a_timed_out_command_is_dead_too(host: Host, box: Box, key: str) -> None:
    script = "setsid sh -c 'trap \"\" TERM; while :; do echo x >> daemon; sleep 0.1; done' & sleep 30"
    ended = host.sh(key, script, timeout=0.6, grace=0.4)
    assert ended.reason == "timeout"
    assert (box.home / "daemon").stat().st_size > 0
    assert not grows(box.home / "daemon")
    assert ended.left == []


def test_a4_a_daemon_that_left_session_and_parent_is_dead_too(host: Host, box: Box, key: str) -> None:
    daemon = (
        "import os,time,signal\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
        "signal.signal(15, signal.SIG_IGN)\nwhile 1: open('twice','a').write('x'); time.sleep(.05)"
    )
    ended = host.sh(key, f'python3 -c "{daemon}"; sleep 30', timeout=0.8, grace=0.4)
    assert (box.home / "twice").stat().st_size > 0
    assert ended.left == []
    assert not grows(box.home / "twice")


def test_a6_stop_ends_the_process_in_the_box(host: Host, box: Box, key: str) -> None:
    host.spawn(key, "sleep", "77")
    assert host.request("cmd.stop", key=key, grace_ms=500) == {}
    ended = host.ended(key)
    assert (ended.reason, ended.signal) == ("killed", 15)
    assert not any("sleep\x0077" in line for line in box.command_lines().values())


def test_stop_is_said_twice_and_without_grace_kills(host: Host, key: str) -> None:
    host.spawn(key, "/bin/sh", "-c", "trap '' TERM; echo deaf; sleep 50; sleep 50")
    host.until(lambda: key in host.outputs)  # the answer to a spawn comes before the program runs
    host.request("cmd.stop", key=key, grace_ms=30_000)
    host.request("cmd.stop", key=key, grace_ms=0)
    assert host.ended(key, 3).signal == 9


def test_a7_no_zombie_is_left_by_a_hundred_backgrounders(host: Host, box: Box, key: str) -> None:
    for number in range(100):
        assert host.sh(f"{key}{number}", "(sleep .1 &)").code == 0
    time.sleep(0.5)
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in box.processes()]
    assert "Z" not in states
    assert len(states) <= 3  # PID 1, the command spawner, and one that may just be ending


def test_a10_a_background_process_neither_delays_the_end_nor_is_hidden(host: Host, key: str) -> None:
    ended = host.sh(key, "sleep 600 & echo done; echo $!")
    assert (ended.code, ended.stdout.split()[0]) == (0, b"done")
    assert ended.left == [int(ended.stdout.split()[1])]
    assert host.sh(f"{key}2", f"kill {ended.left[0]}").code == 0


def test_a10_a_daemon_in_its_own_session_is_named_too(host: Host, key: str) -> None:
    ended = host.sh(key, "setsid sleep 61 >/dev/null 2>&1 & sleep 0.2")
    assert len(ended.left) == 1
    assert host.sh(f"{key}2", f"kill {ended.left[0]}").code == 0
    assert host.sh(f"{key}3", "true").left == []


def test_a10_what_a_background_process_writes_later_does_not_kill_it(host: Host, box: Box, key: str) -> None:
    ended = host.sh(key, "(sleep 0.6; for i in 1 2 3; do echo late; done; echo alive > proof) & echo now")
    assert ended.stdout == b"now\n"
    deadline = time.monotonic() + 30
    while not (box.home / "proof").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (box.home / "proof").read_text() == "alive\n"
    assert bytes(host.outputs[key].out) == b"now\n"


def test_a10_a_chatty_background_process_does_not_keep_pid_1_busy(host: Host, box: Box, key: str) -> None:
    ended = host.sh(key, "yes & sleep 0.1")
    assert ended.code == 0
    ticks = [int(Path(f"/proc/{box.guest_pid()}/stat").read_text().rpartition(")")[2].split()[n]) for n in (11, 12)]
    time.sleep(1)
    later = [int(Path(f"/proc/{box.guest_pid()}/stat").read_text().rpartition(")")[2].split()[n]) for n in (11, 12)]
    assert sum(later) - sum(ticks) < 0.3 * os.sysconf("SC_CLK_TCK")
    host.sh(f"{key}2", "kill " + " ".join(map(str, ended.left)))


def test_a11_a_command_without_stdin_reads_the_end_at_once(host: Host, key: str) -> None:
    assert host.run(key, "cat").code == 0


def test_a13_fifty_megabytes_of_stdin_arrive_whole(host: Host, key: str) -> None:
    data = os.urandom(1 << 20) * 50
    host.spawn(key, "sha256sum", stdin="pipe")
    host.feed(key, data)
    assert host.ended(key).stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_a13_stdin_into_a_command_that_does_not_read_is_not_fatal(host: Host, key: str) -> None:
    host.spawn(key, "true", stdin="pipe")
    host.feed(key, b"x" * (50 << 20))
    assert host.ended(key).code == 0
    assert host.sh(f"{key}2", "echo on").stdout == b"on\n"


def test_a13_stdin_that_the_command_closed_is_swallowed_and_the_writer_ends(host: Host, key: str) -> None:
    host.spawn(key, "/bin/sh", "-c", "exec <&-; while [ ! -e go ]; do sleep 0.05; done", stdin="pipe")
    host.feed(key, b"x" * (2 << 20))  # ends while the command goes on, which waits for what comes after it
    assert host.sh(f"{key}2", "touch go").code == 0
    assert host.ended(key).code == 0


def test_a14_five_hundred_failures_are_five_hundred_failures(host: Host, key: str) -> None:
    for number in range(500):
        host.begin("cmd.spawn", **spec(f"{key}{number}", "false"))
        if number % 40 == 39:
            host.until(lambda number=number: f"{key}{number}" in host.ends)
    host.until(lambda: sum(k.startswith(key) for k in host.ends) == 500)
    ends = [host.ends[f"{key}{number}"] for number in range(500)]
    assert all(len(reports) == 1 and reports[0].code == 1 for reports in ends)


def test_a16_twenty_megabytes_pass_whole_and_in_order(host: Host, key: str) -> None:
    ended = host.sh(key, "yes 0123456789abcde | head -c 20000000; echo END", seconds=60)
    assert ended.code == 0
    assert len(ended.stdout) == 20_000_004
    assert ended.stdout.endswith(b"END\n")
    assert hashlib.sha256(ended.stdout[:-4]).digest() == hashlib.sha256(b"0123456789abcde\n" * 1250000).digest()


def test_a16_what_is_kept_is_head_and_tail_with_the_dropped_counted(host: Host, key: str) -> None:
    ended = host.sh(key, "yes 0123456789abcde | head -c 20000000; echo END; echo err >&2", output="keep", seconds=60)
    kept = ended.raw["stdout"]
    assert kept["total"] == 20_000_004
    assert kept["dropped"] == 20_000_004 - HEAD - TAIL
    assert len(ended.stdout) == HEAD + TAIL
    assert ended.stdout.endswith(b"END\n")
    assert ended.stderr == b"err\n"
    assert key not in host.outputs


def test_a16_kept_output_that_is_short_is_whole(host: Host, key: str) -> None:
    ended = host.sh(key, "printf abc", output="keep")
    assert (ended.stdout, ended.raw["stdout"]["total"], ended.raw["stdout"]["dropped"]) == (b"abc", 3, 0)


def test_a18_a_timeout_works_while_the_pipes_are_full(box: Box, key: str) -> None:
    with box.dial(grant=False) as host:
        host.begin("cmd.spawn", **spec(key, "yes", timeout=2, grace=0.5))
        host.until(lambda: len(host.outputs.get(key, Output()).out) >= 256 * 1024)
        time.sleep(2.2)
        assert not any("yes" in Path(f"/proc/{pid}/comm").read_text() for pid in box.processes())
        host.pump(0.2)
        assert len(host.outputs[key].out) == 256 * 1024  # not a byte without credit
        host.grant = True
        host.notify("cmd.grant", key=key, bytes=256 * 1024)
        ended = host.ended(key)
        assert (ended.reason, ended.signal) == ("timeout", 15)
        assert set(ended.stdout.split()) == {b"y"}


def test_a18_a_slow_reader_still_gets_every_byte(box: Box, key: str) -> None:
    with box.dial(grant=False) as host:
        host.begin("cmd.spawn", **spec(key, "/bin/sh", "-c", "head -c 1000000 /dev/zero"))
        while key not in host.ends:
            host.pump(0.05)
            host.notify("cmd.grant", key=key, bytes=50_000)
        assert len(host.ends[key][0].stdout) == 1_000_000


def test_a19_bytes_pass_as_they_are(host: Host, box: Box, key: str) -> None:
    data = os.urandom(1 << 20)
    (box.home / "random").write_bytes(data)
    (box.home / "random").chmod(0o644)
    assert host.run(key, "cat", "random").stdout == data
    assert host.sh(f"{key}2", "printf '\\303'; sleep 0.1; printf '\\251'").stdout == "é".encode()


def test_a21_arguments_are_bytes(host: Host, key: str) -> None:
    argument = b"two\nlines \xff\xfe 'quotes\" $HOME"
    assert host.run(key, "printf", "%s", argument).stdout == argument
    big = b"x" * 131_000
    assert host.run(f"{key}2", "printf", "%s", big).stdout == big


def test_a21_an_argument_above_128_kib_is_refused_with_the_limit(host: Host, key: str) -> None:
    ended = host.run(key, "true", b"x" * 200_000)
    assert (ended.code, ended.signal, ended.reason) == (None, None, "spawn_failed")
    assert "128 KiB" in ended.message


@pytest.mark.parametrize(
    ("argv", "cwd", "says"),
    [
        (["nonesuch"], "/", "nonesuch: cannot be executed: No such file"),
        (["/etc"], "/", "Permission denied"),
        (["true"], "/nowhere", "working folder /nowhere: No such file"),
    ],
)
def test_what_cannot_start_says_why(host: Host, key: str, argv: list[str], cwd: str, says: str) -> None:
    ended = host.run(key, *argv, cwd=cwd)
    assert (ended.code, ended.signal, ended.reason) == (None, None, "spawn_failed")
    assert says in ended.message


def test_a25_term_reaches_the_group_and_the_trap_runs(host: Host, box: Box, key: str) -> None:
    host.spawn(key, "/bin/sh", "-c", "trap 'echo bye > trapped; exit 3' TERM; echo ready; sleep 99")
    host.until(lambda: key in host.outputs)
    time.sleep(0.3)  # a shell that is about to fork its sleep would run the trap only after it
    host.request("cmd.stop", key=key, grace_ms=3000)
    ended = host.ended(key, 2.5)
    assert (ended.code, ended.reason) == (3, "killed")
    assert (box.home / "trapped").read_text() == "bye\n"


def test_a25_a_child_that_cleans_up_gets_the_grace_when_its_parent_is_gone(host: Host, box: Box, key: str) -> None:
    script = (
        "sh -c \"trap 'sleep 0.5; echo clean > cleaned; exit' TERM; echo ready; while :; do sleep 0.05; done\" & wait"
    )
    host.spawn(key, "/bin/sh", "-c", script)
    host.until(lambda: key in host.outputs)
    host.request("cmd.stop", key=key, grace_ms=3000)
    assert host.ended(key, 5).left == []
    assert (box.home / "cleaned").read_text() == "clean\n"


def test_a28_the_first_command_has_the_boxs_values(tree: Path) -> None:
    with running_box(tree) as fresh, fresh.dial() as host:
        script = "cat /proc/self/oom_score_adj; id -u; id -G; nice; umask; ulimit -Sn"
        words = host.sh("x/first", script).stdout.split()
        assert words[:5] == [b"200", b"1000", b"1000", b"0", b"0022"]
        assert int(words[5]) > 0


def test_a30_a_command_has_default_signals_and_three_descriptors(host: Host, key: str) -> None:
    look = "import os,signal; print(sorted(os.listdir('/proc/self/fd')), open('/proc/self/status').read())"
    ended = host.run(key, "python3", "-I", "-S", "-c", look, env={"PATH": PATH})
    text = ended.stdout.decode()
    assert "['0', '1', '2', '3']" in text  # 3 is the listing's own
    masks = {
        line.split(":")[0]: int(line.split()[1], 16) for line in text.splitlines() if line[:6] in ("SigBlk", "SigIgn")
    }
    python_ignores = (1 << 12) | (1 << 24)  # SIGPIPE and SIGXFSZ, by the interpreter itself
    assert masks["SigBlk"] == 0
    library = 3 << 31  # 32 and 33, which the guest cannot reset; the spawner does, the rig has none
    assert masks["SigIgn"] & ~python_ignores & ~library == 0
    assert host.sh(f"{key}2", "yes | head -1; echo ${PIPESTATUS:-none}").stdout == b"y\nnone\n"
    ignored = int(host.sh(f"{key}3", "grep SigIgn /proc/self/status").stdout.split()[1], 16)
    assert ignored & ~library == 0


def test_the_environment_is_exactly_what_was_given(host: Host, key: str) -> None:
    assert host.run(key, "/usr/bin/env", env={"A": "1\n2", "PATH": PATH}).stdout == f"A=1\n2\nPATH={PATH}\n".encode()
    assert host.run(f"{key}2", "/usr/bin/env", env={}).stdout == b""


def test_a_signal_reaches_the_group(host: Host, key: str) -> None:
    host.spawn(key, "/bin/sh", "-c", "sleep 99 & echo ready; wait")
    host.until(lambda: key in host.outputs)
    host.request("cmd.signal", key=key, signal=2)
    assert host.ended(key, 3).signal == 2
    assert host.ended(key).reason == "exit"


def test_a_leader_is_the_reaper_of_its_tree(host: Host, key: str) -> None:
    """So that a daemon hangs below its command while that lives, and a whole tree can be known. It survives exec."""
    look = "import ctypes; x = ctypes.c_int(); ctypes.CDLL(None).prctl(37, ctypes.byref(x)); print(x.value)"
    assert host.run(key, "python3", "-c", look).stdout == b"1\n"


def test_many_commands_at_once_do_not_mix_their_output(host: Host, key: str) -> None:
    for number in range(40):
        host.begin(
            "cmd.spawn",
            **spec(f"{key}{number}", "/bin/sh", "-c", f"for i in 1 2 3; do echo {number}; done; exit {number}"),
        )
    for number in range(40):
        ended = host.ended(f"{key}{number}")
        assert ended.code == number
        assert ended.stdout == f"{number}\n".encode() * 3


def test_a10_an_output_that_is_closed_soon_after_the_end_does_not_wait_for_the_drain(host: Host, key: str) -> None:
    """Also when the command was over before PID 1 had heard that it runs."""
    took = []
    for number in range(5):
        began = time.monotonic()
        assert host.sh(f"{key}{number}", "(sleep 0.02; echo late) & exit 0").stdout == b"late\n"
        took.append(time.monotonic() - began)
    assert min(took) < DRAIN_SECONDS, "each waited for the drain"
