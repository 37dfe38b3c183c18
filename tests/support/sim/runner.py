"""Seeds, one after the other, each in a child of a process that has everything compiled.

Run as `python -m tests.support.sim.runner FAULTS FIRST COUNT [BREAK]`: a line of JSON for each seed. It wants PYTHONHASHSEED=0, so that
no set of texts has an order of its own. A child is thrown away as it is: what a dead kernel left pending is never cleaned up.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ringfence.host.kernel.people import Actor, User, UserKind
from ringfence.host.store.store import open_store
from tests.support import kill_breaks
from tests.support.clocks import HandClock
from tests.support.engine_rig import CONFIG
from tests.support.kernel_process import NumbersOf
from tests.support.sim import breaks
from tests.support.sim.chance import Chance
from tests.support.sim.kernel import FILE, Files
from tests.support.sim.loop import VirtualLoop
from tests.support.sim.story import Alarm, Story, Verdict

ROOT = Path(__file__).parents[3]
_WATCHED = {
    "steps": ("INSERT", "UPDATE"),
    "checkpoints": ("INSERT", "UPDATE"),
    "effects": ("INSERT", "UPDATE"),
}


async def _template() -> dict[str, User]:
    """In the working directory: two people and a thread of both."""
    store = await open_store(
        f"sqlite:///{Path.cwd() / FILE}", HandClock(), NumbersOf(900), installation=CONFIG.installation
    )
    tenant = await store.tenants.add("default")
    people = {name: await store.users.add("default", name, UserKind.PERSON, None) for name in ("alice", "bob")}
    await store.threads.add(tenant.id, "#team", [user.id for user in people.values()], False)
    await store.close()
    return people


def _watch() -> None:
    with sqlite3.connect(FILE) as connection:
        for table, acts in _WATCHED.items():
            for act in acts:
                connection.execute(
                    f"CREATE TRIGGER sim_{table}_{act} AFTER {act} ON {table} BEGIN "
                    f"SELECT sim_wrote('{table}', NEW.run, epoch) FROM runs WHERE id = NEW.run; END"
                )
        connection.execute(
            "CREATE TRIGGER sim_runs AFTER UPDATE ON runs WHEN NEW.cancel_requested = OLD.cancel_requested "
            "AND NEW.epoch = OLD.epoch BEGIN SELECT sim_wrote('runs', NEW.id, NEW.epoch); END"
        )
    connection.close()


def played(seed: int, faults: int, people: dict[str, User], files: Files) -> Verdict:
    """In the working directory, which has a fresh copy of the database."""
    chance = Chance(seed)
    loop = VirtualLoop(lambda: chance.between(0.0001, 0.003))
    chance.time = loop.time
    asyncio.set_event_loop(loop)
    story = Story(seed, faults, loop, chance, Path.cwd(), files)
    files.blame(story.wrote)
    files.forget()
    log = logging.getLogger("ringfence")
    log.propagate, log.handlers = False, [Alarm(story)]

    def unhandled(_: object, context: dict[str, Any]) -> None:
        story.wrong.append(f"unhandled: {context.get('message')}: {context.get('exception')!r}")

    loop.set_exception_handler(unhandled)
    actors = {name: Actor(user=user, operator=False, via="token:t") for name, user in people.items()}
    try:
        return loop.run_until_complete(story.play(actors))
    except Exception:  # of the simulation itself, or nothing that would ever happen: its trace says how it came to that
        return story.broken_off(traceback.format_exc()[-4000:])


class Runner:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        template = folder / "template"
        template.mkdir()
        os.chdir(template)
        self._people = asyncio.run(_template())
        _watch()
        self._template, self._files = template / FILE, Files()
        self._in_child(0, 1, folder / "warm", fork=False)  # compiles every statement that a start needs

    def seed(self, seed: int, faults: int) -> dict[str, Any]:
        folder = self._folder / f"seed{seed}"
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._child(seed, faults, folder, writing)
        os.close(writing)
        with open(reading, "rb") as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        shutil.rmtree(folder, ignore_errors=True)
        found: dict[str, Any] = json.loads(said)
        return found

    def _child(self, seed: int, faults: int, folder: Path, writing: int) -> None:
        gc.disable()
        try:
            said = self._in_child(seed, faults, folder)
        except BaseException:
            said = {
                "seed": seed,
                "faults": faults,
                "digest": "",
                "wrong": [traceback.format_exc()[-4000:]],
                "trace": [],
            }
        with open(writing, "wb") as pipe:
            pipe.write(json.dumps(said).encode())
        os._exit(0)

    def _in_child(self, seed: int, faults: int, folder: Path, fork: bool = True) -> dict[str, Any]:
        folder.mkdir()
        shutil.copy(self._template, folder / FILE)
        os.chdir(folder)
        return asdict(played(seed, faults, self._people, self._files))


def seeds(faults: int, first: int, count: int, broken: str = "") -> Iterator[dict[str, Any]]:
    """The verdicts, as they come."""
    words = [sys.executable, "-m", "tests.support.sim.runner", str(faults), str(first), str(count), broken]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
            if process.wait() != 0:
                raise RuntimeError(f"the runner of {count} seeds from {first} ended with {process.returncode}")
        finally:
            process.terminate()


def main() -> None:
    faults, first, count = map(int, sys.argv[1:4])
    broken = sys.argv[4] if len(sys.argv) > 4 else ""
    {**kill_breaks.BREAKS, **breaks.BREAKS}[broken]()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # whoever has seen enough: the folder goes as well
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        gc.disable()  # what the first run left pending stays so
        runner = Runner(Path(folder))
        gc.freeze()
        for seed in range(first, first + count):
            sys.stdout.write(json.dumps(runner.seed(seed, faults)) + "\n")
            sys.stdout.flush()
        os.chdir(ROOT)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
