"""Group M: servers that are killed, boxes that outlive them, names and ids that come back. In an installation of its own,
whose server may be killed at any time."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from ringfence.bench.throwaway import Installation
from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from ringfence.prove import apart, remains
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.outside import lives
from ringfence.prove.row import NotHere, Row, Tries, no_control, ran
from ringfence.prove.rows_i import ids_come_back_unused, runs_under_it
from ringfence.prove.rows_rest import ROWS as REST
from ringfence.prove.stage import Stage

SECONDS = 20.0
NAMES = ("a_b", "A_B", "a.b", "a-b", "\u00e9", "\u7ecf\u6d4e")
REFUSED = ("a/b", "a%2fb", "..", "e\u0301", "x" * 300, "dot.", "a\0b")
KILLS = (0.0, 0.03, 0.08)  # seconds after a start was asked for; a start takes some 60 ms


class Life:
    """One installation, its server killed again and again."""

    def __init__(self, made: Installation) -> None:
        self.made = made

    def shell(self, user: str, script: str) -> str:
        """stdout, or the word for why there is none."""
        with closing(SyncClient(socket=self.made.socket)) as client:
            try:
                return str(client.exec(user, ["sh", "-c", script], timeout=SECONDS).get("stdout"))
            except ApiError as error:
                return f"{DONE} {error.code}"

    def add(self, user: str) -> str:
        with closing(SyncClient(socket=self.made.socket)) as client:
            client.add_user(user)
            client.start_box(user)
        return user

    def namespace(self, user: str) -> str:
        return self.shell(user, "readlink /proc/self/ns/pid")

    def again(self) -> None:
        self.made.kill()
        self.made.start()

    def all(self) -> dict[str, Tries]:
        told: dict[str, Tries] = {}
        told |= self.strangers()
        told |= self.goes_on()
        told |= self.half_made()
        told |= self.two_servers()
        return told

    # --- M05

    def strangers(self) -> dict[str, Tries]:
        """The record of a box names a process that is not its PID 1: it is neither adopted nor killed."""
        user = self.add("mila")
        before = self.namespace(user)
        with closing(SyncClient(socket=self.made.socket)) as client:
            box = str(client.box(user)["box"])
        self.again()
        adopted = self.namespace(user) == before
        record = self.made.home / "boxes" / box / "live.json"
        stranger = subprocess.Popen(["/bin/sleep", "120"])
        try:
            self.made.kill()
            live = json.loads(record.read_text())
            live["identity"]["pid"] = live["outer_pid"] = stranger.pid
            record.write_text(json.dumps(live))
            self.made.start()
            with closing(SyncClient(socket=self.made.socket)) as client:
                client.stop_box(user)
            survived = stranger.poll() is None
            works = self.shell(user, "echo works") == "works\n"
        finally:
            stranger.kill()
            stranger.wait()
        return {
            "M05": Tries(
                {
                    "stranger": "left alone" if survived else f"{DONE} killed",
                    "box": "starts anew" if works else f"{DONE} does not start",
                }
            ),
            "M05 control": Tries({"its own PID 1": DONE if adopted else "not adopted"}),
        }

    # --- M06, M07

    def goes_on(self) -> dict[str, Tries]:
        """A command that writes without end, and a turn whose command is under way, when the server dies."""
        user = self.add("milo")
        script = "(while :; do echo t >> ticks; echo noise; sleep 0.05; done) & sleep 60"
        with ThreadPoolExecutor(2) as pool:
            writer = pool.submit(self.shell, user, script)
            turn = pool.submit(self._turn, user, "$ sleep 2; echo effect >> effects; echo end-of-step")
            time.sleep(1.0)
            before = self.namespace(user)
            self.again()
            writer.exception()
            reply = turn.result()
        first = int(self.shell(user, "wc -l < ticks") or 0)
        time.sleep(0.5)
        grew = int(self.shell(user, "wc -l < ticks") or 0) > first
        same = self.namespace(user) == before
        effects = self.shell(user, "cat effects").split()
        return {
            "M06": Tries({"box": "goes on" if grew and same else f"{DONE} grew: {grew}, the same: {same}"}),
            "M07": Tries(
                {
                    "turn": "completed" if reply == "completed" else f"{DONE} {reply}",
                    "effect": "once" if effects == ["effect"] else f"{DONE} {len(effects)} times",
                }
            ),
        }

    def _turn(self, user: str, text: str) -> str:
        with closing(SyncClient(socket=self.made.socket, act_as=user)) as acting:
            try:
                answer: dict[str, Any] = acting.say("work", text)
                return str(answer["status"])
            except ApiError as error:
                return error.code

    # --- M12

    def half_made(self) -> dict[str, Tries]:
        """The server dies at some moment of a box's making and start; the next one repairs or removes."""
        told = {}
        for number, pause in enumerate(KILLS):
            user = f"half{number}"
            with closing(SyncClient(socket=self.made.socket)) as client:
                client.add_user(user)
            starting = self.made.popen("exec", user, "--", "true")
            time.sleep(0.3 + pause)
            self.made.kill()
            starting.communicate()
            self.made.start()
            works = self.shell(user, "echo works") == "works\n"
            told[f"killed at {pause:.2f} s"] = "works after" if works else f"{DONE} does not start"
        with closing(SyncClient(socket=self.made.socket)) as client:
            left = client.sweep(dry_run=True)["found"]
        told["left behind"] = f"{DONE} {left}" if left else "nothing"
        return {"M12": Tries(told)}

    # --- M13

    def two_servers(self) -> dict[str, Tries]:
        second = Installation(self.made.home, site=self.made.site, apart=True)
        process = second.start(wait=False)
        code = process.wait(SECONDS * 2)
        if process.stdout is not None:
            process.stdout.close()
        user = "both"
        with closing(SyncClient(socket=self.made.socket)) as client:
            client.add_user(user)
        with ThreadPoolExecutor(8) as pool:
            spaces = set(pool.map(lambda _: self.namespace(user), range(16)))
        self.made.stop()
        self.made.start()
        return {
            "M13": Tries(
                {
                    "a second server": "refused" if code == 5 else f"{DONE} exit {code}",
                    "16 first requests": "one box" if len(spaces) == 1 else f"{DONE} {len(spaces)} boxes",
                }
            ),
            "M13 control": Tries(
                {"once the first has ended": DONE if self.namespace(user) in spaces else "not started"}
            ),
        }


def lived(stage: Stage) -> dict[str, Tries]:
    with apart.installation(stage) as made:
        made.start()
        return Life(made).all()


def of_life(row_id: str) -> Callable[[Stage, str], Tries]:
    return lambda stage, _runner: stage.once("life", lived)[row_id]


# --- on the stage itself ----------------------------------------------------------------------------------------------


def names(stage: Stage, _runner: str) -> Tries:
    """M09."""
    taken, told = {}, {}
    for name in NAMES:
        stage.client.add_user(name)
        taken[name] = str(stage.box(name)["box"])
    for name in REFUSED:
        try:
            stage.client.add_user(name)
            told[repr(name[:20])] = f"{DONE} taken"
        except ApiError as error:
            told[repr(name[:20])] = error.code
    shown = [box for name, box in taken.items() if name in box]
    for name in NAMES:
        stage.client.remove_user(name, purge=True)
    distinct = "distinct boxes, without names in them" if len(set(taken.values())) == len(NAMES) and not shown else DONE
    return Tries({**told, "the others": distinct})


def deleted_at_work(stage: Stage, _runner: str) -> Tries:
    """M11."""
    user = stage.user("max")
    acting, box = stage.acting(user), stage.box(user)
    posted = acting.post_message("at-work", "$ sleep 60")
    until = time.monotonic() + 5
    while stage.client.run(posted["run"])["state"] == "queued" and time.monotonic() < until:
        time.sleep(0.05)
    running = stage.processes(user) if stage.mode != "shared" else []
    stage.client.remove_user(user, purge=True)
    left = [pid for pid in running if lives(pid)]
    state = stage.client.run(posted["run"])["state"]
    groups = [str(path) for path in remains.cgroups(stage.installation, str(box["box"]))]
    tree = stage.made.home / "boxes" / str(box["box"])
    return Tries(
        {
            "processes": f"{DONE} {left}" if left else "none",
            "run": state if state in ("cancelled", "failed") else f"{DONE} {state}",
            "cgroups": f"{DONE} {groups}" if groups else "none",
            "tree": f"{DONE} {tree}" if tree.exists() else "gone",
        }
    )


def killed_while_frozen(stage: Stage, _runner: str) -> Tries:
    """M04."""
    user = stage.user("milan")
    box = str(stage.box(user)["box"])
    running = stage.processes(user)
    try:
        stage.client.pause_box(user)
    except ApiError as error:
        if error.code == "unavailable":
            raise NotHere("this host gives the server nothing to freeze a box with") from None
        raise
    stage.client.stop_box(user)
    left = [pid for pid in running if lives(pid)]
    groups = [str(path) for path in remains.cgroups(stage.installation, box)]
    again = stage.client.exec(user, ["echo", "works"]).get("stdout")
    return Tries(
        {
            "processes": f"{DONE} {left}" if left or not running else "none",
            "cgroups": f"{DONE} {groups}" if groups else "none",
            "next start": "works" if again == "works\n" else f"{DONE} {again}",
        }
    )


def at_work(stage: Stage) -> Tries:
    """Its control: a run whose user is not removed goes on."""
    user = stage.user("mona")
    posted = stage.acting(user).post_message("still-at-work", "$ sleep 1")
    time.sleep(0.3)
    state = stage.client.run(posted["run"])["state"]
    return Tries({"run": DONE if state not in ("cancelled", "failed") else state})


ROWS: tuple[Row, ...] = (
    *REST,
    Row(
        "M04",
        "kill while frozen",
        "ends, nothing left",
        "cgroup.kill; v1: kill, then thaw",
        killed_while_frozen,
        no_control("by the v1 freezer alone a kill stays pending until the thaw (hardening.md)"),
        "h",
    ),
    Row(
        "M05",
        "a stranger has the pid of a box's record",
        "neither adopted nor killed",
        "boot id, pid, start time and pidfd inode together",
        of_life("M05"),
        ran(lambda stage: of_life("M05 control")(stage, "h")),
        "h",
        play="life",
    ),
    Row(
        "M06",
        "the server dies while a command writes",
        "the box goes on",
        "boxes are no children that end with it; output goes over the wire",
        of_life("M06"),
        no_control("a writer into a pipe whose reader has died ends by SIGPIPE (hardening.md)"),
        "h",
        play="life",
    ),
    Row(
        "M07",
        "the server dies in the middle of a turn",
        "its command runs once, the turn completes",
        "the host dials again; keys of commands; reports kept until acknowledged",
        of_life("M07"),
        no_control("a second start of the same step would have left its effect twice"),
        "h",
        play="life",
    ),
    Row(
        "M08",
        "processes, keys and files under the id of a removed user",
        "none",
        "ids of homes are never used again; a sweep by id",
        ids_come_back_unused,
        ran(runs_under_it),
        "h",
    ),
    Row(
        "M09",
        "names that a file system would take for one",
        "distinct, or refused",
        "random box ids; names are compared exactly",
        names,
        no_control("no part of the product makes a path of a name"),
        "h",
    ),
    Row(
        "M11",
        "a user removed at work",
        "cancelled, nothing left",
        "ordered teardown",
        deleted_at_work,
        ran(at_work),
        "h",
    ),
    Row(
        "M12",
        "the server dies while a box is made",
        "the next one repairs it",
        "steps that can be done again; a sweep at start",
        of_life("M12"),
        no_control("each moment is one of the product's own: there is no wall to leave out"),
        "h",
        play="life",
    ),
    Row(
        "M13",
        "two servers for one state, many first requests",
        "one box",
        "one lock; single flight",
        of_life("M13"),
        ran(lambda stage: of_life("M13 control")(stage, "h")),
        "h",
        play="life",
    ),
)
