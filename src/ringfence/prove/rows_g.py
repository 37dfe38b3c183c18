"""Group G: a hostile PID 1 and hostile loops against the real server: their own installation, whose guest is ours to write.

Each broken rule ends its own wire, and the server goes on: that is looked at after each row. Every wire first carries a
frame without a flaw, which the server takes: the control.
"""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from ringfence.prove.attacks.siblings import connect
from ringfence.prove.attacks.trying import attempt
from ringfence.prove.hostile_stage import FRAME_SECONDS, PLAY, Wires, hostile
from ringfence.prove.row import Row, Tries, ran
from ringfence.prove.stage import Stage

MAX_FRAME = 1 << 20
GOOD = b'{"m":"cmd.credit","p":{"key":"x/1","bytes":1}}'
WALL = "bounded frames, strict types, one wire a box; what breaks a rule ends its wire"


def frame(data: bytes, **more: Any) -> dict[str, Any]:
    return {"data_b64": b64encode(data).decode(), **more}


# A wire each; the server dials a box that breaks its wire eight times in a row, so seven at most.
WIRES: Wires = {
    "G01": {
        "no newline ever": frame(b"x" * (MAX_FRAME + 1)),
        "a long line": frame(b'{"m":"' + b"x" * MAX_FRAME + b'"}\n'),
    },
    "G02": {
        "brackets": frame(b"[" * 100_000 + b"\n"),
        "objects": frame(b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n"),
        "deep parameters": frame(b'{"m":"cmd.credit","p":' + b'{"a":' * 70 + b"1" + b"}" * 71 + b"\n"),
    },
    "G04": {"a frame without end": frame(b'{"m":', trickle=FRAME_SECONDS + 8.0)},
    "G06": {
        "NaN": frame(GOOD.replace(b":1}", b":NaN}") + b"\n"),
        "infinity": frame(GOOD.replace(b":1}", b":-Infinity}") + b"\n"),
        "1e999": frame(GOOD.replace(b":1}", b":1e999}") + b"\n"),
        "5000 digits": frame(GOOD.replace(b":1}", b":" + b"9" * 5000 + b"}") + b"\n"),
        "2**63": frame(GOOD.replace(b":1}", b":9223372036854775808}") + b"\n"),
    },
    "G07": {
        "PID 1": frame(b'{"id":1,"m":"gate.answer","p":{"gate":"gat_x","answer":"allow"}}\n'),
        "a loop": frame(b'{"run":"run_x","f":{"id":1,"m":"gate.answer","p":{"gate":"gat_x","answer":"allow"}}}\n'),
    },
    "G08": {
        "unknown method": frame(b'{"m":"host.exec","p":{}}\n'),
        "missing fields": frame(b'{"m":"cmd.credit"}\n'),
        "batch": frame(b"[" + GOOD + b"]\n"),
        "wrong type": frame(GOOD.replace(b":1}", b':"1"}') + b"\n"),
        "extra field": frame(GOOD.replace(b":1}", b':1,"user":"alice"}') + b"\n"),
        "a key twice": frame(GOOD.replace(b'"bytes"', b'"key":"x/2","bytes"') + b"\n"),
        "not UTF-8": frame(b'{"m":"\xff"}\n'),
    },
    "G05": {
        "the host's own method": frame(b'{"m":"cmd.grant","p":{"key":"x/1","bytes":1}}\n'),
        "a reply to nothing": frame(b'{"re":77,"ok":{}}\n'),
        "hello again": frame(b'{"re":1,"ok":{}}\n'),
        "a report without a number": frame(b'{"m":"loop.ended","p":{"run":"r","code":0,"signal":null}}\n'),
        "a loop's method": frame(b'{"id":1,"m":"run.finish","p":{"token":"t","text":"","seen":1}}\n'),
        "output never granted": frame(b'{"m":"cmd.output","p":{"key":"x/1","stream":3,"data_b64":""}}\n'),
    },
    "G14": {"a million tiny frames": frame((GOOD + b"\n") * 1000, repeat=1000)},
    "G17": {
        f"seed {seed}": frame(bytes((seed * 7919 + n * n * 31) % 251 for n in range(4096)) + b"\n")
        for seed in range(1, 7)
    },
    "G19": {
        "read a path": frame(b'{"id":1,"m":"files.get","p":{"path":"/etc/shadow"}}\n'),
        "fetch a URL": frame(b'{"id":1,"m":"http.get","p":{"url":"http://169.254.169.254/"}}\n'),
        "run a command": frame(b'{"id":1,"m":"cmd.spawn","p":{"argv_b64":["aWQ="]}}\n'),
        "as a loop": frame(b'{"run":"run_x","f":{"id":1,"m":"host.exec","p":{"argv":["id"]}}}\n'),
    },
}


def asked(label: str, method: str, params: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"label": label, "m": method, "p": params, **more}


CHAT: dict[str, Any] = {"role": "user", "text": "hello", "tool_calls": [], "tool_call_id": None}
EVENT = {"text": "at work"}
PURE = {"n": 1, "tool": "look", "arguments": {"a": 1}, "effect": "pure"}
NOISE = bytes(500_000)
BLOB = {"blob": hashlib.sha256(NOISE).hexdigest(), "n": 0}
END = asked("end", "run.finish", {"text": "done", "seen": "SEEN"})


def g09(victim_run: str) -> list[dict[str, Any]]:
    """`victim_run`: of another user, at work."""
    return [
        asked("another user's run", "thread.read", {"before": 1000, "limit": 10}, run=victim_run),
        asked("a run that is not there", "thread.read", {"before": 1000, "limit": 10}, run="run_" + "a" * 20),
        asked("own run, another token", "thread.read", {"before": 1000, "limit": 10, "token": "x" * 52}),
        asked("control", "run.event", EVENT),
        END,
    ]


LOOPS: dict[str, list[list[dict[str, Any]]]] = {
    "G10": [
        [
            asked(
                "another model",
                "model.generate",
                {"model": "other", "call": 1, "messages": [CHAT], "blob": None, "tools": []},
            ),
            asked("a blob that it never put", "blob.get", {"blob": "a" * 64, "n": 0}),
            asked("a step out of turn", "step.begin", {**PURE, "n": 9}),
            asked("control", "run.event", EVENT),
            END,
        ]
    ],
    "G11": [
        [
            asked("control", "step.begin", PURE),
            asked("the same again", "step.begin", PURE),
            asked("its end", "step.end", {"n": 1, "result": {"x": 1}}),
            asked("another end", "step.end", {"n": 1, "result": {"x": 2}}),
            asked("begun again", "step.begin", PURE),
            asked("other words", "step.begin", {**PURE, "arguments": {"a": 2}}),
        ]
    ],
    "G12": [
        [{"die": True}],
        [
            asked("the old token", "run.event", {**EVENT, "token": "OLD_TOKEN"}),
            asked("finish with the old token", "run.finish", {"text": "stolen", "seen": "SEEN", "token": "OLD_TOKEN"}),
            asked("control", "run.event", EVENT),
            END,
        ],
    ],
    "G13": [
        [
            asked("control", "run.finish", {"text": "done", "seen": "SEEN"}),
            asked("event", "run.event", EVENT),
            asked("step", "step.begin", PURE),
            asked("checkpoint", "checkpoint.save", {"boundary": "final", "step": 0, "state": "", "blobs": []}),
            asked("other words", "run.finish", {"text": "other", "seen": "SEEN"}),
        ]
    ],
    "G15": [
        [
            asked("put", "blob.put", {**BLOB, "size": len(NOISE), "data_b64": b64encode(NOISE).decode()}),
            asked("control", "blob.get", BLOB),
            asked("deaf", "blob.get", BLOB, repeat=30, deaf=8.0),  # 20 MB of answers, five times the queue
        ]
    ],
}


def wires(row_id: str) -> Callable[[Stage, str], Tries]:
    def attack(stage: Stage, _runner: str) -> Tries:
        return hostile(stage, WIRES, LOOPS, g09)[row_id]

    return attack


def taken(row_id: str) -> Callable[[Stage], Tries]:
    def how(stage: Stage) -> Tries:
        return hostile(stage, WIRES, LOOPS, g09)[f"{row_id} control"]

    return how


def _row(row_id: str, attempt: str, expected: str, wall: str = WALL) -> Row:
    return Row(row_id, attempt, expected, wall, wires(row_id), ran(taken(row_id)), "h", play=PLAY)


def second_caller(stage: Stage, _runner: str) -> Tries:
    """G18: from the box, and from another account of the host, where prove has one, by the path that it may walk to."""
    path = stage.directory(stage.user("gina")) / "ctl" / "host.sock"
    told = {"the box": stage.attack("s", "gina", "siblings", "wire").outcomes["connect"]}
    if os.geteuid() == 0:
        told["another account"] = stage.bare("siblings", "wire", str(path)).outcomes["connect"]
    return Tries(told)


def first_caller(stage: Stage) -> Tries:
    """Its control: the account of the server's owner gets through. The server's own wire is replaced, and dialled anew."""
    path = stage.directory(stage.user("gina")) / "ctl" / "host.sock"
    return Tries({"connect": attempt(lambda: connect(str(path)))})


ROWS: tuple[Row, ...] = (
    _row("G01", "a frame above the limit; no newline ever", "the wire is ended", "a limit of 1 MiB a frame"),
    _row("G02", "nesting", "the wire is ended", "depth is counted before parsing"),
    _row("G03", "half a frame, then the end", "not processed", "a frame has its newline"),
    _row("G04", "a byte now and then, without end", "timed out", "a frame that began ends within 10 s"),
    _row("G05", "frames that another side says", "the wire is ended"),
    _row("G06", "numbers that are none, or too large", "the wire is ended"),
    _row("G07", "a gate's answer from PID 1 and from a loop", "no such method", "the methods that there are"),
    _row("G08", "unknown method, wrong types, extra and missing fields", "the wire is ended"),
    _row(
        "G09",
        "another user's run, an absent run, another token",
        "not found, the same text",
        "run tokens, by box and run",
    ),
    _row("G10", "beyond what the run may do", "refused", "the run's scope is the host's"),
    _row("G11", "replay and divergence of steps", "answered from the journal", "the journal"),
    _row("G12", "a token of an earlier attempt", "not found", "a new token with each epoch"),
    _row("G13", "asks of a run that is over", "refused", "states in the store"),
    _row("G14", "a million tiny frames", "the wire is ended, the server's memory is flat", "token buckets"),
    _row("G15", "never read what was asked for", "the wire is ended", "a bounded queue and a time to be read"),
    _row("G17", "4 KiB of noise, six times", "the wire is ended, the server lives"),
    Row(
        "G18",
        "a second caller on the wire",
        "no name for it in the box; EACCES for other accounts",
        "0600 of the server's account, in no box",
        second_caller,
        ran(first_caller),
        "h",
    ),
    _row("G19", "have the server read, fetch, run", "no such method", "the methods that there are"),
)
