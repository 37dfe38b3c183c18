"""A PID 1 that attacks the host: it takes the place of the guest in a throw-away installation, and keeps to no rule.

    init.pyc LISTEN_FD CMDS_FDS DIGEST      as guest/init.py; the plan is /home/user/plan.json, what happened goes to
                                            /home/user/seen.jsonl, one object a line
    {"wires": [[act, ...], ...], "runs": [[ask, ...], ...], "hang": bool, "commands": ["half" | "whole", ...]}

Of `wires` the first list is for the first connection, and so on; a connection without one is served honestly. `runs`: what
a hostile loop asks, one list for each run.start. Must never be part of what a real installation runs.
"""

from __future__ import annotations

import base64
import json
import os
import select
import socket
import sys
import time
from typing import Any

HOME = "/home/user"
GOOD = b'{"m":"cmd.credit","p":{"key":"x/none","bytes":1}}\n'  # taken at any time, and changes nothing
QUIET = 0.15  # seconds: a host that minds a frame has ended the wire by then
PATIENCE = 4.0  # seconds for what ends at once


def record(**facts: Any) -> None:
    with open(f"{HOME}/seen.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def plan() -> dict[str, Any]:
    try:
        with open(f"{HOME}/plan.json", encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except OSError:
        return {}


def taken(name: str) -> int:
    """How often this was asked before, kept over a restart of the box."""
    path = f"{HOME}/.count-{name}"
    before = os.path.getsize(path) if os.path.exists(path) else 0
    with open(path, "a", encoding="ascii") as file:
        file.write("x")
    return before


class Ended(Exception):
    """The host has ended the wire."""


class Wire:
    """One connection of the host."""

    def __init__(self, sock: socket.socket, digest: str) -> None:
        self.sock = sock
        self.digest = digest
        self.buffer = b""
        self.seq = 0

    def line(self, seconds: float) -> bytes | None:
        """The next line; None: nothing in time. Ended."""
        until = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                return None
            try:
                data = self.sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise Ended
            self.buffer += data
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise Ended from error

    def say(self, **frame: Any) -> None:
        self.send(json.dumps(frame).encode() + b"\n")

    def report(self, method: str, params: dict[str, Any]) -> None:
        self.seq += 1
        self.say(m=method, seq=self.seq, p=params)

    def greet(self) -> None:
        """Answers the first frame as a guest without runs and commands."""
        line = self.line(5.0)
        if line is None:
            raise Ended
        ok = {"generation": 1, "digest": self.digest, "guest": os.urandom(10).hex(), "landlock": 6, "seccomp": 1}
        self.say(re=json.loads(line)["id"], ok={**ok, "runs": [], "commands": [], "orphans": []})

    def open_for(self, seconds: float) -> bool:
        """Whether the host lets it be that long; what it says meanwhile is answered."""
        until = time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0:
                line = self.line(left)
                if line is not None:
                    serve(self, line)
        except Ended:
            return False
        return True


def ended_command(key: str, code: int) -> dict[str, Any]:
    kept = {"head_b64": "", "tail_b64": "", "total": 0, "dropped": 0}
    told = {"key": key, "code": code, "signal": None, "reason": "exit", "message": "", "left": [], "duration_ms": 1}
    return {**told, "stdout": kept, "stderr": kept}


def serve(wire: Wire, line: bytes) -> None:
    """What an honest guest would answer, commands excepted: they end at once, with 0."""
    if line.startswith(b'{"run":'):
        return
    frame = json.loads(line)
    if "id" not in frame:
        return
    if frame["m"] == "cmd.spawn":
        spawned(wire, frame)
    elif frame["m"] == "run.start":
        wire.say(re=frame["id"], ok={"pid": 99})
        hostile_loop(wire, frame["p"])
    else:
        wire.say(re=frame["id"], ok={})


def spawned(wire: Wire, frame: dict[str, Any]) -> None:
    key, keep = frame["p"]["key"], frame["p"]["output"] == "keep"
    wire.say(re=frame["id"], ok={"pid": 7, "attached": False})
    told = ended_command(key, 0)
    if not keep:
        told |= {"stdout": None, "stderr": None}
    ways = plan().get("commands", [])
    number = taken("command")
    if number < len(ways) and ways[number] == "half":
        whole = json.dumps({"m": "cmd.ended", "seq": wire.seq + 1, "p": told}).encode()
        wire.send(whole)  # without its newline
        wire.sock.close()
        raise Ended
    wire.report("cmd.ended", told)


# --- a hostile PID 1 -------------------------------------------------------------------------------------------------


def act(wire: Wire, what: dict[str, Any]) -> None:
    """One attack on a fresh wire: the same host first takes a frame without a flaw."""
    wire.send(GOOD)
    before = wire.open_for(QUIET)
    begun = time.monotonic()
    ended, sent = attack(wire, what), what.get("repeat", 1)
    took = round((time.monotonic() - begun) * 1e3)
    record(wire=what["label"], before=before, ended=ended, ms=took, sent=sent)


def attack(wire: Wire, what: dict[str, Any]) -> bool:
    """Whether the host ended the wire."""
    data = base64.b64decode(what["data_b64"])
    try:
        if what.get("trickle"):
            return trickle(wire, data, what["trickle"])
        for _ in range(what.get("repeat", 1)):
            wire.send(data)
    except Ended:
        return True
    return not wire.open_for(what.get("patience", PATIENCE))


def trickle(wire: Wire, data: bytes, seconds: float) -> bool:
    """A frame that begins and goes on, a byte at a time, and never ends."""
    until = time.monotonic() + seconds
    wire.send(data)
    while time.monotonic() < until:
        wire.send(b" ")
        if not wire.open_for(0.5):
            return True
    return False


# --- a hostile loop --------------------------------------------------------------------------------------------------


def hostile_loop(wire: Wire, start: dict[str, Any]) -> None:
    """Asks what the plan says, in this run's name or another's; `TOKEN`, `RUN`, `OLD_TOKEN` are filled in."""
    number = taken("run")
    made = plan()
    lists = made.get("runs", [])
    names = remember(start)
    record(run=start["run"], epoch=start["epoch"], thread=start["thread"], number=number)
    if number >= len(lists):
        if not made.get("hang"):
            ask(wire, {"label": "end", "m": "run.finish", "p": {"text": "done", "seen": "SEEN"}}, names)
        return
    for each in lists[number]:
        ask(wire, each, names)


def remember(start: dict[str, Any]) -> dict[str, Any]:
    """What the asks may refer to; the first token of a run is kept for the time after it was redriven."""
    path = f"{HOME}/.token-{start['run']}"
    if os.path.exists(path):
        with open(path, encoding="ascii") as file:
            old = file.read()
    else:
        old = start["token"]
        with open(path, "w", encoding="ascii") as file:
            file.write(old)
    return {"TOKEN": start["token"], "OLD_TOKEN": old, "RUN": start["run"], "SEEN": start["messages"][-1]["cursor"]}


_numbers = iter(range(1, 1 << 30))


def filled(value: Any, names: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, names) for key, item in value.items()}
    return names.get(value, value) if isinstance(value, str) else value


def ask(wire: Wire, what: dict[str, Any], names: dict[str, Any]) -> None:
    """One frame of a loop, and its answer. {"die": true}: PID 1 says that the loop has ended."""
    if what.get("die"):
        wire.report("loop.ended", {"run": names["RUN"], "code": 1, "signal": None})
        return
    run = filled(what.get("run", "RUN"), names)
    params = filled({"token": "TOKEN", **what["p"]}, names)
    try:
        for _ in range(what.get("repeat", 1)):
            number = next(_numbers)
            asked = {"id": number, "m": what["m"], "p": params}
            wire.send(b'{"run":%s,"f":%s}\n' % (json.dumps(run).encode(), json.dumps(asked).encode()))
        if what.get("deaf"):
            record(ask=what["label"], answer={"ended": True} if deaf(wire, what["deaf"]) else {"silence": True})
            return
        record(ask=what["label"], answer=answer(wire, number))
    except Ended:
        record(ask=what["label"], answer={"ended": True})
        raise


def deaf(wire: Wire, seconds: float) -> bool:
    """Reads nothing that long; whether the host had hung up by then."""
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(wire.sock, select.POLLHUP | select.POLLERR)
    while time.monotonic() < until:
        if poll.poll(100):
            return True
    return False


def answer(wire: Wire, number: int) -> dict[str, Any]:
    """Of the ask `number`; what the host asks meanwhile is answered."""
    until = time.monotonic() + PATIENCE
    while (left := until - time.monotonic()) > 0:
        line = wire.line(left)
        if line is None:
            break
        if line.startswith(b'{"run":'):
            frame = json.loads(line)["f"]
            if frame.get("re") == number:
                found: dict[str, Any] = {"err": frame["err"]} if "err" in frame else {"ok": frame["ok"]}
                return found
        else:
            serve(wire, line)
    return {"silence": True}


def live(listener: socket.socket, digest: str) -> None:
    while True:
        sock, _ = listener.accept()
        wire = Wire(sock, digest)
        try:
            wire.greet()
            lists = plan().get("wires", [])
            number = taken("wire")
            if number < len(lists):
                for each in lists[number]:
                    act(wire, each)
            while wire.open_for(3600.0):
                pass
        except (Ended, OSError, ValueError, KeyError) as error:
            if not isinstance(error, Ended):
                record(fault=repr(error))
        finally:
            sock.close()


def main() -> None:
    door = socket.socket(fileno=int(sys.argv[1]))
    door.listen(8)
    live(door, sys.argv[3])


if __name__ == "__main__":
    main()
