"""Where rows play: a throw-away server, its users and boxes, the canaries, and every place that an attack is made from.

Made and struck by building.py. Blocking; safe to use from several threads at once. Must never touch another installation.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringfence.bench.throwaway import Installation
from ringfence.client.sync import SyncClient
from ringfence.prove import jail, programs
from ringfence.prove.copied import JAIL, MARK
from ringfence.prove.row import NotHere, ProgramFailed, Tries
from ringfence.prove.world import World

PYTHON = "/usr/bin/python3"
VICTIM, ATTACKER = "alice", "bob"  # whose flag it is, and who wants it
FLAG = "flag.txt"  # in the victim's HOME
# A skill's jail has limits of its own, smaller ones (kernel/boxes.py). Its disk is that of every box here
# (building.SETTINGS).
JAIL_SIZE = {"memory": 512 << 20, "pids": 128, "cpu_milli": 1000, "nofile": 4096, "shm": 64 << 20, "run": 1 << 20}
JAIL_PLACE = "/workspace"


@dataclass(frozen=True, slots=True)
class Canaries:
    """What no attack may read or change."""

    flag: str  # content of the victim's file; in the drills of a message of the victim's, too
    host: Path  # a directory of the host with `secret` (anyone may read it) and `open` (anyone may write in it)
    secret: str  # content of host/secret
    vault_key: bytes


@dataclass
class Stage:
    root: Path  # of everything that prove makes: 0711
    made: Installation
    client: SyncClient  # as operator
    canaries: Canaries
    installation: str
    ids: tuple[int, int]  # host ids of the installation; (0, 0) for an ordinary user
    mode: str  # root, subuid, shared
    world: World  # outside of every box
    key: int | None = None  # that the server has in its session keyring (planted.py)
    left: list[str] = field(default_factory=list)  # what could not be taken away again, of this and of plays apart
    _users: set[str] = field(default_factory=set)
    _actors: dict[str, SyncClient] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _once: dict[str, Future[dict[str, Tries]]] = field(default_factory=dict)

    def once(self, name: str, play: Callable[[Stage], dict[str, Tries]]) -> dict[str, Tries]:
        """What `play` came to, row by row: played by whoever asks first, for rows that share an installation of their
        own. Its error is everybody's."""
        with self._lock:
            first = name not in self._once
            kept = self._once.setdefault(name, Future())
        if first:
            try:
                kept.set_result(play(self))
            except BaseException as error:
                kept.set_exception(error)
        return kept.result()

    # --- people and boxes

    def user(self, name: str, **limits: int) -> str:
        """Makes the user when there is none of that name, with these limits, and starts its box."""
        with self._lock:
            if name not in self._users:
                self.client.add_user(name)
                if limits:
                    self.client.set_limits(name, limits)
                self.client.start_box(name)
                self._users.add(name)
        return name

    def box(self, user: str) -> dict[str, Any]:
        """The object of `box show --json`."""
        answer = self.client.box(user)
        assert isinstance(answer, dict)
        return answer

    def acting(self, user: str) -> SyncClient:
        """The SDK as that user."""
        with self._lock:
            if user not in self._actors:
                self._actors[user] = SyncClient(socket=self.made.socket, act_as=user)
            return self._actors[user]

    def directory(self, user: str) -> Path:
        """The box's directory on the host: H/boxes/<id>."""
        return self.made.home / "boxes" / str(self.box(user)["box"])

    def processes(self, user: str) -> list[int]:
        """Host pids of the box. NotHere: every box has the server's own id, so that nobody can tell them apart by it."""
        if self.mode == "shared":
            raise NotHere("all boxes share the server's id here")
        uid = int(self.box(user)["uid"])
        return [pid for pid in _pids() if _uid(pid) == uid]

    # --- places

    def exec(
        self, user: str, argv: list[str], stdin: bytes | None = None, timeout: float = 30.0, cwd: str | None = None
    ) -> dict[str, Any]:
        """The object of `exec --json`."""
        answer = self.client.exec(self.user(user), argv, stdin=stdin, timeout=timeout, cwd=cwd)
        assert isinstance(answer, dict)
        return answer

    def shell(self, user: str, script: str, timeout: float = 30.0) -> dict[str, Any]:
        return self.exec(user, ["sh", "-c", script], timeout=timeout)

    def attack(self, runner: str, user: str, module: str, name: str, *arguments: str, timeout: float = 30.0) -> Tries:
        """The program `name` of attacks/<module>.py from the place that the letter stands for. NotHere, ProgramFailed."""
        text = programs.payload(module, name, arguments)
        if runner == "e":
            return self._loop(user, text)
        if runner == "k":
            return self.in_jail(JAIL, text, timeout)
        if runner != "s":
            raise ValueError(f"no runner {runner!r}")
        outcome = self.exec(user, ["python3", "-I", "-c", programs.COMMAND], text.encode(), timeout)
        return said(str(outcome.get("stdout", "")), outcome)

    def in_jail(self, jail: str, text: str, timeout: float = 30.0) -> Tries:
        """A payload as a program of a jail, whose user has nothing else (copied.py)."""
        command = ["python3", "-I", "-c", programs.COMMAND]
        outcome = self.exec(self.user(jail, **JAIL_SIZE), command, text.encode(), timeout, JAIL_PLACE)
        return said(str(outcome.get("stdout", "")), outcome)

    def _loop(self, user: str, text: str) -> Tries:
        """In the process of an agent loop of the user's, which does what the message says (copied.py)."""
        acting = self.acting(self.user(user))
        answer = acting.say(f"prove-{user}-{next(self._numbers)}", MARK + text)
        return said(str(answer.get("reply") or ""), answer)

    # --- controls

    def bare(self, module: str, name: str, *arguments: str, timeout: float = 30.0) -> Tries:
        """The same program in no box at all, as an account without rights."""
        text = programs.payload(module, name, arguments)
        return said(jail.bare(self._control_id(), text, timeout))

    def loose(
        self,
        module: str,
        name: str,
        *arguments: str,
        without: tuple[str, ...] = (),
        extra: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Tries:
        """The same program in the product's own profile, with the operations of `without` left out (their first words,
        e.g. `--seccomp`, `--remount-ro /`), and further arguments of bubblewrap's at the end."""
        text = programs.payload(module, name, arguments)
        room = jail.Room(self.root / "loose", self._control_id(), without, extra, environment or {})
        return said(jail.loose(room, text, timeout))

    def rooted(self, module: str, name: str, *arguments: str) -> Tries:
        """The same program as the host's root, for those that open or ask and change nothing. NotHere: no root here."""
        if os.geteuid() != 0:
            raise NotHere("the control needs root")
        return said(jail.bare(None, programs.payload(module, name, arguments), 30.0))

    def as_box(self, user: str, module: str, name: str, *arguments: str) -> Tries:
        """The same program on the host, with nothing of the box but its id. NotHere: only root can take an id."""
        if self.mode != "root":
            raise NotHere("only root can take the id of a box")
        return said(jail.bare(int(self.box(user)["uid"]), programs.payload(module, name, arguments), 30.0))

    def _control_id(self) -> int | None:
        """The last id of the installation, which no box gets before 131,071 others; None: the caller's own."""
        return self.ids[1] if os.geteuid() == 0 else None

    def close(self) -> None:
        for client in (self.client, *self._actors.values()):
            client.close()


def said(output: str, context: object = "") -> Tries:
    """ProgramFailed: it is no answer of a program."""
    try:
        outcomes = programs.last_line(output)
    except ValueError as error:
        raise ProgramFailed(f"{error}: {json.dumps(context, default=str)[:600]}") from None
    if set(outcomes) == {"failed"}:
        raise ProgramFailed(outcomes["failed"])
    return Tries(outcomes)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _uid(pid: int) -> int:
    """The real uid by its status: the directory of a process that is not dumpable belongs to root."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return -1
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), -1)
