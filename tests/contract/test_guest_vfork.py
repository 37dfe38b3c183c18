"""Programs started by clone(CLONE_VM | CLONE_VFORK), with the machine code and with the same list carried out in Python."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, socket, sys
from ringfence.guest import vfork
way, program, *argv = sys.argv[1:]
if way == "python":
    vfork._CODE = {}
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:  # its children are ours
    arena = vfork.reserve()
    starter = vfork.Starter(arena, theirs.fileno())
    assert (starter._run is None) == (way == "python")
    for number in (7, 8):
        data, args, env, first = vfork.image(arena, [a.encode() for a in argv], {b"NAME": b"value", b"EMPTY": b""})
        type(starter.image).from_address(arena + vfork.CONTROL).raw = data
        before = os.getpid(), os.getsid(0), os.getcwd()
        pid, said = starter.start(number, args, env, first if program == "-" else program.encode())
        assert (os.getpid(), os.getsid(0), os.getcwd()) == before
        assert pid > 0 and said, (pid, said)
    os._exit(0)
theirs.close()
for _ in range(3):
    pid, status = os.wait()
    os.write(1, b"ended %d\\n" % os.waitstatus_to_exitcode(status))  # whole: the programs write to the same pipe
while data := ours.recv(64):
    words = [int.from_bytes(data[i:i + 8], "little", signed=True) for i in (0, 8, 16)]
    print("word", words[0], words[1], words[2] if words[0] == vfork.REFUSED else words[2] > 1)
"""
WAYS = ["machine", "python"] if platform.machine() == "x86_64" else ["python"]


def start(way: str, program: str, *argv: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, way, program, *argv], capture_output=True, text=True, timeout=120, check=True
    )
    return sorted(done.stdout.splitlines())


@pytest.mark.parametrize("way", WAYS)
def test_a_program_runs_with_its_arguments_and_environment_in_a_session_of_its_own(way: str) -> None:
    script = "env | grep -E '^(NAME|EMPTY)=' | sort; echo $0,$1,$2; test $(ps -o sid= -p $$) = $$ && echo leads; exit 3"
    lines = start(way, "/bin/sh", "sh", "-c", script, "zero", "", "two")
    assert lines.count("NAME=value") == lines.count("EMPTY=") == lines.count("zero,,two") == lines.count("leads") == 2
    assert lines.count("ended 3") == 2
    assert [line for line in lines if line.startswith("word")] == ["word 1 7 True", "word 1 8 True"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", ["/nowhere/at/all", "-"])
def test_an_exec_that_fails_is_said_after_the_start_and_nothing_runs(way: str, program: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    lines = start(way, program, str(plain))
    code = errno.EACCES if program == "-" else errno.ENOENT
    assert lines == sorted(
        ["ended 0", "ended 127", "ended 127"]
        + [line for number in (7, 8) for line in (f"word 1 {number} True", f"word 2 {number} {-code}")]
    )


def test_a_child_that_can_say_nothing_does_not_run(tmp_path: Path) -> None:
    """Nor is its failure a start: the starter learns that it was not heard."""
    mark = tmp_path / "ran"
    code = (
        "import os, socket; from ringfence.guest import vfork\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET); ours.close()\n"
        "if os.fork() == 0:\n"
        "    arena = vfork.reserve(); starter = vfork.Starter(arena, theirs.fileno())\n"
        f"    data, args, env, first = vfork.image(arena, [b'/usr/bin/touch', {os.fsencode(mark)!r}], {{}})\n"
        "    type(starter.image).from_address(arena + vfork.CONTROL).raw = data\n"
        "    os._exit(starter.start(1, args, env, first)[1])\n"
        "print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[0, 127]\n"
    assert not mark.exists()
