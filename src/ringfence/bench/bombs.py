"""A server under attack: a fork bomb, a memory bomb, a disk filler and four spinners, each in another user's box, all at
once, and a watcher outside that asks it how it is. What the acceptance tests and `bench walls` stand on."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ringfence.bench.figures import Series
from ringfence.bench.throwaway import CommandFailed, Installation

BOMBS: Mapping[str, str] = {
    "forker": "python3 -c 'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass'",
    "eater": "while :; do python3 -c 'x = []\nwhile True: x.append(bytearray(16 << 20))'; done",
    "filler": "while :; do head -c 1G /dev/zero > /workspace/big; done",
    "spinner": "for n in 1 2 3 4; do (while :; do :; done) & done; wait",
}
SETTINGS = '[limits]\nmemory = "256MiB"\nfsize = "200MiB"\n'
FORKED = 300  # processes of the fork bomb that are enough to begin; a box of these settings holds some 480
READY_SECONDS = 60.0
EVERY = 0.05  # seconds between two questions of the watcher


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


@dataclass
class Watcher:
    """`path`: the server's operator socket. One connection a question, as a monitor outside would have."""

    path: str
    took: list[float] = field(default_factory=list)  # ms

    def ask(self) -> None:
        """CommandFailed: no answer in 30 s, or another than 200."""
        begun = time.perf_counter()
        connection = _Unix(self.path)
        try:
            connection.request("GET", "/v1/health")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise CommandFailed(f"the server did not answer its health probe: {error!r}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise CommandFailed(f"the health probe was answered with {answer.status}")
        self.took.append((time.perf_counter() - begun) * 1e3)

    def run(self, seconds: float) -> Series:
        """What `seconds` of asking took."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.ask()
            time.sleep(EVERY)
        return Series(tuple(self.took))


def people(made: Installation) -> None:
    """The four users, each with a running box."""
    for user in BOMBS:
        made.ok("user", "add", user)
        made.ok("exec", user, "--", "true")


@contextlib.contextmanager
def at_war(made: Installation) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The commands that hold the bombs, once the fork bomb has filled its box. CommandFailed: it does not."""
    wars = [made.popen("exec", user, "--", "sh", "-c", script) for user, script in BOMBS.items()]
    try:
        uid = made.box("forker")["uid"]
        until = time.monotonic() + READY_SECONDS
        while processes_of(uid) <= FORKED:
            if time.monotonic() > until:
                raise CommandFailed(f"the fork bomb has {processes_of(uid)} processes after {READY_SECONDS:.0f} s")
            time.sleep(0.05)
        yield wars
    finally:
        for user in BOMBS:
            made.run("box", "stop", user)
        for war in wars:
            war.kill()
            war.communicate()


def processes_of(uid: int) -> int:
    """How many processes have this host id."""
    count = 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            count += entry.name.isdigit() and os.stat(entry).st_uid == uid
    return count
