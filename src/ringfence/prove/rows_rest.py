"""Rows of group M about boxes at rest: what would evade a pause, what is under way when it comes, verbs against each other."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import cycle, islice
from pathlib import Path

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.outside import lives
from ringfence.prove.row import NotHere, Row, Tries, no_control, ran
from ringfence.prove.stage import Stage

# Forks as fast as it may, each in a session of its own, each busy; a second one that only counts.
STORM = (
    "(while :; do setsid sh -c 'while :; do :; done' >/dev/null 2>&1 & sleep 0.05; kill $! 2>/dev/null; done) >/dev/null 2>&1 & "
    "(while :; do :; done) >/dev/null 2>&1 & echo up"
)
LOOK = 0.5  # seconds between two looks at what stands still; a box at work uses some hundred ticks in them
RACES = 66
ASKS = 'import urllib.request as u; u.urlopen("http://example.invalid")'  # its answer is a refusal, by a worker
VERBS = ("pause", "exec", "resume", "stop", "exec", "start", "pause", "stop", "pause", "exec", "resume")
REFUSALS = ("conflict", "unavailable", "box_lost")


def evades(stage: Stage, _runner: str) -> Tries:
    """M01."""
    user = stage.user("rita")
    stage.client.exec(user, ["sh", "-c", STORM])
    _pause(stage, user)
    before, pids = _ticks(stage, user), set(stage.processes(user))
    time.sleep(LOOK)
    after, now = _ticks(stage, user), set(stage.processes(user))
    stage.client.resume_box(user)
    went_on = _grows(stage, user)
    stage.client.stop_box(user)
    return Tries(
        {
            "processor": "none used" if after == before else f"{DONE} {after - before} ticks",
            "new processes": "none" if now <= pids else f"{DONE} {len(now - pids)}",
            "goes on": "when it is resumed" if went_on else f"{DONE} stands still for good",
        }
    )


def stopped_by_signal(stage: Stage) -> Tries:
    """Its control: what a signal to PID 1 stops is PID 1."""
    user = stage.user("rosa")
    stage.client.exec(user, ["sh", "-c", STORM])
    identity = min(stage.processes(user))
    os.kill(identity, signal.SIGSTOP)
    grows = _grows(stage, user)
    os.kill(identity, signal.SIGCONT)
    stage.client.stop_box(user)
    return Tries({"SIGSTOP": f"{DONE} goes on" if grows else "stands still"})


def under_way(stage: Stage, _runner: str) -> Tries:
    """M02."""
    user = stage.user("rolf")
    stage.client.start_box(user)
    posted = stage.acting(user).post_message("over-a-pause", f"$ python3 -c '{ASKS}'; sleep 60")
    _until(lambda: stage.client.run(posted["run"])["state"] == "running")
    _until(lambda: stage.box(user)["egress"].get("worker"))
    worked = stage.box(user)["egress"].get("worker")
    told = {"a live run": f"{DONE} is frozen"}
    with suppress(_Refused):
        told["a live run"] = _refused(lambda: _pause(stage, user))
    _pause(stage, user, force=True)
    state = stage.client.run(posted["run"])
    told["when forced"] = "waits" if state["state"] == "queued" else f"{DONE} {state['state']}"
    told["way out"] = f"{DONE} a worker lives" if stage.box(user)["egress"].get("worker") else "no worker"
    if not worked:  # else it was closed before
        told["way out"] = f"{DONE} not used before"
    stage.client.remove_user(user, purge=True)
    return Tries(told)


def raced(stage: Stage, _runner: str) -> Tries:
    """M03."""
    user = stage.user("rudi")
    stage.client.exec(user, ["sh", "-c", "echo kept > file"])
    verbs = list(islice(cycle(VERBS), RACES))
    with ThreadPoolExecutor(6) as threads:
        odd = sorted({word for word in threads.map(lambda verb: _asked(stage, user, verb), verbs) if word})
    works = stage.client.exec(user, ["cat", "file"]).get("stdout")
    stage.client.stop_box(user)
    left = [pid for pid in stage.processes(user) if lives(pid)] if stage.mode != "shared" else []
    return Tries(
        {
            "answers": f"{DONE} {odd}" if odd else "carried out, or refused in words",
            "files": "kept" if works == "kept\n" else f"{DONE} {works}",
            "after a stop": f"{DONE} {left}" if left else "no process",
        }
    )


class _Refused(Exception):
    pass


def _refused(work: object) -> str:
    """How a refusal is said. _Refused: it was done."""
    assert callable(work)
    try:
        work()
    except ApiError as error:
        return str(error.code)
    raise _Refused


def _asked(stage: Stage, user: str, verb: str) -> str:
    """ "": done, or refused in words."""
    with closing(SyncClient(socket=stage.made.socket)) as client:
        try:
            if verb == "exec":
                client.exec(user, ["true"], timeout=30.0)
            else:
                getattr(client, f"{verb}_box")(user)
        except ApiError as error:
            return "" if error.code in REFUSALS else f"{error.code}: {error.message[:100]}"
    return ""


def _pause(stage: Stage, user: str, *, force: bool = False) -> None:
    try:
        stage.client.pause_box(user, force=force)
    except ApiError as error:
        if error.code == "unavailable":
            raise NotHere("this host gives the server nothing to freeze a box with") from None
        raise


def _until(true: object, seconds: float = 10.0) -> None:
    assert callable(true)
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.05)


def _grows(stage: Stage, user: str) -> bool:
    before = _ticks(stage, user)
    time.sleep(LOOK)
    return _ticks(stage, user) > before


def _ticks(stage: Stage, user: str) -> int:
    """Of processor, of all processes of the box and of children that they have waited for: proc(5), fields 14 to 17."""
    total = 0
    for pid in stage.processes(user):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(each) for each in fields[11:15])
    return total


ROWS: tuple[Row, ...] = (
    Row(
        "M01",
        "a process evades a pause: a fork storm, sessions of their own",
        "all stand still",
        "cgroup.freeze until it says frozen; v1: the freezer",
        evades,
        ran(stopped_by_signal),
        "h",
    ),
    Row(
        "M02",
        "a run under way when its box is paused",
        "refused; when forced it waits, and the way out is closed",
        "the pause takes the box's lock, and holds its user's runs back before it puts them back",
        under_way,
        no_control("a run whose box is frozen under it would wait in its loop, with its lease"),
        "h",
    ),
    Row(
        "M03",
        "pause, resume, stop, start and commands raced",
        "one legal state, nothing left",
        "one lock for each box; the table of states",
        raced,
        no_control("what two verbs at once leave depends on their order; the lock is the order"),
        "h",
    ),
)
