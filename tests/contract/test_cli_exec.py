"""`ringfence exec` as a process of its own against the real web servers. Numbers: cases.md."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.cli.exec_words import ExecWords, parse
from tests.support.cli_rig import alive, eventually
from tests.support.web_rig import RINGFENCE, Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["no-such-program"], 127),
        (["@lost"], 125),
        (["@oom"], 137),
    ],
)
def test_exit_codes(served: Web, command: list[str], code: int) -> None:
    done = served.cli("exec", "alice", "--", *command)
    assert done.returncode == code, done.stderr
    assert bool(done.stderr) == (command[0] in ("no-such-program", "@lost", "@oom"))


def test_a_timeout_is_124(served: Web) -> None:
    assert served.cli("exec", "alice", "--timeout", "0.2", "--", "sleep", "9").returncode == 124


def test_an_unknown_user_is_4_and_two_lines(served: Web) -> None:
    done = served.cli("exec", "nobody", "--", "true")
    assert done.returncode == 4
    assert len(done.stderr.strip().splitlines()) == 2
    error = json.loads(served.cli("exec", "nobody", "--json", "--", "true").stdout)["error"]
    assert set(error) == {"code", "message", "remedy", "details"}


def test_streams_pass_through_apart(served: Web) -> None:
    done = served.cli("exec", "alice", "--", "sh", "-c", "printf out; printf err >&2")
    assert (done.stdout, done.stderr) == (b"out", b"err")


def test_json_is_the_outcome(served: Web) -> None:
    done = served.cli("exec", "alice", "--json", "--", "sh", "-c", "echo out; exit 3")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], answer["reason"], answer["stdout"]) == (0, 3, "exit", "out\n")
    odd = json.loads(served.cli("exec", "alice", "--json", "--", "printf", r"\377").stdout)
    assert odd["stdout_b64"] == "/w=="


def test_fifty_mebibytes_of_stdin(served: Web) -> None:
    """A13."""
    data = os.urandom(1 << 20) * 50
    done = served.cli("exec", "alice", "--", "sha256sum", stdin=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert served.cli("exec", "alice", "--", "true", stdin=data).returncode == 0


def test_stdin_from_a_file_and_from_nothing(served: Web, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"from a file")
    with (tmp_path / "in").open() as source:
        process = served.popen("exec", "alice", "--", "cat", stdin=source)
        assert process.communicate(timeout=120)[0] == b"from a file"
    process = served.popen("exec", "alice", "--", "cat")
    assert process.communicate(timeout=120)[0] == b""


def test_a_stdin_that_never_closes_holds_nobody_up(served: Web) -> None:
    """A11."""
    reader, writer = os.pipe()
    try:
        process = served.popen("exec", "alice", "--", "true", stdin=reader)
        process.communicate(timeout=120)
        assert process.returncode == 0
        assert os.get_blocking(reader)  # others may share it: it was not made non-blocking
    finally:
        os.close(reader)
        os.close(writer)


def test_a_terminal_is_not_passed_on(served: Web) -> None:
    ours, theirs = pty.openpty()
    try:
        process = served.popen("exec", "alice", "--", "cat", stdin=theirs)
        assert process.communicate(timeout=120)[0] == b""
    finally:
        os.close(ours)
        os.close(theirs)


def test_closed_standard_files(served: Web) -> None:
    """A socket must not become fd 0, 1 or 2."""
    done = subprocess.run(
        ["sh", "-c", f"{RINGFENCE} exec alice -- sh -c 'echo lost; exit 5' <&- >&- 2>&-"],
        env=served.environment,
        check=False,
    )
    assert done.returncode == 5


def test_twenty_megabytes_of_output(served: Web) -> None:
    """A16."""
    script = "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo END"
    done = served.cli("exec", "alice", "--", "sh", "-c", script)
    assert (len(done.stdout), done.stdout[-5:]) == (20_000_005, b"\nEND\n")
    kept = json.loads(served.cli("exec", "alice", "--json", "--", "sh", "-c", script).stdout)
    assert kept["stdout_dropped"] == 20_000_005 - 256 * 1024


def test_random_bytes_are_equal(served: Web) -> None:
    """A19."""
    data = os.urandom(1 << 20)
    assert served.cli("exec", "alice", "--", "cat", stdin=data).stdout == data


def test_odd_arguments(served: Web) -> None:
    """A21, C38."""
    words = [b"\xff\xfe", b"a\nb", b"", b"--", b"-x", "é".encode()]
    done = served.cli("exec", "alice", "--", "printf", "%s|", *words)
    assert done.stdout == b"|".join(words) + b"|"
    env = served.cli(
        "exec", "alice", "--env", b"A=\xff", "--env", "B=1=2", "--cwd", "/usr", "--", "sh", "-c", 'echo "$A$B"; pwd'
    )
    assert env.stdout == b"\xff1=2\n/usr\n"


def test_a_client_that_is_killed_takes_its_command_along(served: Web) -> None:
    """A6; with its stdin full as well."""
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        process = served.popen("exec", "alice", "--", "sh", "-c", "echo $$; exec sleep 60", stdin=stdin)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            deadline = time.monotonic() + 1
            while time.monotonic() < deadline:
                try:
                    os.write(process.stdin.fileno(), b"x" * 65536)
                except BlockingIOError:
                    time.sleep(0.02)
        assert alive(pid)
        process.kill()
        process.communicate()
        eventually(lambda pid=pid: not alive(pid))  # type: ignore[misc]


def test_a_slow_reader(served: Web) -> None:
    """A18: nobody takes the output; the timeout kills all the same, and the client says so once it is read."""
    process = served.popen("exec", "alice", "--timeout", "1", "--", "yes")
    eventually(lambda: served.command().pid > 0 and alive(served.command().pid))
    pid = served.command().pid
    eventually(lambda: not alive(pid))
    assert process.poll() is None
    process.communicate(timeout=120)
    assert process.returncode == 124


def test_a_reader_that_goes_away_ends_it(served: Web) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{RINGFENCE} exec alice -- yes | head -1; echo ${{PIPESTATUS[0]}}"],
        env=served.environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [b"y", b"141"]
    assert done.stderr == b""
    eventually(lambda: not alive(served.command().pid))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_the_commands(served: Web, number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 7' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    process = served.popen("exec", "alice", "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (7, b"got\n")


def test_a_third_interrupt_ends_the_client(served: Web) -> None:
    process = served.popen("exec", "alice", "--", "sh", "-c", "trap '' INT TERM; echo $$; while :; do sleep 0.1; done")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=120)
    assert process.returncode == 130
    eventually(lambda: not alive(pid))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ann", "--", "ls"], ExecWords("ann", ["ls"])),
        (["--json", "ann", "--timeout=2", "--", "a", "--", "--json"], ExecWords("ann", ["a", "--", "--json"], 2.0, json=True)),
        (["ann", "--env", "A=1", "--env=B=2", "--", "x"], ExecWords("ann", ["x"], env=["A=1", "B=2"])),
        (["ann", "--cwd", "/", "--as", "bob", "--tenant", "t", "--", "x"], ExecWords("ann", ["x"], None, [], "/", "bob", "t")),
        (["ann", "ls"], None),
        (["--help"], None),
        (["ann", "--", ], None),
        (["--", "ls"], None),
        (["ann", "--timeout", "x", "--", "ls"], None),
        (["ann", "--tty", "--", "ls"], None),
    ],
)  # fmt: skip
def test_the_short_way_to_read_the_words(words: list[str], found: ExecWords | None) -> None:
    assert parse(words) == found


def test_both_ways_to_read_the_words_agree(served: Web) -> None:
    """The form without `--` goes the long way."""
    assert served.cli("exec", "alice", "echo", "hi").stdout == served.cli("exec", "alice", "--", "echo", "hi").stdout
