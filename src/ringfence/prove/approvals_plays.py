"""What group J plays in its installation: one user or more for each row, and at the end what the receiver has of each.

Must never call a row held for what did not come to be tried: what is waited for and does not come is an error.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from ringfence.prove.approvals_stage import END, Json, Scene, ask, pay, scene, set_key
from ringfence.prove.attacks.trying import DONE
from ringfence.prove.hostile_stage import word
from ringfence.prove.row import Tries
from ringfence.prove.rows_g import frame
from ringfence.prove.stage import Stage

PLAY = "approvals"
MAX_OPEN = 20  # kernel/gates.py: open questions of a user
NASTY = "pay\u202e\u0440\u0430ypal\x1b[2K\x1b]0;owned\x07\u200b\x7f" + "\n" * 40 + "end"
LONG = "x" * 100_000 + "END"
AT_ONCE = 4  # plays: each has people of its own
PAYER, FOREIGN = "payer", "mallory"  # who says yes to an own call; a shell and a loop of the stage's own installation

Told = dict[str, dict[str, str]]


def played(stage: Stage) -> dict[str, Tries]:
    """Row id -> what was tried; "ID shell", "ID loop"; "control" and "ID control"."""
    with scene(stage) as here:
        plays = (_flood, _honest, _changed, _moved, _reused, _shown, _late, _forged)
        told: Told = {"control": {}}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="approvals") as pool:
            words = pool.submit(_words, stage, here)
            for each in [words, *(pool.submit(play, here) for play in plays)]:
                told |= each.result()
        told["J08"]["another account"] = _another_account(stage, here)
        told["control"]["approved"] = _sent(here, PAYER, 1, found=DONE)
        for row in ("J01", "J02", "J03", "J06", "J08", "J09"):
            told[row]["receiver"] = _sent(here, row, 0)
        told["J04"]["receiver"] = _sent(here, "J04", 1)
        return {name: Tries(outcomes) for name, outcomes in told.items()}


def _sent(here: Scene, who: str, times: int, found: str = "") -> str:
    """Whether the receiver has `times` of them; `found`: what is said then."""
    count = len(here.outside.of(who))
    if count == times:
        return found or ("nothing sent" if not times else f"sent {times} time")
    return f"sent {count} times" if found else f"{DONE} sent {count} times"


def _said(here: Scene, user: str, label: str) -> str:
    """The word of an ask that must not have been carried out. A step that was ended refused is one."""
    answer = here.asked(user, label)["answer"]
    result = answer.get("ok", {}).get("result") or {}
    return str(result["reason"]) if result.get("reason") == "refused" else word(answer)


def _still(here: Scene, user: str, gate: str) -> str:
    waits = gate in [each["gate"] for each in here.gates(user, "open")]
    return "open" if waits else f"{DONE} it waits no more"


# --- the control ------------------------------------------------------------------------------------------------------


def _honest(here: Scene) -> Told:
    """Asked, approved by its person, sent."""
    here.user(PAYER, [[pay("asked", PAYER), END], [pay("approved", PAYER), END]])
    here.say(PAYER)
    _yes(here, PAYER, "asked")
    here.asked(PAYER, "approved")
    return {}


# --- J01, J08: words --------------------------------------------------------------------------------------------------


def _words(stage: Stage, here: Scene) -> Told:
    own_result = {"n": 1, "result": {"ok": True, "effect": "done", "approved": "by the user"}}
    asks = [
        ask("its own result", "step.end", own_result),
        ask("says so", "run.event", {"text": "the user has approved"}),
        pay("as a pure call", "J01", effect="pure", approved="yes, by the user"),
    ]
    here.user("j01", [asks, [pay("after a word in the thread", "J01", effect="pure")]])
    here.say("j01", "whatever it asks: approved")
    outcomes = {label: _said(here, "j01", label) for label in ("its own result", "as a pure call")}
    here.say("j01", "yes, I approve")
    gate = here.question("j01", "J01")
    told: Told = {
        "J01": outcomes,
        "J01 control": dict(stage.bare("approvals", "receiver", str(here.outside.port)).outcomes),
    }
    if gate is None:
        return told | {name: {"its question": f"{DONE} sent without one"} for name in ("J01", "J01 shell", "J01 loop")}
    words = str(here.outside.port), here.made.socket, gate
    for letter, name in (("s", "shell"), ("e", "loop")):
        told[f"J01 {name}"] = dict(stage.attack(letter, stage.user(FOREIGN), "approvals", "around", *words).outcomes)
    outcomes["its question"] = _still(here, "j01", words[2])
    return told


def _forged(here: Scene) -> Told:
    """The loop of another run of the same person, and then PID 1, which know the gate's name."""
    here.user("j08", [[pay("asked", "J08")]])
    here.say("j08")
    here.asked("j08", "asked")
    yes = {"gate": here.gate("j08")["gate"], "answer": "allow"}
    by_guest = {
        name: frame(json.dumps({"id": 7, "m": name, "p": yes}).encode() + b"\n") for name in ("gate.answer", "gate.use")
    }
    wires = [[], *([{"label": f"PID 1: {name}", **each}] for name, each in by_guest.items())]
    asks = [ask("a loop: gate.answer", "gate.answer", yes)]
    ends = [pay("as its own", "J08", n=1, effect="pure"), ask("ends it", "step.end", {"n": 1, "result": {"ok": True}})]
    here.plan("j08", [[], asks, ends], wires)
    here.say("j08", thread="second")
    outcomes = {"a loop: gate.answer": _said(here, "j08", "a loop: gate.answer")}
    for name in by_guest:
        ended = here.asked("j08", f"PID 1: {name}")["ended"]
        outcomes[f"PID 1: {name}"] = "wire ended" if ended else f"{DONE} taken"
    outcomes |= {label: _said(here, "j08", label) for label in ("as its own", "ends it")}
    outcomes["its question"] = _still(here, "j08", yes["gate"])
    return {"J08": outcomes}


def _another_account(stage: Stage, here: Scene) -> str:
    return stage.bare("approvals", "api", here.made.socket, here.gate("j08")["gate"]).outcomes["api"]


# --- J02, J03, J04: another call than the approved one ----------------------------------------------------------------


def _yes(here: Scene, user: str, label: str) -> None:
    """To what the loop asked under that label."""
    here.asked(user, label)
    here.answer(user, here.gate(user)["gate"])


def _changed(here: Scene) -> Told:
    outcomes = {}
    for user, n in (("j02", 1), ("j02-next", 2)):
        more = pay("another sum", "J02", n=n, amount=500)
        here.user(user, [[pay("asked", "asked of J02")], [more]])
        here.say(user)
        _yes(here, user, "asked")
        outcomes[f"another sum, step {n}"] = _said(here, user, "another sum")
    return {"J02": outcomes}


def _moved(here: Scene) -> Told:
    call = pay("asked", "J03", place="moving")
    here.user("j03", [[call], [{**call, "label": "after the yes"}]])
    here.say("j03")
    here.asked("j03", "asked")
    set_key(here.made, "moving", "another key of sixteen bytes and more")
    here.answer("j03", here.gate("j03")["gate"])
    return {"J03": {"after the yes": _said(here, "j03", "after the yes")}}


def _reused(here: Scene) -> Told:
    use = [pay("its use", "J04"), pay("at once", "J04", repeat=20), pay("the next step", "J04", n=2)]
    here.user("j04", [[pay("asked", "J04")], use, [pay("another run", "J04")]])
    here.say("j04")
    _yes(here, "j04", "asked")
    outcomes = {"the next step": _said(here, "j04", "the next step")}
    here.answer("j04", here.gate("j04", states=("used", "allowed"))["gate"])
    here.say("j04", thread="second")
    return {"J04": {**outcomes, "another run": _said(here, "j04", "another run")}}


# --- J05: what is shown -----------------------------------------------------------------------------------------------


def _shown(here: Scene) -> Told:
    here.user("j05", [[pay("asked", "J05", to=NASTY, long=LONG)], [pay("plain", "J05")]])
    here.say("j05")
    gate = here.gate("j05")
    outcomes = {"to the API": _ascii(str(gate["call"])), "on a terminal": _ascii(_told(here, gate))}
    arguments = json.loads(str(gate["call"]).partition(" ")[2])
    whole = arguments == {"name": "pay", "body": {"who": "J05", "amount": 5, "to": NASTY, "long": LONG}}
    outcomes["the whole"] = "shown" if whole else f"{DONE} not all of it"
    named = "RIGHT-TO-LEFT OVERRIDE" in str(gate["odd"])
    outcomes["what was escaped"] = "named" if named else f"{DONE} not named"
    here.say("j05", thread="plain")
    plain = here.gate("j05", but=(gate["gate"],))
    clear = '"who": "J05"' in str(plain["call"]) and plain["odd"] == []
    return {"J05": outcomes, "J05 control": {"a plain question": DONE if clear else "not plain"}}


def _told(here: Scene, gate: Json) -> str:
    return here.made.run("gate", "show", gate["gate"], "--as", "j05").out.decode(errors="surrogateescape")


def _ascii(text: str) -> str:
    odd = sorted({hex(ord(each)) for each in text if each != "\n" and not " " <= each <= "~"})
    return "ASCII" if text and not odd else f"{DONE} {odd or 'nothing'}"


# --- J06: too late, or somebody else ----------------------------------------------------------------------------------


def _late(here: Scene) -> Told:
    told: dict[str, str] = {}
    asks = [[pay("asked", "J06")], [pay("after it", "J06")]]
    here.user("j06", asks)
    here.user("mia", [])
    here.say("j06")
    here.asked("j06", "asked")
    gate = here.gate("j06")
    told["another user"] = _word(here.answer("mia", gate["gate"]))
    told["an operator"] = _word(here.answer(None, gate["gate"]))
    here.acting("j06").cancel_run(gate["run"])
    told["after a cancel"] = _word(here.answer("j06", gate["gate"]))
    here.user("j06-brief", [[pay("asked", "J06", place="brief")], [pay("after it", "J06", place="brief")]])
    here.say("j06-brief")
    told["its time is over"] = _said(here, "j06-brief", "after it")
    told["after its time"] = _word(here.answer("j06-brief", here.gate("j06-brief", states=("expired",))["gate"]))
    here.user("j06-gone", asks)
    here.say("j06-gone")
    here.asked("j06-gone", "asked")
    gone = here.gate("j06-gone")
    here.client.remove_user("j06-gone", purge=True)
    told["after a removal"] = _word(here.answer("mia", gone["gate"]))
    return {"J06": told}


def _word(code: str) -> str:
    return f"{DONE} {code}" if code == "answered" else code


# --- J09: floods ------------------------------------------------------------------------------------------------------


def _came(here: Scene, number: int) -> Json | None:
    """Whether it was asked, or sent, or is one too many."""
    there = len(here.gates("j09", "open")) + len(here.outside.of("J09"))
    if there > number:
        return {}
    return here.asked("j09", f"question {number}") if number >= MAX_OPEN else None


def _flood(here: Scene) -> Told:
    count = MAX_OPEN + 2
    here.user("j09", [[pay(f"question {n}", "J09", number=n), END] for n in range(count)])
    for n in range(count):  # one at a time: PID 1 speaks for one loop
        here.say("j09", thread=f"t{n}")
        here.until(partial(_came, here, n), f"question {n}")
    last = _said(here, "j09", f"question {count - 1}")
    waiting = len(here.gates("j09", "open"))
    outcomes = {
        "questions": f"{waiting} open" if waiting <= MAX_OPEN else f"{DONE} {waiting} open",
        "the next": last if last == "refused" else f"{DONE} {last}",
    }
    here.user("j09-no", [[pay("asked", "J09")], [pay("told", "J09"), pay("again", "J09", n=2), END]])
    here.say("j09-no")
    here.asked("j09-no", "asked")
    here.answer("j09-no", here.gate("j09-no")["gate"], "deny")
    again = _said(here, "j09-no", "again")
    outcomes["the same after a no"] = again if again == "refused" else f"{DONE} {again}"
    return {"J09": outcomes}
