"""A kernel that attacks its spawner: it takes the place of host/app.py in a throw-away installation, under the kernel's
account, and does what it is told over a socket in run/.

    main() with sys.argv = [-c, CHANNEL_FD, CONFIG]; one JSON object a line each way on run/hostile.sock
    {"do": "ask", "packet_b64", "fds"}        -> {"reply": {...}, "fds": [numbers kept here]}
    {"do": "flood", "packet_b64", "count"}    -> {"sent", "replies": {code: n}}
    {"do": "files", "fd", "request"}          -> {"reply"}: one frame of the files wire
    {"do": "drop"}                            -> {}: closes the descriptors kept here
    {"do": "touch", "how", "path", "target"}  -> {"error": errno name or ""}
    {"do": "run", "argv"}                     -> {"code", "err"}

Must never be part of what a real installation runs. Standard library only.
"""

from __future__ import annotations

import array
import base64
import errno
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_REPLY = 1 << 20
SECONDS = 20.0


class Hostile:
    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        channel.settimeout(SECONDS)
        self._kept: list[int] = []
        self.acts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ask": self.ask,
            "flood": self.flood,
            "drop": self.drop,
            "files": self.files,
            "touch": self.touch,
            "run": self.run,
        }

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        packet, control, _, _ = self._channel.recvmsg(MAX_REPLY, socket.CMSG_SPACE(16))
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return json.loads(packet), list(fds)

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        packet, count = base64.b64decode(order["packet_b64"]), order.get("fds", 0)
        if count:
            null = os.open("/dev/null", os.O_RDONLY)
            socket.send_fds(self._channel, [packet], [null] * count)
            os.close(null)
        else:
            self._channel.send(packet)
        reply, fds = self._receive()
        self._kept += fds
        return {"reply": reply, "fds": fds}

    def flood(self, order: dict[str, Any]) -> dict[str, Any]:
        """As many as fit, as fast as they go; every one must be answered."""
        packet, count = base64.b64decode(order["packet_b64"]), order["count"]
        self._channel.setblocking(False)
        sent = received = 0
        replies: dict[str, int] = {}
        until = time.monotonic() + SECONDS
        while received < count and time.monotonic() < until:
            try:
                while sent < count:
                    self._channel.send(packet)
                    sent += 1
            except BlockingIOError:
                pass
            try:
                while received < sent:
                    reply, _ = self._receive()
                    code = "ok" if "ok" in reply else reply["error"]["code"]
                    replies[code] = replies.get(code, 0) + 1
                    received += 1
            except BlockingIOError:
                time.sleep(0.001)
        self._channel.settimeout(SECONDS)
        return {"sent": sent, "replies": replies}

    def drop(self, _order: dict[str, Any]) -> dict[str, Any]:
        while self._kept:
            os.close(self._kept.pop())
        return {}

    def files(self, order: dict[str, Any]) -> dict[str, Any]:
        """What the helper answers, its data left in the socket: a connection is good for one get."""
        with socket.socket(fileno=os.dup(order["fd"])) as wire:
            wire.settimeout(SECONDS)
            body = json.dumps(order["request"]).encode()
            wire.sendall(struct.pack(">I", len(body)) + body)
            reply = json.loads(_frame(wire))
            data = _frame(wire) if "ok" in reply and order["request"]["op"] == "get" else b""
            if data:
                _frame(wire)  # the length 0 that ends it
            return {"reply": reply, "data_b64": base64.b64encode(data).decode()}

    def touch(self, order: dict[str, Any]) -> dict[str, Any]:
        """Tries to change the spawner's own state."""
        path = Path(order["path"])
        ways: dict[str, Callable[[], object]] = {
            "read": lambda: path.read_bytes()[:1],
            "write": lambda: path.open("ab").close(),
            "mkdir": path.mkdir,
            "link": lambda: path.symlink_to(order["target"]),
            "rename": lambda: path.rename(order["target"]),
        }
        try:
            ways[order["how"]]()
        except OSError as error:
            return {"error": errno.errorcode.get(error.errno or 0, str(error))}
        return {"error": ""}

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        done = subprocess.run(order["argv"], capture_output=True, timeout=SECONDS, text=True)
        return {"code": done.returncode, "err": done.stderr[-500:]}


def _frame(wire: socket.socket) -> bytes:
    (length,) = struct.unpack(">I", _exactly(wire, 4))
    return _exactly(wire, length) if length != 0xFFFFFFFF else b""


def _exactly(wire: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = wire.recv(length - len(data))
        if not piece:
            raise ConnectionError("the helper is gone")
        data += piece
    return data


def main() -> None:
    """Serves one caller until it hangs up; then this kernel ends, and its spawner with it."""
    with open(sys.argv[2], encoding="utf-8") as file:
        home = json.load(file)["home"]
    hostile = Hostile(socket.socket(fileno=int(sys.argv[1])))
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{home}/run/hostile.sock")
    door.listen(1)
    sys.stdout.write("hostile serving at run/hostile.sock\n")
    sys.stdout.flush()
    caller, _ = door.accept()
    with caller, caller.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            order = json.loads(line)
            try:
                answer = hostile.acts[order["do"]](order)
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                answer = {"fault": repr(error)}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
