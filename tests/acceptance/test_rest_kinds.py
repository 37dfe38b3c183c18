"""What befalls boxes at rest, or on their way there, with real boxes: races, saturation, full disks, halves of a box, two servers."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ringfence.bench.cluster import cluster
from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from tests.acceptance.test_box_logs import pid1_of
from tests.acceptance.test_rest import NEVER
from tests.support.installation import Installation, eventually, installation, of_uid, until_file

RACES = 200


@pytest.fixture(scope="module")
def ours() -> Iterator[Installation]:
    """Nothing rests by itself."""
    with installation(settings=NEVER + '[limits]\ndisk = "64MiB"\n') as made:
        for name in ("ann", "ben"):
            made.ok("user", "add", name)
            made.ok("exec", name, "--", "true")
        yield made


def test_commands_that_race_a_pause(ours: Installation) -> None:
    """E78: each of 200 runs once, or is refused in words; none hangs, and each that ran left its mark."""
    if not ours.freezes("ann"):
        pytest.skip("this host cannot freeze: there is no pause")
    codes: Counter[str] = Counter()

    def pause(number: int) -> None:
        with SyncClient(socket=ours.socket) as client:
            try:
                client.pause_box("ann")
                codes["paused"] += 1
            except ApiError as error:
                codes[f"pause {error.code}"] += 1

    def command(number: int) -> str:
        with SyncClient(socket=ours.socket) as client:
            try:
                done = client.exec("ann", ["sh", "-c", f"echo {number} >> raced"], timeout=60)
            except ApiError as error:
                return error.code
            return str(done["reason"]) if done["exit_code"] != 0 else str(number)

    with ThreadPoolExecutor(8) as pool:
        pauses = [pool.submit(pause, number) for number in range(RACES // 4)]
        answers = [answer.result(timeout=300) for answer in [pool.submit(command, number) for number in range(RACES)]]
        for each in pauses:
            each.result(timeout=300)
    ran = [answer for answer in answers if answer.isdigit()]
    assert {answer for answer in answers if not answer.isdigit()} <= {"conflict", "unavailable"}
    assert sorted(ours.outcome("ann", "cat raced")["stdout"].split()) == sorted(ran)
    assert len(ran) >= RACES // 2 and codes["paused"] >= 1, (codes, len(ran))  # both sides of the race were met
    assert set(codes) <= {"paused", "pause conflict"}, codes


def test_a_saturated_box_is_neither_idle_nor_dead() -> None:
    """E76. The control is the very same box when its command has ended: then it rests."""
    with installation(settings="[rest]\npause_after = 0\nstop_after = 1\n[limits]\ncpu_milli = 200\n") as ours:
        ours.ok("user", "add", "ann")
        ours.ok("exec", "ann", "--", "true")
        spin = f"for i in 1 2 3 4 5 6 7 8; do (while [ ! -e end ]; do :; done) & done; {until_file('end')}; wait"
        with ours.popen("exec", "ann", "--", "sh", "-c", spin) as busy:
            for _ in range(5):
                # Each takes as long as it takes in a box that has a fifth of a core for nine: time enough to be idle in.
                assert ours.outcome("ann", "sleep 1")["reason"] == "exit"
                assert ours.box("ann")["observed"] == "running"
            assert busy.poll() is None
            ours.ok("exec", "ann", "--", "touch", "end")
            busy.communicate()
        assert (busy.returncode, ours.box("ann")["generation"]) == (0, 1)
        eventually(lambda: ours.box("ann")["observed"] == "stopped", 60, "it rests")


@pytest.mark.root
def test_a_full_disk_and_every_verb_that_needs_no_room(ours: Installation) -> None:
    """C53, by the command line: paused, resumed, used, copied, stopped, told of, removed."""
    ours.ok("user", "add", "cat")
    filled = ours.outcome("cat", "head -c 100M /dev/zero > /workspace/large")
    assert (filled["reason"], ours.box("cat")["disk_full"]) == ("disk_full", True)
    for _ in range(2):
        ours.ok("box", "pause", "cat")
        assert ours.box("cat")["observed"] == "paused"
        ours.ok("box", "resume", "cat")
        assert ours.outcome("cat", "echo on")["stdout"] == "on\n"
    ours.ok("box", "pause", "cat")
    assert ours.outcome("cat", "echo by use")["stdout"] == "by use\n"
    refused = ours.outcome("cat", "echo x > /workspace/y && head -c 4M /dev/zero > /workspace/z")
    assert refused["reason"] == "disk_full" and refused["disk_limit_bytes"] > 0  # typed, with its figures
    ours.ok("box", "quarantine", "cat", "--reason", "full")
    ours.ok("box", "release", "cat")
    copy = ours.ok("box", "snapshot", "cat", "--json").json()["snapshot"]["id"]
    ours.ok("box", "stop", "cat")
    assert any("stands still" in line for line in ours.ok("box", "logs", "cat", "--lines", "1000").text.splitlines())
    ours.ok("box", "restore", "cat", copy)
    assert ours.outcome("cat", "stat -c %n /workspace/large")["exit_code"] == 0
    ours.ok("files", "rm", "cat", "/workspace/large")
    assert ours.outcome("cat", "echo room > /workspace/y")["exit_code"] == 0  # control: only room was missing
    ours.ok("user", "rm", "--purge", "cat")


@pytest.mark.root
def test_a_box_of_which_half_is_dead_is_given_up_and_the_next_command_has_a_new_one(ours: Installation) -> None:
    """F45: PID 1 is there and answers nobody. The one beside it, frozen by hand, goes on and is the same."""
    ours.ok("exec", "ann", "--", "sh", "-c", "echo kept > kept; (exec sleep 553 >/dev/null 2>&1) &")
    whole = ours.ok("exec", "ben", "--", "readlink", "/proc/self/ns/pid").text
    generation, uid = ours.box("ann")["generation"], ours.box("ann")["uid"]
    ours.ok("box", "pause", "ben")
    ours.kill()
    os.kill(pid1_of(uid), signal.SIGSTOP)
    ours.start()
    assert ours.outcome("ann", "cat kept")["stdout"] == "kept\n"
    assert ours.box("ann")["generation"] == generation + 1
    assert not any("sleep 553" in _command(pid) for pid in of_uid(uid))
    assert ours.box("ben")["observed"] == "paused"
    assert ours.ok("exec", "ben", "--", "readlink", "/proc/self/ns/pid").text == whole


def test_a_server_that_dies_while_users_come_and_go_leaves_no_half_of_one(ours: Installation) -> None:
    """F11, at moments from before the request to behind its end. What was answered is so; what was not is done by the same command
    again; and no id is given to two."""
    uids: list[int] = []
    for number, moment in enumerate((0.0, 0.005, 0.02, 0.05)):
        name = f"new{number}"
        added = _cut(ours, moment, lambda client, name=name: client.add_user(name))  # type: ignore[misc]
        there = ours.run("user", "show", name).code == 0
        assert there or not added
        if not there:
            ours.ok("user", "add", name)
        assert ours.outcome(name, "echo mine > file")["exit_code"] == 0
        uids.append(ours.box(name)["uid"])
        gone = _cut(ours, moment, lambda client, name=name: client.remove_user(name, purge=True))  # type: ignore[misc]
        assert ours.run("user", "show", name).code == 4 or not gone
        ours.run("user", "rm", "--purge", name)
        ours.ok("user", "add", name)
        assert ours.outcome(name, "ls -A")["stdout"] == ""
        uids.append(ours.box(name)["uid"])
        ours.ok("user", "rm", "--purge", name)
    if os.geteuid() == 0:
        assert len(set(uids)) == len(uids)
    ours.ok("sweep")
    assert ours.ok("sweep", "--dry-run", "--json").json()["found"] == []


def _cut(ours: Installation, moment: float, ask: Callable[[SyncClient], object]) -> bool:
    """Whether it was answered, by a server that was killed so many seconds after it was asked."""
    answered: list[object] = []

    def asked() -> None:
        with contextlib.suppress(ApiError), SyncClient(socket=ours.socket) as client:
            ask(client)
            answered.append(True)

    thread = threading.Thread(target=asked)
    thread.start()
    time.sleep(moment)  # wherever the kill falls
    ours.kill()
    thread.join()
    ours.start()
    return bool(answered)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().replace(b"\0", b" ").decode(errors="replace")
    return ""


def test_who_becomes_idle_while_no_server_runs_rests_once_under_the_next() -> None:
    """E80: since when is in its row. A server that began to count anew would find it used a moment ago."""
    with installation(settings="[rest]\npause_after = 0\nstop_after = 20\n") as ours:
        ours.ok("user", "add", "ann")
        ours.ok("exec", "ann", "--", "true")
        ours.kill()
        (ours.home / "ringfence.toml").write_text("[rest]\npause_after = 0\nstop_after = 1\n")
        for _ in range(2):  # the second finds it at rest, and has nothing to do
            ours.start()
            eventually(lambda: ours.box("ann")["observed"] == "stopped", 60, "it rests")
            ours.kill()
        ours.start()
        told = [each for each in ours.ok("box", "logs", "ann").text.splitlines() if "stopped: every process" in each]
        assert len(told) == 1, told
        assert ours.outcome("ann", "true")["exit_code"] == 0


def _first(ours: Installation) -> str:
    with SyncClient(socket=ours.socket) as client:
        try:
            done: dict[str, Any] = client.exec("ann", ["readlink", "/proc/self/ns/pid"], timeout=120)
        except ApiError as error:
            return f"{error.code}: {error.message}"
        return str(done["stdout"])


def test_fifty_first_requests_at_two_servers_make_one_box() -> None:
    """E84, two kernels on one database. A box is on one host: who asks the other server is told where, and it makes none."""
    with cluster() as server:
        server.folder.chmod(0o711)  # the server's account is another one, and is to reach the socket
        of_both = f'database = "{server.create("two")}"\n{NEVER}'
        with installation(settings=of_both) as one, installation(settings=of_both) as two:
            _race(one, two)


def _race(one: Installation, two: Installation) -> None:
    one.ok("user", "add", "ann")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(_first, [one, two] * 25))
    ran = {answer for answer in answers if answer.startswith("pid:")}
    refused = {answer for answer in answers if not answer.startswith("pid:")}
    assert len(ran) == 1, answers
    assert all(answer.startswith("unavailable: the box of ann is on installation") for answer in refused), refused
    told = {
        (row["box"], row["generation"]) for each in (one, two) for row in each.ok("box", "ls", "--json").json()["boxes"]
    }
    assert len(told) == 1 and {generation for _, generation in told} == {1}, told
    [(box, _)] = told
    has = [each for each in (one, two) if (each.home / "boxes" / box).exists()]
    assert len(has) == 1
    has[0].ok("user", "rm", "--purge", "ann")
