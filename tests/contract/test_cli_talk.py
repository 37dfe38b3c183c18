"""`ringfence say`, `thread`, `events` and `run` as processes against the real web servers, on terminals and on pipes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.support.cli_rig import eventually
from tests.support.web_rig import RINGFENCE, Web, web


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with web() as made:
        made.user("alice")
        made.user("bob")
        yield made


def test_say(served: Web) -> None:
    said = served.cli("say", "--as", "alice", "--thread", "cli", "hello")
    assert (said.returncode, said.stdout) == (0, b"you said: hello\n")
    answer = json.loads(served.cli("say", "--as", "alice", "--thread", "cli", "--json", "hello").stdout)
    assert set(answer) == {"thread", "message", "turn", "run", "reply", "status", "reason", "why", "steered", "gates"}
    assert (
        served.cli("say", "--as", "alice", "--thread", "cli", "-", stdin="é".encode()).stdout.decode()
        == "you said: é\n"
    )
    failed = served.cli("say", "--as", "alice", "--thread", "cli", "fail")
    assert (failed.returncode, failed.stdout) == (1, b"")
    first, second = failed.stderr.decode().splitlines()
    assert first.startswith("ringfence: failed: diverged: what was asked again is not what the journal has: step 1 was")
    assert second.startswith("  see: ringfence run show run_") and "\x1b" not in first
    held = served.popen("say", "--as", "alice", "--thread", "busy", "wait")
    eventually(lambda: served.cli("events", "busy").returncode == 0)
    rejected = served.cli("say", "--as", "alice", "--thread", "busy", "--mode", "reject", "--json", "no")
    assert rejected.returncode == 3
    assert json.loads(rejected.stdout)["status"] == "rejected"
    full = served.cli("say", "--as", "alice", "--thread", "busy", "full")
    assert full.returncode == 1 and b"100 messages wait" in full.stderr
    held.kill()
    held.communicate()
    large = served.cli("say", "--as", "alice", "--thread", "cli", "--json", "-", stdin=b"x" * 300_000)
    assert large.returncode == 2
    assert json.loads(large.stdout)["error"]["details"] == {"size": 300_000, "limit": 262_144}


def on_a_terminal(served: Web, *words: str, answer: str = "", then: int | None = None) -> tuple[int, bytes, str]:
    """(exit code, stdout, what the terminal showed); with stderr on a terminal. `then` is sent once `answer` shows."""
    ours, theirs = pty.openpty()
    try:
        process = served.popen(*words, stderr=theirs)
        os.close(theirs)
        shown, guard = b"", threading.Timer(40, process.kill)
        guard.start()
        while chunk := _read(ours):
            shown += chunk
            if then is not None and answer.encode() in shown:
                process.send_signal(then)
                then = None
        guard.cancel()
        out, _ = process.communicate(timeout=120)
        return process.returncode, out, shown.decode().replace("\r\n", "\n")
    finally:
        os.close(ours)


def rows_until(follow: subprocess.Popen[bytes], *ends: str) -> list[str]:
    """What it prints, to the first row that has one of the words; then it is interrupted."""
    assert follow.stdout is not None
    guard = threading.Timer(40, follow.kill)
    guard.start()
    rows = []
    for row in follow.stdout:
        rows.append(row.decode())
        if any(end in rows[-1] for end in ends):
            break
    guard.cancel()
    follow.send_signal(signal.SIGINT)
    follow.communicate(timeout=120)
    assert follow.returncode == 130
    return rows


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:  # EIO: nobody has the other end open any more (man 4 pts)
        return b""


def test_a_terminal_shows_what_happens_and_stdout_the_reply_once(served: Web) -> None:
    code, out, shown = on_a_terminal(served, "say", "--as", "alice", "--thread", "tty", "restart")
    assert (code, out) == (0, b"you said: restart\n")
    rows = shown.splitlines()
    assert "- accepted" in rows and "- thinking" in rows and "- restarted (attempt 2)" in rows
    assert "- step 1: shell" in rows and rows[-1] == "  you said: restart"
    assert rows.index("- restarted (attempt 2)") < rows.index("- step 1: shell")
    quiet = served.cli("say", "--as", "alice", "--thread", "tty", "hello")
    assert quiet.stderr == b""
    loud = served.cli("say", "--as", "alice", "--thread", "tty", "--verbose", "hello")
    assert loud.stdout == b"you said: hello\n" and b"  you said: hello\n" in loud.stderr
    code, out, shown = on_a_terminal(served, "say", "--as", "alice", "--thread", "tty", "--json", "hello")
    assert (code, shown, json.loads(out)["reply"]) == (0, "", "you said: hello")


def test_what_is_said_cannot_speak_to_the_terminal(served: Web) -> None:
    """Live text, replies, events; on a pipe the reply is what it is."""
    _, out, shown = on_a_terminal(served, "say", "--as", "alice", "--thread", "esc", "esc")
    assert "\x1b" in out.decode(), "the control: the agent did say it"
    assert "\x1b" not in shown and r"\x1b[2Jcleared\u202e" in shown
    events = served.cli("events", "esc", "--as", "alice")
    assert b"\x1b" not in events.stdout and rb"\x1b[2Jcleared" in events.stdout


def test_an_interrupt_leaves_the_turn(served: Web) -> None:
    """And says how to end it, in a way that works."""
    words = ("say", "--as", "alice", "--thread", "interrupt", "wait")
    code, out, shown = on_a_terminal(served, *words, answer="step 1 ended", then=signal.SIGINT)
    assert (code, out) == (130, b"")
    assert "the turn goes on without you" in shown and "Traceback" not in shown
    command = shown.rstrip().splitlines()[-1].partition("cancel it: ringfence ")[2].split()
    run = command[2]
    assert json.loads(served.cli("run", "show", run, "--json").stdout)["state"] == "running"
    assert served.cli(*command).returncode == 0
    assert json.loads(served.cli("run", "show", run, "--json").stdout)["state"] == "cancelled"
    assert b"has ended: cancelled" in served.cli(*command).stdout
    assert served.cli("run", "cancel", "run_absent").returncode == 4


def test_steer_attach_and_redrive(served: Web) -> None:
    (served.home / "in").write_text("123")
    assert served.cli("files", "put", "alice", "notes.txt", str(served.home / "in")).returncode == 0
    first = served.popen("say", "--as", "alice", "--thread", "steer", "--json", "wait")
    eventually(lambda: b"step 1 ended" in served.cli("events", "steer").stdout)
    words = ("--mode", "steer", "--attach", "notes.txt", "--attach", "notes.txt", "--json")
    joined = json.loads(served.cli("say", "--as", "alice", "--thread", "steer", *words, "more").stdout)
    turn = json.loads(first.communicate(timeout=120)[0])
    assert (joined["turn"], joined["steered"], turn["steered"]) == (turn["turn"], True, False)
    text = served.cli("events", "steer", "--as", "alice").stdout.decode()
    assert "adds to the turn under way: more [attached: notes.txt (3B), notes.txt (3B)]" in text
    assert served.cli("say", "--as", "alice", "--thread", "steer", "--attach", "absent", "x").returncode == 4
    assert served.cli("run", "redrive", turn["run"]).returncode == 1
    failed = json.loads(served.cli("say", "--as", "alice", "--thread", "steer", "--json", "fail").stdout)
    assert b"is tried again" in served.cli("run", "redrive", failed["run"], "--as", "alice").stdout
    eventually(lambda: json.loads(served.cli("run", "show", failed["run"], "--json").stdout)["state"] == "completed")
    text = served.cli("events", "steer", "--as", "alice").stdout.decode()
    assert "queued: redriven by hand" in text
    assert "the turn ended: failed: diverged: what was asked again is not what the journal has" in text


def test_break_glass(served: Web) -> None:
    served.cli("thread", "add", "glass", "--member", "alice")
    opened = served.cli("thread", "break-glass", "glass", "--reason", "incident 7")
    assert opened.returncode == 0 and b"glass is open to you until 20" in opened.stdout
    assert "until" in json.loads(served.cli("thread", "break-glass", "glass", "--reason", "again", "--json").stdout)
    assert served.cli("thread", "break-glass", "glass", "--reason", "x").returncode == 2
    assert served.cli("thread", "break-glass", "glass").returncode == 2
    assert served.cli("thread", "break-glass", "glass", "--reason", "mine", "--as", "alice").returncode == 3
    shown = served.cli("events", "glass", "--as", "alice").stdout.decode()
    assert "opened this thread's text until" in shown and ": incident 7" in shown


@pytest.mark.parametrize("words", ["events pipe", "events pipe --json", "events pipe --follow", "run ls"])
def test_a_reader_that_has_enough(served: Web, words: str) -> None:
    """`events T | head -1`: as other tools end, by the signal's code and without a word."""
    if words == "events pipe":
        served.cli("thread", "add", "pipe")
        talk = served.engine.threads.talks["default", "pipe"]
        for at in range(3000):
            served.does(talk.event("run.queued", {"n": at, "reason": "x" * 100}))
    follow = f"{RINGFENCE} {words} | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", follow], env=served.environment, capture_output=True, timeout=120, check=False)
    assert done.stderr == b""
    assert done.stdout.strip() in (b"141", b"0" if words == "run ls" else b"141")


def test_follow_shows_live_text_to_programs_only(served: Web) -> None:
    served.cli("thread", "add", "watch", "--member", "alice")
    follows = [served.popen("events", "watch", "--follow", "--as", "alice", *more) for more in ((), ("--json",))]
    eventually(lambda: len(served.engine.threads.watches) == 2)
    served.cli("say", "--as", "alice", "--thread", "watch", "hello")
    words, items = (rows_until(follow, "run.ended", "the turn ended") for follow in follows)
    assert [row.split("  ")[-1].strip() for row in words][-2:] == [
        "the agent replies: you said: hello", "the turn ended: completed",
    ]  # fmt: skip
    kinds = [json.loads(row)["kind"] for row in items]
    assert kinds.count("delta") == 2 and kinds.index("delta") < kinds.index("reply")
    eventually(lambda: served.engine.threads.watches == [])


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
    follow.communicate(timeout=120)
    assert follow.returncode == 130
