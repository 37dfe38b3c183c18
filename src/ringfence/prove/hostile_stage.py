"""The installation whose guest is hostile: plays every row of group G at once, one user and box for each.

What the hostile PID 1 saw is read from its box; what the server did is looked at from outside. Must never be given a
guest's word for what the server did to others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

from ringfence.bench.throwaway import Installation
from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from ringfence.prove import apart, plans
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.outside import resident_mib
from ringfence.prove.row import Tries
from ringfence.prove.stage import Stage

PLAY = "hostile guest"
FRAME_SECONDS = 10.0  # host/broker/bounds.py
PATIENCE = 60.0
GROWTH_MIB = 64  # of the server while all rows play: a million frames are 50 MB, kept nowhere
ANSWER_SECONDS = 1.0  # threats.md: the kernel answers within this, whatever a box does

Wires = Mapping[str, Mapping[str, dict[str, Any]]]
Asks = list[list[dict[str, Any]]]
Loops = Mapping[str, Asks]
Seen = list[dict[str, Any]]


def hostile(stage: Stage, wires: Wires, loops: Loops, g09: Callable[[str], list[dict[str, Any]]]) -> dict[str, Tries]:
    """Row id -> what was tried, and "ID control" -> its control. Played once."""

    def play(stage: Stage) -> dict[str, Tries]:
        with apart.installation(stage, apart.hostile_guest) as made:
            made.start()
            with closing(SyncClient(socket=made.socket)) as client:
                return Play(made, client).all(wires, loops, g09)

    return stage.once(PLAY, play)


class Play:
    def __init__(self, made: Installation, client: SyncClient) -> None:
        self._made = made
        self._client = client
        self._slowest = 0.0

    def all(self, wires: Wires, loops: Loops, g09: Callable[[str], list[dict[str, Any]]]) -> dict[str, Tries]:
        before = resident_mib(self._made)
        for row_id, variants in wires.items():
            plan = {"wires": [[{"label": label, **act}] for label, act in variants.items()]}
            self._user(row_id, plan)
            with suppress(ApiError):  # a box that breaks its wire while it starts is told to whoever started it
                self._client.start_box(row_id.lower())
        runs = {**loops, "G09": [g09(self._victim())]}
        for row_id, asks in runs.items():
            self._user(row_id, {"runs": asks})
            self._say(row_id.lower(), "go")
        found = {row_id: self._await(row_id, len(variants)) for row_id, variants in wires.items()}
        found |= {row_id: self._await(row_id, sum(_heard(asks) for asks in lists)) for row_id, lists in runs.items()}
        told = {row_id: wire_tries(found[row_id], variants) for row_id, variants in wires.items()}
        told |= {f"{row_id} control": wire_control(found[row_id]) for row_id in wires}
        told |= {row_id: loop_tries(row_id, found[row_id]) for row_id in runs}
        told |= {f"{row_id} control": loop_control(found[row_id]) for row_id in runs}
        told["G13"] = self._kept_reply(told["G13"])
        told |= self._half_frame()
        return self._server_lives(told, before)

    def _user(self, row_id: str, plan: dict[str, Any]) -> None:
        self._client.add_user(row_id.lower())
        plans.give(self._client, row_id.lower(), plan)

    def _say(self, user: str, text: str) -> None:
        with closing(SyncClient(socket=self._made.socket, act_as=user)) as acting:
            acting.post_message(f"thread-{user}", text)

    def _victim(self) -> str:
        """The run of another user, which its loop does not end."""
        self._user("victim", {"hang": True})
        self._say("victim", "private")
        seen = self._await("victim", 1, "run")
        return str(seen[0]["run"]) if seen else "run_none"

    def _await(self, row_id: str, count: int, kind: str = "") -> Seen:
        """Until the box has recorded `count` things of its kinds, or long enough."""
        user, until, restart = row_id.lower(), time.monotonic() + PATIENCE, time.monotonic() + 8.0
        while True:
            seen = [
                each for each in plans.seen(self._client, user) if (kind or "wire") in each or (kind or "ask") in each
            ]
            if len(seen) >= count or time.monotonic() > until:
                return seen
            self._look()
            if time.monotonic() > restart:  # its box may have been given up for lost
                restart = time.monotonic() + 8.0
                with suppress(ApiError):
                    self._client.start_box(user)
            time.sleep(0.1)

    def _look(self) -> None:
        begun = time.monotonic()
        self._client.health()
        self._slowest = max(self._slowest, time.monotonic() - begun)

    def _kept_reply(self, tries: Tries) -> Tries:
        """G13: what members read is what the run said while it lived."""
        with closing(SyncClient(socket=self._made.socket, act_as="g13")) as acting:
            replies = [each["text"] for each in acting.messages("thread-g13") if each["agent"]]
        same = "kept" if replies == ["done"] else f"{DONE} {replies}"
        return Tries({**tries.outcomes, "other words": same})

    def _half_frame(self) -> dict[str, Tries]:
        """G03: a command whose end was said in half a frame has no outcome; one whose end was whole has."""
        self._user("G03", {"commands": ["half", "whole"]})
        half = self._exec("g03")
        whole = self._exec("g03")
        return {
            "G03": Tries({"half": f"{DONE} taken" if half == "0" else half}),
            "G03 control": Tries({"whole": DONE if whole == "0" else whole}),
        }

    def _exec(self, user: str) -> str:
        try:
            outcome = self._client.exec(user, ["true"], timeout=20)
        except ApiError as error:
            return error.code
        return str(outcome["exit_code"]) if outcome["reason"] == "exit" else str(outcome["reason"])

    def _server_lives(self, told: dict[str, Tries], before: int) -> dict[str, Tries]:
        """After all of it: the same process, not grown, and another box is served."""
        self._user("quiet", {})
        served = "served" if self._exec("quiet") == "0" else f"{DONE} not served"
        grown = resident_mib(self._made) - before
        memory = f"grew by {grown} MiB" if grown <= GROWTH_MIB else f"{DONE} grew by {grown} MiB"
        quick = self._slowest <= ANSWER_SECONDS
        answer = f"within {self._slowest * 1e3:.0f} ms" if quick else f"{DONE} took {self._slowest:.1f} s"
        told["G14"] = Tries({**told["G14"].outcomes, "answers": answer})
        after = {"another box": served, "memory": memory}
        return {
            name: tries if name.endswith(" control") else Tries({**tries.outcomes, **after})
            for name, tries in told.items()
        }


def _heard(asks: Sequence[dict[str, Any]]) -> int:
    return sum("label" in each for each in asks)


def wire_tries(seen: Seen, variants: Mapping[str, object]) -> Tries:
    """Whether each frame ended its wire."""
    by_label = {each["wire"]: each for each in seen if "wire" in each}
    outcomes = {}
    for label in variants:
        each = by_label.get(label)
        if each is None:
            outcomes[label] = f"{DONE} never came to it"
        else:
            outcomes[label] = "wire ended" if each["ended"] else f"{DONE} taken for {each['ms']} ms"
    return Tries(outcomes)


def wire_control(seen: Seen) -> Tries:
    """The frame without a flaw, on each of the same wires."""
    taken = [each["before"] for each in seen if "wire" in each]
    return Tries({"a frame without a flaw": DONE if taken and all(taken) else f"refused, {taken}"})


def word(answer: Mapping[str, Any]) -> str:
    if "ok" in answer:
        return f"{DONE} {json.dumps(answer['ok'])[:120]}"
    if "err" in answer:
        return str(answer["err"]["code"])
    return "wire ended" if answer.get("ended") else "silence" if answer.get("silence") else str(dict(answer))


def loop_tries(row_id: str, seen: Seen) -> Tries:
    answers = {each["ask"]: each["answer"] for each in seen if "ask" in each}
    if not answers:
        return Tries({"asks": f"{DONE} it never came to ask"})
    if row_id == "G11":
        return replayed(answers)
    if row_id == "G15":
        ended = answers.get("deaf", {}).get("ended")
        return Tries({"deaf": "wire ended" if ended else f"{DONE} still fed"})
    outcomes = {label: word(each) for label, each in answers.items() if label not in ("control", "end")}
    if row_id == "G09":
        texts = {
            str(each.get("err", {}).get("message", "")).partition("'")[0] for each in answers.values() if "err" in each
        }
        outcomes["text"] = "the same" if len(texts) == 1 else f"{DONE} {sorted(texts)}"
    return Tries(outcomes)


def replayed(answers: Mapping[str, Any]) -> Tries:
    """G11: the journal's word stands, whatever is said later."""
    again = answers.get("begun again", {}).get("ok", {})
    kept = again.get("decision") == "done" and again.get("result") == {"x": 1}
    return Tries(
        {
            "begun again": "answered from the journal" if kept else f"{DONE} {again}",
            "other words": word(answers.get("other words", {"silence": True})),
        }
    )


def loop_control(seen: Seen) -> Tries:
    answers = {each["ask"]: each["answer"] for each in seen if "ask" in each}
    return Tries({"control": word(answers.get("control", {}))})
