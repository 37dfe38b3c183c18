"""Agent loops in the real guest: started, relayed, re-asked after a re-dial, killed; and hostile ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.wire.framing import decode
from tests.support.guest_rig import Box, built_tree, running_box
from tests.support.loop_rig import Runs, calls, hostile_main, says, start, take_over


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    with built_tree() as made:
        yield made


@pytest.fixture
def box(tree: Path) -> Iterator[Box]:
    with running_box(tree) as made:
        yield made
        assert made.process.poll() is None, made.said()


WORK = [
    calls(("shell", {"command": "uname"}), ("write", {"path": "note.txt", "text": "hi\n"})),
    calls(("read", {"path": "note.txt"}), ("fly", {})),
    says("all done"),
]


def test_h05_nothing_that_a_command_leaves_behind_is_loaded_by_a_loop(box: Box) -> None:
    """Modules, start-up hooks and paths in every folder that a box can write, and in a command's environment."""
    plant = """
for name in json re time os random sitecustomize usercustomize; do
    for folder in . /workspace /tmp "$HOME/.local/lib/python3.11/site-packages"; do
        mkdir -p "$folder"; echo "open('/tmp/hijacked', 'a').write('$name')" > "$folder/$name.py"
    done
done
echo "import sitecustomize" > "$HOME/.local/lib/python3.11/site-packages/x.pth"; cp sitecustomize.py "$HOME/.pythonrc"
"""
    with box.dial() as host:
        assert host.sh("h05/plant", plant).code == 0
        host.sh("h05/control", "cd /tmp && python3 -c 'import random'")
        assert host.sh("h05/hit", "cat /tmp/hijacked; rm /tmp/hijacked").stdout != b"", "control: it works on a command"
        runs = Runs(host, WORK)
        hostile = {"PYTHONPATH": "/tmp", "LD_PRELOAD": "/tmp/x.so", "PYTHONSTARTUP": "/tmp/json.py"}
        host.run("h05/env", "/bin/sh", "-c", "true", env=hostile)
        host.request("run.start", **start("h05"))
        runs.until_finished("h05")
        assert host.sh("h05/after", "cat /tmp/hijacked; rm -rf /tmp/*.py *.py /workspace/*.py .local").stdout == b""


def test_h06_no_command_changes_what_pid_1_and_loops_run(box: Box) -> None:
    attempts = """
for target in /opt/ringfence/init.pyc /opt/ringfence/lib/ringfence/guest/loop.pyc /usr/bin/python3.11 /usr/bin/env; do
    test -e "$target" || target=$(dirname "$target")
    (: >> "$target") 2>/dev/null && echo "wrote $target"
    mv "$target" "$target.old" 2>/dev/null && echo "moved $target"
    rm -rf "$target.none" 2>/dev/null; chmod u+w "$target" 2>/dev/null && echo "chmod $target"
    ln -s /tmp/x "$(dirname "$target")/planted" 2>/dev/null && echo "planted beside $target"
done; true
"""
    with box.dial() as host:
        control = (
            "mkdir own && cp /bin/true own/x && echo >> own/x && mv own/x own/y && chmod u+w own/y && ln -s / own/l"
        )
        assert host.sh("h06/control", control).code == 0
        assert host.sh("h06/try", attempts).stdout == b""


def test_a_run_from_its_start_to_its_finish(box: Box) -> None:
    with box.dial() as host:
        runs = Runs(host, WORK)
        assert host.request("run.start", **start("r1"))["pid"] > 1
        runs.until_finished("r1")
        assert runs.finished["r1"] == {"token": "t1", "text": "all done", "seen": 1}
        host.until(lambda: host.loop_ends)
        assert host.loop_ends == [{"run": "r1", "code": 0, "signal": None}]
        assert (box.home / "note.txt").read_text() == "hi\n"
    assert {p["token"] for _, _, p in runs.said} == {"t1"}
    begins = [(p["n"], p["tool"], p["effect"]) for _, method, p in runs.said if method == "step.begin"]
    assert begins == [(1, "shell", "local"), (2, "write", "idempotent"), (3, "read", "pure")]
    assert [p["boundary"] for p in runs.checkpoints] == ["before_effect", "before_effect"]
    last = next(p for _, method, p in reversed(runs.said) if method == "model.generate")
    texts = [json.loads(m["text"]) for m in last["messages"] if m["role"] == "tool"]
    assert texts[0] == {"ok": True, "stdout": "ran uname"}
    assert texts[2]["text"] == "hi\n"
    assert "no tool 'fly'" in texts[3]["error"]
    assert "You are alone." in last["messages"][0]["text"]


def test_a_killed_loop_is_reported_and_a_redrive_asks_the_same_steps(box: Box) -> None:
    with box.dial() as host:
        first = Runs(host, WORK)
        host.request("run.start", **start("r1"))
        while first.answer() != "step.end":
            pass
        host.request("run.cancel", run="r1", grace_ms=0)
        host.until(lambda: host.loop_ends)
        assert host.loop_ends[0]["signal"] in (9, 15)
        host.asks.clear()
        (box.home / "note.txt").write_text("changed since\n")
        second = Runs(host, WORK[1:])
        second.journal = dict(first.journal)
        host.request("run.start", **start("r1", "t2", first.checkpoints[-1]["state"]))
        second.until_finished("r1")
        assert second.finished["r1"]["text"] == "all done"
    said = [
        [(p["n"], p["tool"], p["arguments"]) for _, m, p in runs.said if m == "step.begin"] for runs in (first, second)
    ]
    assert said[1][:2] == said[0]
    assert (box.home / "note.txt").read_text() == "changed since\n"  # the write was in the journal: not done again


def test_two_loops_at_once_do_not_mix(box: Box) -> None:
    with box.dial() as host:
        runs = Runs(host, WORK)
        host.request("run.start", **start("r1", "t1"))
        host.request("run.start", **start("r2", "t2"))
        runs.until_finished("r1", "r2")
        assert {run: p["token"] for run, p in runs.finished.items()} == {"r1": "t1", "r2": "t2"}
        assert all(p["token"] == {"r1": "t1", "r2": "t2"}[run] for run, _, p in runs.said)


def test_a_run_that_lives_is_not_started_twice_and_another_token_replaces_it(box: Box) -> None:
    with box.dial() as host:
        one = host.request("run.start", **start("r1", "t1"))
        assert host.request("run.start", **start("r1", "t1")) == one
        two = host.request("run.start", **start("r1", "t2"))
        assert two != one
        # The new loop may have asked already: only what the former one said is not answered.
        host.asks[:] = [ask for ask in host.asks if decode(ask[1])["p"]["token"] == "t2"]
        runs = Runs(host, [says("x")])
        while "r1" not in runs.finished:
            runs.answer()
        host.until(lambda: host.loop_ends)
        assert [end["code"] for end in host.loop_ends] == [0]
        assert runs.finished["r1"]["token"] == "t2"


def test_after_a_re_dial_a_loop_asks_again(box: Box) -> None:
    with box.dial() as host:
        host.request("run.start", **start("r1", "t1"))
        runs = Runs(host, WORK)
        while runs.answer() != "step.begin":
            pass
        run, lost = runs.next()
        assert run == "r1"
    with box.dial() as host:
        assert host.greeting["runs"] == [{"run": "r1", "token": "t1"}]
        runs.host = host
        host.until(lambda: host.asks)
        again = decode(host.asks[0][1])
        assert (again["m"], again["p"]) == (lost["m"], lost["p"])
        runs.until_finished("r1")
        assert runs.finished["r1"]["text"] == "all done"


def test_a_loop_survives_a_host_that_sends_it_nonsense(box: Box) -> None:
    with box.dial() as host:
        host.request("run.start", **start("r1"))
        host.until(lambda: host.asks)
        host.to_loop("r1", {"re": 999, "ok": {}})
        host.to_loop("r1", {"m": "rewired", "p": {}})
        host.to_loop("nobody", {"re": 1, "ok": {}})
        runs = Runs(host, [says("x"), says("x")])  # asked before, and again over what it takes for a new wire
        runs.until_finished("r1")
        host.connection.relay("r1", b"garbage")
        host.send()
        assert host.sh("x/1", "echo on").stdout == b"on\n"


def test_the_model_is_asked_again_while_it_is_unavailable_and_then_the_run_fails(box: Box) -> None:
    with box.dial() as host:
        runs = Runs(host, [])
        host.request("run.start", **start("r1"))
        tries = 0
        while "r1" not in runs.finished:
            host.until(lambda: host.asks, 5)
            if decode(host.asks[0][1])["m"] != "model.generate":
                runs.answer()
                continue
            tries += 1
            _, ask = runs.next()
            host.to_loop("r1", {"re": ask["id"], "err": {"code": "unavailable", "message": "no provider"}})
        assert tries == 4
        assert runs.finished["r1"] == {"token": "t1", "code": "unavailable", "message": "no provider"}


def test_the_loop_guard_ends_a_run_that_comes_to_no_end(box: Box) -> None:
    with box.dial() as host:
        runs = Runs(host, [calls(("list", {"path": "."}))] * 60)
        host.request("run.start", **start("r1"))
        runs.until_finished("r1")
        assert runs.finished["r1"]["code"] == "loop_guard"


# --- hostile loops ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(request: pytest.FixtureRequest) -> Iterator[Box]:
    """A box whose loop has been taken over: `request.param` is what it runs instead of the native loop."""
    with built_tree() as tree:
        take_over(tree, hostile_main(request.param))
        with running_box(tree) as made:
            yield made


@pytest.mark.parametrize(
    "hostile",
    [
        "sock.sendall(b'x' * (1 << 20) + b'y' * 100)\n    time.sleep(60)",
        "while True: sock.sendall(b'{}\\n' * 500)",
        "while True: sock.sendall(b'\\n' * 65536)",
        "sock.close()\n    time.sleep(60)",
    ],
    indirect=True,
)
def test_a_loop_that_floods_or_says_too_long_a_line_is_killed(hostile: Box) -> None:
    with hostile.dial() as host:
        host.request("run.start", **start("r1"))
        host.until(lambda: host.loop_ends, 10)
        assert host.loop_ends == [{"run": "r1", "code": None, "signal": 9}]
        assert host.sh("x/1", "echo on").stdout == b"on\n"


@pytest.mark.parametrize("hostile", ['sock.sendall(b\'{"m":1},"run":"r2"\\n\')\n    time.sleep(60)'], indirect=True)
def test_a_loop_cannot_speak_for_another_run(hostile: Box) -> None:
    with hostile.dial() as host:
        host.request("run.start", **start("r1"))
        host.until(lambda: host.asks)
        assert host.asks == [("r1", b'{"m":1},"run":"r2"')]


@pytest.mark.parametrize("hostile", ["time.sleep(60)"], indirect=True)
def test_a_loop_that_reads_nothing_does_not_fill_pid_1(hostile: Box) -> None:
    with hostile.dial() as host:
        host.request("run.start", **start("r1"))
        for _ in range(10):
            host.to_loop("r1", {"re": 1, "ok": {"text": "x" * 900_000}})
        host.until(lambda: host.loop_ends, 10)
        assert host.sh("x/1", "echo on").stdout == b"on\n"


@pytest.mark.parametrize("hostile", ["os.kill(os.getpid(), 11)"], indirect=True)
def test_a_loop_that_crashes_is_reported(hostile: Box) -> None:
    with hostile.dial() as host:
        host.request("run.start", **start("r1"))
        host.until(lambda: host.loop_ends, 10)
        assert host.loop_ends == [{"run": "r1", "code": None, "signal": signal.SIGSEGV}]


@pytest.mark.parametrize(
    "hostile",
    ["sock.sendall(repr(sorted(os.listdir('/proc/self/fd'))).encode() + b'\\n')\n    time.sleep(60)"],
    indirect=True,
)
def test_a_loop_inherits_nothing_but_its_socket(hostile: Box) -> None:
    with hostile.dial() as host:
        host.spawn("x/1", "sleep", "5", stdin="pipe")
        host.request("run.start", **start("r1"))
        host.until(lambda: host.asks)
        names = json.loads(host.asks[0][1].decode().replace("'", '"'))
        assert len(names) == 5, names  # 0-2, its socket, and the listing's own
        assert os.path.exists(f"/proc/{hostile.process.pid}")
