"""The command line as a process of its own against the real web servers. Numbers: cases.md."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.cli.exec_words import ExecWords, parse
from tests.support.web_rig import RINGFENCE, Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- exec ------------------------------------------------------------------------------------------------------------


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
        assert process.communicate(timeout=20)[0] == b"from a file"
    process = served.popen("exec", "alice", "--", "cat")
    assert process.communicate(timeout=20)[0] == b""


def test_a_stdin_that_never_closes_holds_nobody_up(served: Web) -> None:
    """A11."""
    reader, writer = os.pipe()
    try:
        process = served.popen("exec", "alice", "--", "true", stdin=reader)
        process.communicate(timeout=20)
        assert process.returncode == 0
        assert os.get_blocking(reader)  # others may share it: it was not made non-blocking
    finally:
        os.close(reader)
        os.close(writer)


def test_a_terminal_is_not_passed_on(served: Web) -> None:
    ours, theirs = pty.openpty()
    try:
        process = served.popen("exec", "alice", "--", "cat", stdin=theirs)
        assert process.communicate(timeout=20)[0] == b""
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
    process.communicate(timeout=20)
    assert process.returncode == 124


def test_a_reader_that_goes_away_ends_it(served: Web) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{RINGFENCE} exec alice -- yes | head -1; echo ${{PIPESTATUS[0]}}"],
        env=served.environment, capture_output=True, timeout=20, check=False,
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
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (7, b"got\n")


def test_a_third_interrupt_ends_the_client(served: Web) -> None:
    process = served.popen("exec", "alice", "--", "sh", "-c", "trap '' INT TERM; echo $$; while :; do sleep 0.1; done")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
    process.communicate(timeout=20)
    assert process.returncode == 130
    eventually(lambda: not alive(pid))


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "alice"],
        ["exec", "alice", "--"],
        ["exec", "alice", "--timeout", "--", "true"],
        ["exec", "alice", "--timeout", "soon", "--", "true"],
        ["exec", "alice", "--timeout", "nan", "--", "true"],
        ["exec", "alice", "--env", "NOEQUALS", "--", "true"],
        ["exec", "alice", "--unknown", "--", "true"],
        ["exec", "alice", "bob", "--unknown", "--", "true"],
        ["exec", "", "--", "true"],
        ["exec", "alice", "--tenant", "", "--", "true"],
        ["user", "show", ""],
        ["box", "stop", ""],
        ["token", "rm", "--user", "alice", ""],
        ["run", "show", ""],
        ["say", "--thread", "", "hi"],
        ["no-such-command"],
        ["box", "no-such-verb"],
        ["box", "limits", "alice", "--memory", "lots"],
        ["box", "limits", "alice", "--cpu", "nan"],
        ["box", "limits", "alice", "--cpu", "inf"],
        ["files", "put", "alice", "x", "/nonexistent"],
        ["files", "put", "alice", "/"],
    ],
)
def test_wrong_words_are_2(served: Web, words: list[str]) -> None:
    done = served.cli(*words)
    assert done.returncode == 2, done.stderr
    assert 2 <= len(done.stderr.strip().splitlines()) <= 3
    assert b"Traceback" not in done.stderr
    position = words.index("--") if "--" in words else len(words)
    error = json.loads(served.cli(*words[:position], "--json", *words[position:]).stdout)["error"]
    assert error["message"] and error["remedy"]


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


# --- what a client command costs -------------------------------------------------------------------------------------


def imported(served: Web, *words: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", RINGFENCE, *words]
    done = subprocess.run(command, env=served.environment, capture_output=True, text=True, timeout=60, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


SERVER_SIDE = {"fastapi", "sqlalchemy", "starlette", "uvicorn"}  # pydantic: typer itself converts arguments with it


@pytest.mark.parametrize(
    ("words", "also"),
    [
        (("exec", "alice", "--", "true"), {"httpx2", "rich", "typer", "click", "pydantic"}),
        (("exec", "alice", "--json", "--", "true"), {"httpx2", "rich", "typer", "click", "pydantic"}),
        (("status",), {"websockets", "rich"}),
        (("box", "ls"), {"websockets", "rich"}),
        (("files", "ls", "alice"), {"websockets", "rich"}),
        (("thread", "ls"), {"websockets", "rich"}),
    ],
)
def test_a_client_command_imports_little(served: Web, words: tuple[str, ...], also: set[str]) -> None:
    modules = imported(served, *words)
    assert "ringfence.client.client" in modules  # the control: the list is of this program
    tops = {module.split(".")[0] for module in modules}
    assert tops & (SERVER_SIDE | also) == set()
    assert not [module for module in modules if module.startswith(("ringfence.host", "ringfence.wire"))]


# --- the other commands ----------------------------------------------------------------------------------------------


def test_people_and_tokens(served: Web) -> None:
    def ok(*words: str) -> str:
        done = served.cli(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    ok("tenant", "add", "acme")
    assert "acme" in ok("tenant", "ls")
    ok("user", "add", "carol", "--tenant", "acme")
    ok("user", "add", "robot", "--tenant", "acme", "--kind", "agent", "--owner", "carol")
    assert json.loads(ok("user", "show", "robot", "--tenant", "acme", "--json"))["kind"] == "agent"
    names = [user["name"] for user in json.loads(ok("user", "ls", "--tenant", "acme", "--json"))["users"]]
    assert names == ["carol", "robot"]
    assert served.cli("user", "show", "carol").returncode == 4  # another tenant
    assert served.cli("user", "add", "carol", "--tenant", "acme").returncode == 1
    made = json.loads(ok("token", "add", "--user", "carol", "--tenant", "acme", "--note", "ci", "--json"))
    listed = ok("token", "ls", "--user", "carol", "--tenant", "acme", "--json")
    assert made["id"] in listed and made["token"] not in listed
    plain = served.cli("token", "add", "--user", "carol", "--tenant", "acme")
    secret = plain.stdout.decode().strip()
    assert (
        secret
        and secret not in plain.stderr.decode()
        and secret not in ok("token", "ls", "--user", "carol", "--tenant", "acme")
    )
    ok("token", "rm", "--user", "carol", "--tenant", "acme", made["id"])
    assert made["id"] not in ok("token", "ls", "--user", "carol", "--tenant", "acme", "--json")
    ok("user", "rm", "robot", "--tenant", "acme")
    ok("user", "rm", "carol", "--tenant", "acme")
    ok("tenant", "rm", "acme")
    assert served.cli("tenant", "rm", "acme").returncode == 4


def test_over_tcp_with_a_token(served: Web) -> None:
    env = {"RINGFENCE_URL": served.url, "RINGFENCE_TOKEN": served.token("alice")}
    assert served.cli("exec", "alice", "--", "echo", "hi", env=env).stdout == b"hi\n"
    assert served.cli("exec", "bob", "--", "true", env=env).returncode == 4
    assert served.cli("tenant", "ls", env=env).returncode == 3
    for words in (("exec", "alice", "--", "true"), ("status",)):
        refused = served.cli(*words, env={**env, "RINGFENCE_TOKEN": "wrong-token"})
        assert refused.returncode == 3
        assert b"wrong-token" not in refused.stderr + refused.stdout
        assert served.cli(*words, env={"RINGFENCE_URL": served.url}).returncode == 3
    assert served.cli("say", "--as", "alice", "--thread", "tcp", "hi", env=env).returncode == 0
    assert served.cli("say", "--as", "bob", "--thread", "tcp", "hi", env=env).returncode == 3


def test_no_server(tmp_path: Path) -> None:
    env = {**os.environ, "RINGFENCE_HOME": str(tmp_path)}
    for words in (("status",), ("exec", "alice", "--", "true")):
        done = subprocess.run([RINGFENCE, *words], env=env, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 5
        assert f"no server answers at {tmp_path}/run/api.sock" in done.stderr
        assert "start one: ringfence serve" in done.stderr


@pytest.mark.root
def test_a_socket_that_this_account_may_not_open(served: Web) -> None:
    served.home.chmod(0o711)
    served.listening.socket.parent.chmod(0o750)
    program = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from ringfence.client.address import Address, unreachable\n"
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "error = unreachable(Address(socket=sys.argv[1])); print(error.message, '|', error.remedy)"
    )
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", program, served.socket, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert "may not open" in done.stdout and "group root" in done.stdout and "usermod -aG root" in done.stdout


def test_files(served: Web, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"\0data\xff")
    (tmp_path / "in").chmod(0o755)
    assert served.cli("files", "put", "bob", "dir/tool", str(tmp_path / "in")).returncode == 0
    info = json.loads(served.cli("files", "stat", "bob", "dir/tool", "--json").stdout)
    assert (info["kind"], info["size"], info["mode"]) == ("file", 6, "755")
    assert served.cli("files", "get", "bob", "dir/tool", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out").read_bytes() == b"\0data\xff"
    assert served.cli("files", "get", "bob", "dir/tool", "-").stdout == b"\0data\xff"
    assert b"tool" in served.cli("files", "ls", "bob", "dir").stdout
    missing = served.cli("files", "get", "bob", "absent", str(tmp_path / "never"))
    assert missing.returncode == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert json.loads(served.cli("files", "get", "bob", "absent", "--json", "-").stdout)["error"]["code"] == "not_found"
    assert served.cli("files", "rm", "bob", "dir").returncode == 1
    assert served.cli("files", "rm", "-r", "bob", "dir").returncode == 0
    data = os.urandom(5 << 20)
    assert served.cli("files", "put", "bob", "big", "-", stdin=data).returncode == 0
    assert served.cli("files", "get", "bob", "big", "-").stdout == data


@pytest.mark.parametrize("name", [b"./-rf", b"new\nline", b"bad \xff\xfe", b"%2e%2e", "é🎉".encode()])
def test_file_names_are_bytes(served: Web, name: bytes) -> None:
    """C38."""
    assert served.cli("files", "put", "bob", name, "-", stdin=b"x").returncode == 0
    assert served.cli("files", "get", "bob", name, "-").stdout == b"x"
    assert served.cli("files", "ls", "bob").returncode == 0
    assert served.cli("files", "rm", "bob", name).returncode == 0
    assert served.cli("files", "stat", "bob", name).returncode == 4


def test_a_download_never_replaces_what_is_no_file(served: Web, tmp_path: Path) -> None:
    """As root a rename over a device would take it from the whole machine. Here a pipe stands for every special file."""
    assert served.cli("files", "put", "bob", "special", "-", stdin=b"hello").returncode == 0
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    for local in (pipe, link):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert served.cli("files", "get", "bob", "special", str(local)).returncode == 0
            assert os.read(reader, 100) == b"hello"
        finally:
            os.close(reader)
        assert pipe.is_fifo() and link.is_symlink()
    (tmp_path / "out").symlink_to("/proc/self/fd/1")  # as /dev/stdout is, which no test may put at risk
    assert served.cli("files", "get", "bob", "special", str(tmp_path / "out")).stdout == b"hello"
    refused = served.cli("files", "get", "bob", "special", str(folder))
    assert refused.returncode == 2 and b"folder" in refused.stderr and b"report it" not in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "out", "pipe"]


def test_a_download_through_a_link_replaces_what_it_names(served: Web, tmp_path: Path) -> None:
    served.cli("files", "put", "bob", "linked", "-", stdin=b"new")
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    assert served.cli("files", "get", "bob", "linked", str(tmp_path / "link")).returncode == 0
    assert (tmp_path / "real").read_text() == "new" and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_name_that_the_terminal_has_no_letters_for(served: Web, encoding: str) -> None:
    """F94: shown as an escape, and the list goes on."""
    served.user(f"经济{encoding}")
    done = served.cli("user", "ls", env={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert rf"\u7ecf\u6d4e{encoding}".encode() in done.stdout
    assert b"bob" in done.stdout


@pytest.mark.parametrize("words", [("status", "--json"), ("box", "ls"), ("exec", "alice", "--", "echo", "hi")])
def test_a_full_disk_under_the_output(served: Web, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        process = served.popen(*words, stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"No space left on device" in said and len(said.splitlines()) == 2
    assert b"report it" not in said and b"Traceback" not in said


def test_a_name_cannot_speak_to_the_terminal(served: Web) -> None:
    served.cli("files", "put", "bob", b"esc\x1b[31m", "-", stdin=b"")
    assert b"\x1b" not in served.cli("files", "ls", "bob").stdout


def test_say(served: Web) -> None:
    said = served.cli("say", "--as", "alice", "--thread", "cli", "hello")
    assert (said.returncode, said.stdout) == (0, b"you said: hello\n")
    answer = json.loads(served.cli("say", "--as", "alice", "--thread", "cli", "--json", "hello").stdout)
    assert set(answer) == {"thread", "message", "turn", "run", "reply", "status", "reason", "gates"}
    assert (
        served.cli("say", "--as", "alice", "--thread", "cli", "-", stdin="é".encode()).stdout.decode()
        == "you said: é\n"
    )
    failed = served.cli("say", "--as", "alice", "--thread", "cli", "fail")
    assert failed.returncode == 1 and b"diverged" in failed.stderr
    held = served.popen("say", "--as", "alice", "--thread", "busy", "wait")
    eventually(lambda: served.cli("events", "busy").returncode == 0)
    rejected = served.cli("say", "--as", "alice", "--thread", "busy", "--mode", "reject", "--json", "no")
    assert rejected.returncode == 3
    assert json.loads(rejected.stdout)["status"] == "rejected"
    held.kill()
    held.communicate()
    large = served.cli("say", "--as", "alice", "--thread", "cli", "--json", "-", stdin=b"x" * 300_000)
    assert large.returncode == 2
    assert json.loads(large.stdout)["error"]["details"] == {"size": 300_000, "limit": 262_144}


def test_threads_events_and_runs(served: Web) -> None:
    assert served.cli("thread", "add", "both", "--member", "alice", "--parallel").returncode == 0
    assert served.cli("thread", "member", "add", "both", "bob").returncode == 0
    shown = json.loads(served.cli("thread", "show", "both", "--json").stdout)
    assert (shown["members"], shown["parallel"]) == (["alice", "bob"], True)
    assert served.cli("thread", "member", "rm", "both", "bob").returncode == 0
    assert served.cli("thread", "show", "both", "--as", "bob").returncode == 4
    assert "both" in [each["name"] for each in json.loads(served.cli("thread", "ls", "--json").stdout)["threads"]]
    run = json.loads(served.cli("say", "--as", "alice", "--thread", "both", "--json", "hi").stdout)["run"]
    assert json.loads(served.cli("run", "show", run, "--json").stdout)["steps"][0]["tool"] == "shell"
    assert b"shell" in served.cli("run", "show", run).stdout
    assert run in [each["run"] for each in json.loads(served.cli("run", "ls", "--json").stdout)["runs"]]
    assert served.cli("run", "show", "run_absent").returncode == 4
    events = json.loads(served.cli("events", "both", "--json").stdout)["events"]
    assert [event["cursor"] for event in events] == list(range(1, len(events) + 1))
    later = json.loads(served.cli("events", "both", "--after", "2", "--as", "alice", "--json").stdout)["events"]
    assert later == events[2:]
    follow = served.popen("events", "both", "--follow", "--json", "--as", "operator")
    assert follow.stdout is not None
    assert [json.loads(follow.stdout.readline())["cursor"] for _ in events] == [event["cursor"] for event in events]
    served.cli("say", "--as", "alice", "--thread", "both", "more")
    assert json.loads(follow.stdout.readline())["cursor"] == len(events) + 1
    follow.send_signal(signal.SIGINT)
    follow.communicate(timeout=20)
    assert follow.returncode == 130


def test_boxes(served: Web) -> None:
    assert json.loads(served.cli("box", "start", "bob", "--json").stdout)["observed"] == "running"
    assert {"alice", "bob"} <= {each["user"] for each in json.loads(served.cli("box", "ls", "--json").stdout)["boxes"]}
    changed = served.cli("box", "limits", "bob", "--memory", "2GiB", "--pids", "256", "--cpu", "1.5", "--json")
    limits = json.loads(changed.stdout)["limits"]
    assert (limits["memory"], limits["pids"], limits["cpu_milli"]) == (2 << 30, 256, 1500)
    assert json.loads(served.cli("box", "stop", "bob", "--json").stdout)["observed"] == "stopped"
    assert b"stopped" in served.cli("box", "show", "bob").stdout


COMMANDS = ("init", "serve", "status", "doctor", "tenant", "user", "token", "exec", "files", "box", "say", "thread")


def test_help_names_every_command(served: Web) -> None:
    text = served.cli("--help").stdout.decode()
    for word in (*COMMANDS, "run", "events", "config", "bench"):
        assert f"  {word} " in text, word
        assert served.cli(word, "--help").returncode == 0
    assert served.cli("--version").stdout.startswith(b"ringfence ")
    assert served.cli().returncode == 2
