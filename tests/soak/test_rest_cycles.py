"""The proof that a rest loses nothing: pause, resume, stop, start, over and over, with kills before, within and after each of them.

`make soak` only; a few cycles of the same kind are in tests/acceptance/test_rest.py. RINGFENCE_SOAK_SEED, printed, does the same
again, but for where within a verb a kill falls.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from ringfence.client.errors import ApiError
from ringfence.client.sync import SyncClient
from tests.acceptance.test_rest import FILES, NEVER
from tests.support.installation import Installation, installation, of_uid
from tests.support.soaking import SEED, share

pytestmark = pytest.mark.soak
CYCLES = 1000
PHASES = ("pause", "resume", "stop", "start")
KILLS = ("kernel", "spawner", "both", "box")
KILLED = 0.15  # of phases: of 4,000 some 600, a fourth of them of each kind
WITHIN_SECONDS = 0.1  # from a verb's begin to a kill within it; a stop takes 30 ms on an idle host
# Modes, times, links and content of all but what each cycle adds to.
DIGEST = (
    "cd / && find home/user workspace ! -name acked -printf '%p %y %m %s %T@ %l\\n' | LC_ALL=C sort | sha256sum; "
    "find home/user workspace -type f ! -name acked -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
)
ACKED = "/workspace/acked"
REFUSED = ("conflict", "unavailable", "box_lost", "failed")


@dataclass
class Cycles:
    ours: Installation
    chance: random.Random
    client: SyncClient
    seen: Counter[str] = field(default_factory=Counter)

    def one(self) -> None:
        for phase in PHASES:
            if self.chance.random() >= KILLED:
                self._verb(phase)
                continue
            kill, when = self.chance.choice(KILLS), self.chance.choice(("before", "within", "after"))
            self.seen[f"{kill} killed {when} {phase}"] += 1
            if when == "within":
                verb = threading.Thread(target=self._cut, args=(phase,))
                verb.start()
                time.sleep(self.chance.random() * WITHIN_SECONDS)  # wherever it falls, nothing may be lost
                self._kill(kill)
                verb.join()
                self._up()
                continue
            if when == "before":
                self._killed(kill)
            self._verb(phase)
            if when == "after":
                self._killed(kill)

    def _verb(self, verb: str) -> None:
        try:
            getattr(self.client, f"{verb}_box")("ann")
            self.seen[verb] += 1
        except ApiError as error:  # in words: what is not running cannot be paused
            assert error.code in ("conflict", "unavailable", "box_lost"), error
            self.seen[f"{verb} refused"] += 1

    def _cut(self, verb: str) -> None:
        """By a client of its own: whatever it is told, it may be told nothing."""
        with contextlib.suppress(ApiError), SyncClient(socket=self.ours.socket) as client:
            getattr(client, f"{verb}_box")("ann")

    def _killed(self, what: str) -> None:
        self._kill(what)
        self._up()

    def _kill(self, what: str) -> None:
        server = self.ours.server
        assert server is not None
        if what == "box":
            self._kill_pid1()
        elif what == "spawner":
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
        else:
            self.ours.kill(kernel_only=what == "kernel")

    def _kill_pid1(self) -> None:
        for pid, status in of_uid(self.client.box("ann")["uid"]).items():
            if any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status.splitlines()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _up(self) -> None:
        server = self.ours.server
        assert server is not None
        if server.poll() is None:
            return
        if server.stdout is not None:
            server.stdout.close()
        began = time.monotonic()
        while True:  # of a spawner that was killed alone the kernel ends itself, and lets go of the state then
            self.ours.start(wait=False)
            with contextlib.suppress(Exception):
                self.ours.await_line(" serving at ")
                break
            assert time.monotonic() - began < 120, self.ours.log.read_text()[-4000:]
        self.client.close()
        self.client = SyncClient(socket=self.ours.socket)

    def told(self, script: str) -> str:
        """What a command says. One that meets the end of its box is told so once, and is done again."""
        for _ in range(2):
            done = self.client.exec("ann", ["sh", "-c", script], timeout=120)
            if done["reason"] != "box_lost":
                break
        assert (done["reason"], done["exit_code"]) == ("exit", 0), done
        return str(done["stdout"])


def test_a_thousand_cycles_lose_nothing() -> None:
    cycles, began = share(CYCLES), time.monotonic()
    with installation(settings=NEVER) as ours:
        ours.ok("user", "add", "ann")
        with SyncClient(socket=ours.socket) as first:
            doing = Cycles(ours, random.Random(SEED), first)
            doing.told(FILES)
            doing.told(f": > {ACKED}")
            before = doing.told(DIGEST)
            assert before.count("-") >= 2
            for number in range(cycles):
                doing.one()
                assert doing.told(DIGEST) == before, f"cycle {number} of seed {SEED}"
                doing.told(f"echo {number} >> {ACKED} && sync {ACKED}")
                assert doing.told(f"cat {ACKED}").split() == [str(each) for each in range(number + 1)]
            doing.client.stop_box("ann")
            box = doing.client.box("ann")
            assert (box["observed"], of_uid(box["uid"])) == ("stopped", {})
            assert ours.ok("sweep", "--dry-run", "--json").json()["found"] == []
            doing.client.close()
    print(f"seed {SEED}: {cycles} cycles in {time.monotonic() - began:.0f} s; {dict(sorted(doing.seen.items()))}")
