"""The drills D-1 to D-7: a scope of our own code broken on purpose, on a real server with real boxes, and what a second
wall then still holds.

Each drill is played twice on one server (drill_breaks.py): with the scope broken, where nothing of the victim's may come
out, and with the second wall taken away as well, where it must, or the drill shows nothing. What has no second wall is
listed in docs/threats.md. All are played in one go, once, however many of their rows are asked for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from ringfence.client.errors import ApiError
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.drill_stage import DIARY, OWN, THREADS, USERS, Answer, DrillStage, drill_stage
from ringfence.prove.outward_stage import holding, program
from ringfence.prove.row import NotHere, ProgramFailed, Tries
from ringfence.prove.stage import ATTACKER, FLAG, VICTIM
from ringfence.prove.world import API, MINE

Outcomes = dict[str, str]
RUN_SECONDS = 30.0
_CAT = f"cat /home/user/{FLAG}"


@dataclass(frozen=True, slots=True)
class Played:
    """What came of one drill: with the wall, and without it."""

    walled: Outcomes
    open: Outcomes


# --- D-1: web takes bob for alice ------------------------------------------------------------------------------------


def _as_victim(stage: DrillStage) -> Outcomes:
    """Everything of the victim's that the victim could have, asked for over the attacker's connection."""
    made = stage.ask(ATTACKER, "POST", f"{USERS}/{VICTIM}/tokens", {"scopes": ["user"], "note": "", "ttl_seconds": 60})
    return {
        "box": stage.leaked(stage.exec(ATTACKER, VICTIM, _CAT)),
        "files": stage.leaked(stage.get_file(ATTACKER, VICTIM, FLAG)),
        "credentials": f"{DONE} a token of the victim's" if made.status < 300 else made.refusal,
        "thread": stage.leaked(stage.messages(ATTACKER, DIARY)),
    }


def d1(stage: DrillStage) -> Played:
    found: list[Outcomes] = []
    for walls in ((), ("seal",)):
        outcomes: Outcomes = {}
        for how in ("swap", "edit"):
            stage.broken("D-1", *walls, how=how)
            stage.messages(VICTIM, DIARY)  # so that the mix-up has somebody to take the attacker for
            outcomes |= {f"{how}: {name}": word for name, word in _as_victim(stage).items()}
        found.append(outcomes)
    return Played(*found)


# --- D-2, D-4: the wrong tree ----------------------------------------------------------------------------------------


@contextmanager
def _world_readable(stage: DrillStage) -> Iterator[None]:
    """The second wall taken away: the victim's tree is open to every uid."""
    if stage.stage.mode != "root":
        raise NotHere("only root can open a tree of another id")
    folders = [stage.tree(VICTIM), *(stage.tree(VICTIM) / part for part in ("home", "workspace"))]
    modes = [folder.stat().st_mode & 0o7777 for folder in folders]
    try:
        for folder in folders:
            folder.chmod(0o755)
        yield
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)


def _own_uids(stage: DrillStage) -> None:
    if stage.stage.mode == "shared":
        raise NotHere("all boxes share one id here: there is no second wall, and the mode is for one tenant only")


def _without_modes(stage: DrillStage, attack: Callable[[], Outcomes]) -> Outcomes:
    try:
        with _world_readable(stage):
            return attack()
    except NotHere as reason:
        return {"not shown": str(reason)}


def d2(stage: DrillStage) -> Played:
    _own_uids(stage)
    stage.broken("D-2", box=_box(stage, VICTIM))

    def attack() -> Outcomes:
        put = stage.ask(ATTACKER, "GET", f"{USERS}/{ATTACKER}/files/list?path=.")
        seen = f"{DONE} the victim's folder" if FLAG.encode() in put.body else put.refusal
        return {"get": stage.leaked(stage.get_file(ATTACKER, ATTACKER, FLAG)), "list": seen}

    return Played(attack(), _without_modes(stage, attack))


def d4(stage: DrillStage) -> Played:
    _own_uids(stage)

    def attack() -> Outcomes:
        stage.stage.client.stop_box(ATTACKER)
        stage.broken("D-4", box=_box(stage, VICTIM))
        try:
            return {"read in the box": stage.leaked(stage.exec(ATTACKER, ATTACKER, _CAT))}
        finally:
            stage.mended()
            stage.stage.client.stop_box(ATTACKER)

    return Played(attack(), _without_modes(stage, attack))


def _box(stage: DrillStage, user: str) -> str:
    return str(stage.stage.box(user)["box"])


# --- D-3: the broker attaches the wrong run --------------------------------------------------------------------------


def d3(stage: DrillStage) -> Played:
    """The attacker's loop ends its run, and the broker takes that for the victim's: the attacker's words would be the
    reply in the victim's thread."""
    walled = {
        "token": _finish_for(stage, ()),
        "box, had there been no token": _finish_for(stage, ("token",)),
    }
    return Played(walled, {"neither": _finish_for(stage, ("token", "box"))})


def _finish_for(stage: DrillStage, walls: tuple[str, ...]) -> str:
    mark = f"words-{os.urandom(6).hex()}"
    victim, attacker = stage.stage.acting(VICTIM), stage.stage.acting(ATTACKER)
    thread = f"work-{mark[-6:]}"
    theirs = victim.post_message(thread, "$ sleep 20")
    _await(lambda: victim.run(theirs["run"])["state"] == "running", "the victim's run")
    mine = attacker.post_message(f"own-{mark[-6:]}", f"$ sleep 1; echo {mark}")
    stage.broken("D-3", *walls, run=mine["run"], other=theirs["run"])
    try:
        _await(lambda: attacker.turn(mine["turn"])["state"] in ("completed", "failed", "cancelled")
               or victim.turn(theirs["turn"])["state"] == "completed", "an end")  # fmt: skip
        reply = str(victim.turn(theirs["turn"]).get("reply") or "")
        state = attacker.turn(mine["turn"])["state"]
    finally:
        stage.mended()
        for client, said in ((victim, theirs), (attacker, mine)):
            with suppress(ApiError):
                client.cancel_run(said["run"])
    return f"{DONE} the attacker's words are the victim's reply" if mark in reply else f"the attacker's run {state}"


def _await(true: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + RUN_SECONDS
    while not true():
        if time.monotonic() > until:
            raise ProgramFailed(f"not within {RUN_SECONDS:.0f} s: {what}")
        time.sleep(0.05)


# --- D-5: the wrong worker -------------------------------------------------------------------------------------------


def d5(stage: DrillStage) -> Played:
    """What listens for the attacker's commands is given to the victim's worker, which has the victim's value. The attacker even
    knows the placeholder of a command of the victim's that is at work."""
    outside = stage.stage
    program(outside, ATTACKER, "reached", API)  # each has a worker of its own
    with holding(outside, VICTIM) as held:
        program(outside, VICTIM, "used", API, f"{MINE}/own")

        def attack(*walls: str) -> Outcomes:
            path = f"{MINE}/drill-{os.urandom(4).hex()}"
            stage.broken("D-5", *walls, box=_box(stage, VICTIM))
            own = program(outside, ATTACKER, "used", API, f"{path}-own").outcomes["used"]
            taken = program(outside, ATTACKER, "stolen", API, path, held.token).outcomes
            stage.mended()
            value = outside.world.secret(VICTIM)
            got = any(path in each.line and each.holds(value) for each in outside.world.at(API))
            return {
                "his own placeholder": own,
                "hers": taken["1: own proxy"],
                "hers, past the proxy": taken["1: transparent"],
                "at the server": f"{DONE} the victim's value" if got else "nothing of hers",
            }

        walled, unattributed = attack(), attack("attribution")
    for user in (VICTIM, ATTACKER):  # no worker goes on with the wrong socket
        outside.client.stop_box(user)
    return Played(walled, {name: unattributed[name] for name in ("hers", "at the server")})


# --- D-6: a query without its filter ---------------------------------------------------------------------------------


def d6(stage: DrillStage) -> Played:
    def attack(*walls: str) -> Outcomes:
        stage.broken("D-6", *walls)
        return {
            "box": stage.leaked(stage.get_file(ATTACKER, ATTACKER, FLAG)),
            "messages": stage.leaked(stage.messages(ATTACKER, OWN)),
        }

    walled = attack()
    third = attack("keys")  # of the box alone: messages have no third wall
    walled["box, had the rows no keys"] = third["box"]
    return Played(walled, attack("keys", "owner"))


# --- D-7: nobody, and a cache that answers for another ---------------------------------------------------------------


def d7(stage: DrillStage) -> Played:
    def nobody() -> Outcomes:
        own = stage.exec(ATTACKER, ATTACKER, "echo served")
        listed = stage.ask(ATTACKER, "GET", THREADS)
        return {
            "box": stage.leaked(stage.exec(ATTACKER, VICTIM, _CAT)),
            "thread": stage.leaked(stage.messages(ATTACKER, DIARY)),
            "own box": _served(own, b"served"),
            "threads": _served(listed, DIARY.encode()),
        }

    def cached(*walls: str) -> Outcomes:
        stage.broken("D-7", *walls, how="cache")
        stage.exec(VICTIM, VICTIM, "true")  # the cache's one entry
        return {"cache": stage.leaked(stage.exec(ATTACKER, ATTACKER, _CAT))}

    stage.broken("D-7", how="nobody")
    walled = {f"nobody: {name}": word for name, word in nobody().items()}
    stage.broken("D-7", "seal", how="nobody")
    walled |= {f"nobody, unsealed: {name}": word for name, word in nobody().items()}
    walled |= cached()
    stage.mended()
    honest = {"an honest actor is served": _served(stage.exec(ATTACKER, ATTACKER, "echo served"), b"served")}
    return Played(walled, {**honest, **cached("owner")})


def _served(answer: Answer, part: bytes) -> str:
    return f"{DONE} served" if answer.status == 200 and part in answer.body else answer.refusal


# --- all of them -----------------------------------------------------------------------------------------------------

DRILLS: dict[str, Callable[[DrillStage], Played]] = {
    "D-1": d1,
    "D-2": d2,
    "D-3": d3,
    "D-4": d4,
    "D-5": d5,
    "D-6": d6,
    "D-7": d7,
}


@dataclass
class Drills:
    """Plays them when the first is asked for. Safe to use from several threads at once."""

    left: list[str] = field(default_factory=list)  # what could not be taken away again: no drill is to blame
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _played: dict[str, Played | Exception] = field(default_factory=dict)

    def played(self, name: str) -> Played:
        """NotHere; ProgramFailed; CommandFailed: no server can be run here."""
        with self._lock:
            if not self._played:
                try:
                    self._play()
                except Exception as error:  # no server: the same for every drill that was not played
                    if self._played:
                        self.left.append(f"the drills' server: {type(error).__name__}: {error}"[:400])
                    self._played = {**dict.fromkeys(DRILLS, error), **self._played}
        found = self._played[name]
        if isinstance(found, Exception):
            raise found
        return found

    def walled(self, name: str) -> Tries:
        return Tries(self.played(name).walled)

    def shown(self, name: str) -> Tries:
        """NotHere: this account cannot take the wall away."""
        outcomes = self.played(name).open
        if set(outcomes) == {"not shown"}:
            raise NotHere(outcomes["not shown"])
        return Tries(outcomes)

    def _play(self) -> None:
        with drill_stage(self.left) as stage:
            for name, drill in DRILLS.items():
                try:
                    self._played[name] = drill(stage)
                except Exception as error:
                    self._played[name] = error
                finally:
                    stage.mended()
