"""cases.md A: commands, processes, signals. The number of the case is in the docstring."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.installation import Installation, eventually, of_uid


def living(server: Installation, user: str, needle: str) -> bool:
    """Whether a process of the box has `needle` in its argument list (read by another command of the same user)."""
    script = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[{needle[0]}]{needle[1:]}'"
    return server.shell(user, script).text.strip() not in ("", "0")


def test_a_timeout_ends_the_whole_pipeline(server: Installation, alice: str) -> None:
    """A1."""
    done = server.run("exec", alice, "--timeout", "1", "--", "sh", "-c", "echo x | cat; sleep 547")
    assert (done.code, done.out) == (124, b"x\n")
    assert not living(server, alice, "sleep 547")


def test_a_timed_out_loop_stops_writing(server: Installation, person: str) -> None:
    """A2."""
    script = "while :; do echo x >> grows; sleep 0.2; done"
    assert server.run("exec", person, "--timeout", "1", "--", "sh", "-c", script).code == 124
    first = server.ok("files", "get", person, "grows", "-").out
    time.sleep(0.5)
    assert server.ok("files", "get", person, "grows", "-").out == first != b""


def test_a_server_started_by_a_timed_out_command_is_dead_or_listed(server: Installation, alice: str) -> None:
    """A4."""
    done = server.outcome(alice, "setsid sleep 548 & setsid -f sleep 549; sleep 99", "--timeout", "1")
    assert done["reason"] == "timeout"
    for needle in ("sleep 548", "sleep 549"):
        assert not living(server, alice, needle) or done["left"]


def test_a_client_that_is_killed_takes_its_command_along(server: Installation, alice: str) -> None:
    """A6."""
    client = server.popen("exec", alice, "--", "sleep", "551")
    eventually(lambda: living(server, alice, "sleep 551"), what="the command started")
    client.kill()
    client.communicate()
    eventually(lambda: not living(server, alice, "sleep 551"), what="the command ended")


def test_500_orphans_leave_no_zombie(server: Installation, person: str) -> None:
    """A7."""
    script = "i=0; while [ $i -lt 500 ]; do sh -c '(sleep .1 &)'; i=$((i+1)); done; sleep 0.5"
    assert server.shell(person, script).code == 0
    states = server.shell(person, "cat /proc/[0-9]*/stat | sed 's/.*) //' | cut -c1").text
    assert "Z" not in states


def test_a_helper_does_not_hold_up_its_command(server: Installation, person: str) -> None:
    """A10."""
    done = server.outcome(person, "sleep 600 & echo done")
    assert (done["exit_code"], done["stdout"]) == (0, "done\n")
    assert len(done["left"]) == 1


def test_a_command_without_stdin_reads_end_of_file(server: Installation, alice: str) -> None:
    """A11: the caller's own stdin never closes."""
    held, _ = reader, writer = os.pipe()
    try:
        with open("/dev/null") as null:
            process = server.popen("exec", alice, "--", "cat", stdin=null.fileno())
            assert process.communicate(timeout=120) == (b"", b"")
            assert process.returncode == 0
        # And with an open pipe behind it, a command that does not read still ends the client.
        process = server.popen("exec", alice, "--", "true", stdin=reader)
        process.communicate(timeout=120)
        assert process.returncode == 0
    finally:
        os.close(held)
        os.close(writer)


def test_fifty_mebibytes_of_stdin(server: Installation, alice: str) -> None:
    """A13."""
    data = os.urandom(1 << 20) * 50
    done = server.ok("exec", alice, "--", "sha256sum", stdin=data)
    assert done.text.split()[0] == hashlib.sha256(data).hexdigest()
    assert server.run("exec", alice, "--", "true", stdin=data).code == 0


def test_false_is_never_success(server: Installation, alice: str) -> None:
    """A14: in the box 500 times; and through the whole stack 40 times, four at once."""
    script = "i=0; while [ $i -lt 500 ]; do false && exit 9; i=$((i+1)); done; exit 7"
    assert server.shell(alice, script).code == 7
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: server.run("exec", alice, "--", "false").code, range(40)))
    assert codes == [1] * 40


def test_much_output_passes_whole_and_is_kept_bounded(server: Installation, alice: str) -> None:
    """A16."""
    script = "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo END"
    whole = server.ok("exec", alice, "--", "sh", "-c", script)
    assert (len(whole.out), whole.out[-5:]) == (20_000_005, b"\nEND\n")
    kept = server.outcome(alice, script)
    assert kept["stdout"].endswith("END\n")
    assert len(kept["stdout"]) <= 256 * 1024 + 200  # head 64 KiB, tail 192 KiB, and the line that says what is missing
    assert kept["stdout_dropped"] == 20_000_005 - 256 * 1024


def test_a_kill_works_while_the_pipes_are_full(server: Installation, alice: str) -> None:
    """A18: a reader that takes nothing."""
    client = server.popen("exec", alice, "--timeout", "2", "--", "yes")
    time.sleep(6)
    assert not living(server, alice, "yes")
    client.communicate(timeout=120)
    assert client.returncode == 124


def test_bytes_survive(server: Installation, alice: str) -> None:
    """A19."""
    split = server.outcome(alice, "printf '\\303'; sleep 0.3; printf '\\251'")
    assert split["stdout"] == "é"
    data = os.urandom(1 << 20)
    assert server.ok("exec", alice, "--", "cat", stdin=data).out == data
    odd = server.outcome(alice, "printf '\\377\\376'")
    assert odd["stdout_b64"] == "//4="


def test_odd_arguments(server: Installation, alice: str) -> None:
    """A21."""
    assert server.ok("exec", alice, "--", "printf", "%s", "a\nb").out == b"a\nb"
    assert server.ok("exec", alice, "--", "printf", "%s", b"\xff\xfe").out == b"\xff\xfe"
    assert server.ok("exec", alice, "--", "sh", "-s", stdin=b"# " + b"x" * (1 << 20) + b"\necho ok\n").out == b"ok\n"
    big = server.ok("exec", alice, "--", "printf", "%s", "x" * 120_000)
    assert len(big.out) == 120_000


def test_an_argument_that_the_kernel_refuses(server: Installation, alice: str) -> None:
    """A21: one argument above 128 KiB cannot even reach our own client by argv; through the SDK it can."""
    from ringfence.client import SyncClient

    with SyncClient(socket=server.socket) as client:
        done = client.exec("alice", ["printf", "%s", "x" * 200_000])
    assert done["reason"] == "spawn_failed"
    assert "too long" in done["message"].lower()


def test_a_command_that_does_not_exist(server: Installation, alice: str) -> None:
    done = server.run("exec", alice, "--", "no-such-program-here")
    assert done.code == 127
    assert "no-such-program-here" in done.errors


def test_a_trap_runs_before_the_kill(server: Installation, person: str) -> None:
    """A25."""
    client = server.popen(
        "exec", person, "--", "sh", "-c", "trap 'echo bye > x; exit 3' TERM; echo up; sleep 99 & wait"
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    client.terminate()
    client.communicate(timeout=120)
    assert client.returncode == 3
    assert server.ok("files", "get", person, "x", "-").out == b"bye\n"


@pytest.mark.root
def test_killing_pid_1_leaves_nothing_and_is_noticed(server: Installation, person: str) -> None:
    """A27, E83."""
    client = server.popen("exec", person, "--", "sleep", "552")
    eventually(lambda: living(server, person, "sleep 552"))
    uid = server.box(person)["uid"]
    init = next(pid for pid, status in of_uid(uid).items() if re.search(r"^NSpid:.*\t1$", status, re.M))
    os.kill(init, 9)
    client.communicate(timeout=120)
    assert client.returncode == 125
    eventually(lambda: not of_uid(uid), 30, "every process of the box ended")
    assert server.ok("exec", person, "--", "echo", "back").out == b"back\n"


def test_the_first_command_has_the_boxs_own_values(server: Installation, person: str) -> None:
    """A28, A30: also when whoever started the server ignored signals."""
    done = server.ok(
        "exec", person, "--", "sh", "-c", "cat /proc/self/oom_score_adj; id -u; id -G; nice; umask; ulimit -c"
    )
    ignored = server.ok("exec", person, "--", "grep", "-E", "SigIgn|SigBlk", "/proc/self/status").text
    assert ignored.split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]
    assert done.text.split() == ["200", "1000", "1000", "0", "0022", "0"]


@pytest.mark.root
def test_out_of_memory_is_named_and_survived(server: Installation, person: str) -> None:
    """A29: 3 GiB under a 1 GiB cap."""
    script = "exec python3 -c 'b = bytearray(3 << 30); print(len(b))'"
    done = server.outcome(person, script)
    assert done["reason"] == "oom", done
    assert done["memory_limit_bytes"] <= 1 << 30
    assert done["memory_peak_bytes"] > 1 << 28
    plain = server.shell(person, script)
    assert plain.code == 137
    assert "memory" in plain.errors
    assert server.ok("exec", person, "--", "echo", "alive").out == b"alive\n"
    assert server.box(person)["generation"] == 1


def test_signals_reach_the_command(server: Installation, alice: str) -> None:
    """L4: TERM to the client is TERM to the command, delivered by the box's PID 1."""
    client = server.popen("exec", alice, "--", "sh", "-c", "echo up; exec sleep 77")
    assert client.stdout is not None
    client.stdout.readline()
    client.terminate()
    client.communicate(timeout=120)
    assert client.returncode == 128 + 15


def test_exit_codes_pass_through(server: Installation, alice: str) -> None:
    assert server.shell(alice, "exit 42").code == 42
    assert server.shell(alice, "kill -9 $$").code == 137
    unknown = server.run("exec", "nobody-here", "--", "true")
    assert unknown.code == 4
    assert len(unknown.errors.strip().splitlines()) == 2


def test_the_environment_is_exactly_what_is_documented(server: Installation, alice: str) -> None:
    done = server.run("exec", alice, "--env", "EXTRA=1", "--", "env", "-0")
    names = {entry.split("=", 1)[0] for entry in done.text.strip("\0").split("\0")}
    assert "EXTRA" in names
    assert "RINGFENCE_HOME" not in names
    leaked = [name for name in os.environ if name not in names]
    assert leaked  # the control: this process does have variables of its own to leak
    assert subprocess.run(["env"], capture_output=True, check=True).stdout
