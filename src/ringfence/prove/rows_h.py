"""Group H: a command of the box against PID 1, the command spawner and the agent loops beside it; and what HOME could do
to them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from ringfence.prove import rows_jail
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.programs import COMMAND, payload
from ringfence.prove.row import Control, ProgramFailed, Row, Tries, no_control, program, ran
from ringfence.prove.rows_f import canary_folder
from ringfence.prove.stage import ATTACKER, Stage

SIBLING = "PR_SET_DUMPABLE 0 of PID 1; a Landlock domain for commands and one for each loop"
LINGER_SECONDS = 6.0


def beside_a_loop(name: str, row_id: str, attempt: str, expected: str, wall: str, control: Control) -> Row:
    """From the shell while an agent loop of the same user is at work, so that there is one to attack; and from a loop."""

    def attack(stage: Stage, runner: str) -> Tries:
        user = stage.user(f"hilda-{name}")
        with ThreadPoolExecutor(1) as pool:
            loop = pool.submit(stage.attack, "e", user, "siblings", "linger", str(LINGER_SECONDS))
            _until_at_work(stage, user)
            tries = stage.attack(runner, user, "siblings", name)
            lived = loop.result()
        return Tries({**tries.outcomes, "loop": "lived on" if lived.outcomes == {"linger": "lived"} else "done ended"})

    return Row(row_id, attempt, expected, wall, attack, control, "se")


def _until_at_work(stage: Stage, user: str) -> None:
    """The loop has said where it is."""
    until = time.monotonic() + 5.0
    while stage.shell(user, "test -e /tmp/.loop").get("exit_code") != 0:
        if time.monotonic() > until:
            raise ProgramFailed("the loop that was to be attacked did not come up")


def respawned(stage: Stage, _runner: str) -> Tries:
    """H13: the command spawner shares the commands' Landlock domain, so that they may end it; it is replaced."""
    user = stage.user("hugo")
    told = {}
    for number in ("SIGKILL", "SIGSTOP"):
        stage.exec(user, ["python3", "-I", "-c", COMMAND], payload("siblings", "kill_spawner", (number,)).encode())
        code = stage.shell(user, "exit 3").get("exit_code")
        told[number] = "the next command runs" if code == 3 else f"{DONE} exit {code}"
    return Tries(told)


def planted(stage: Stage, _runner: str) -> Tries:
    """H05: HOME, the working folder and /tmp full of modules with the names of those that PID 1 and loops import; then
    a loop, a command with hooks in its environment, and a restart of the box."""
    user = stage.user("ivan")
    stage.attack("s", user, "siblings", "plant")
    hooks = {"PYTHONPATH": "/home/user", "PYTHONSTARTUP": "/home/user/json.py", "BASH_ENV": "/home/user/.bashrc"}
    stage.client.exec(user, ["true"], env={**hooks, "ENV": "/home/user/.shrc"})
    loop = stage.attack("e", user, "siblings", "hooked")
    stage.client.stop_box(user)
    stage.client.start_box(user)
    again = stage.attack("e", user, "siblings", "hooked")
    return Tries({"loop": loop.outcomes["hooks"], "after a restart": again.outcomes["hooks"]})


def _open(stage: Stage) -> str:
    return str(stage.canaries.host / "open")


ROWS: tuple[Row, ...] = (
    beside_a_loop(
        "memory",
        "H01",
        "read memory, environment, maps, descriptors of PID 1, the command spawner and a loop",
        "EACCES",
        SIBLING,
        ran(lambda stage: stage.bare("siblings", "memory_of_child")),
    ),
    beside_a_loop(
        "steal",
        "H02",
        "pidfd_getfd, ptrace and process_vm_readv on them",
        "EPERM",
        f"seccomp; {SIBLING}",
        ran(lambda stage: stage.bare("siblings", "steal_from_child")),
    ),
    beside_a_loop(
        "signals",
        "H03",
        "signals, limits and priorities for them",
        "EPERM",
        "Landlock's signal scope; seccomp on prlimit64, setpriority, sched_* and ioprio_set for another pid",
        ran(lambda stage: stage.bare("siblings", "signals_to_child")),
    ),
    program(
        "H04",
        "connect to the host's wire in the loop's place",
        "no name leads there",
        "bound outside the box, in no box; PID 1 inherits it and listens itself",
        ("siblings", "wire"),
        no_control("a path that is bound into a box can be connected to: D02 shows that"),
    ),
    Row(
        "H05",
        "make a loop or PID 1 run code of HOME, /workspace or the environment",
        "nothing of it runs",
        "python -I -S; the environment is built by the host",
        planted,
        ran(lambda stage: stage.bare("siblings", "trusts_folder", _open(stage))),
    ),
    program(
        "H06",
        "change the guest's code, the interpreter, the loader's files",
        "EROFS, EACCES",
        "read-only binds of files that root owns",
        ("siblings", "code"),
        ran(lambda stage: stage.bare("siblings", "code", str(canary_folder(stage, "code") / "victim"))),
    ),
    *rows_jail.ROWS,
    Row(
        "H13",
        "end or stop the command spawner",
        "the next command runs",
        "PID 1 replaces it",
        respawned,
        no_control("that it ends is the control: commands share its domain"),
        "h",
    ),
    program(
        "H15",
        "every signal to the box's PID 1",
        "it lives",
        "the kernel drops what PID 1 has no handler for; Landlock's signal scope",
        ("siblings", "init"),
        ran(lambda stage: stage.bare("siblings", "kill_own")),
        user=ATTACKER,
    ),
)
