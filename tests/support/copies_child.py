"""A kernel process for the kills of copies: real store, engine, driver and files of copies; its spawner is the test's.

It does one verb, and dies by SIGKILL at the n-th step of it: before and after each commit, each request to the spawner, and each
piece of work on a file of a copy.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringfence.host.drivers.bubblewrap import Bubblewrap
from ringfence.host.drivers.files import FilesClient
from ringfence.host.drivers.shelf import FileShelf
from ringfence.host.drivers.spawner_client import Answer, SpawnerClient
from ringfence.host.engine.engine import Engine
from ringfence.host.engine.life.archives import FULL
from ringfence.host.engine.parts import Parts
from ringfence.host.kernel.boxes import Limits, Rest
from ringfence.host.kernel.errors import NotFound, RingfenceError
from ringfence.host.kernel.failpoints import Again, Point
from ringfence.host.kernel.life.copies import How, Kept
from ringfence.host.models.scripted import Scripted
from ringfence.host.store.store import SqlStore, open_store
from ringfence.spawner import protocol
from tests.support.engine_rig import CONFIG, OPERATOR, RealClock
from tests.support.fakes import FakeBroker, World
from tests.support.kernel_process import NumbersOf
from tests.support.seals import seals

USER = "ann"
LIMITS = Limits(disk=64 << 20, inodes=4096)


class Steps:
    """kernel.failpoints.Failpoints, and more of them: counts while it is on, and ends the process at one."""

    def __init__(self, at: str) -> None:
        """`at`: a number, or the name of a step."""
        self._at, self.on, self.count = at, False, 0

    def step(self, what: str) -> None:
        if self.on:
            self.count += 1
            if self._at in (str(self.count), what):
                sys.stdout.write(json.dumps({"died": what}) + "\n")
                sys.stdout.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    def reach(self, point: Point, detail: str = "") -> None:
        self.step(point.value)

    async def areach(self, point: Point, detail: str = "", again: Again | None = None) -> None:
        self.step(point.value)


class Counted(SpawnerClient):
    def __init__(self, fd: int, steps: Steps) -> None:
        super().__init__(fd)
        self._steps = steps

    async def ask(self, request: protocol.Request) -> Answer:
        self._steps.step(f"before {request.op}")
        answer = await super().ask(request)
        self._steps.step(f"after {request.op}")
        return answer

    async def quiet(self) -> None:
        """Until everything is answered: the test has the same socket behind us."""
        while self._waiting:
            await asyncio.sleep(0.001)


class CountedShelf(FileShelf):
    def __init__(self, home: Path, steps: Steps) -> None:
        super().__init__(home)
        self._steps = steps

    async def keep(self, copy: str, data: AsyncIterator[bytes]) -> Kept:
        async def pieces() -> AsyncIterator[bytes]:
            async for piece in data:
                self._steps.step("a piece of a file")
                yield piece

        kept = await super().keep(copy, pieces())
        self._steps.step("after a file")
        return kept

    async def drop(self, copy: str) -> None:
        self._steps.step("before a file goes")
        await super().drop(copy)


async def work(home: Path, fd: int, verb: str, at: str, serial: int) -> dict[str, Any]:
    steps = Steps(at)
    ids = NumbersOf(serial)
    address = f"sqlite:///{home}/kernel.db"
    store = await open_store(
        address, RealClock(), ids, installation=CONFIG.installation, failpoints=steps, seals=seals(home)
    )
    client = Counted(fd, steps)
    driver = Bubblewrap(home, client, FilesClient)
    broker = FakeBroker(World(home / "world"))
    config = replace(CONFIG, limits=LIMITS)
    parts = Parts(store, driver, broker, {"scripted": Scripted()}, RealClock(), ids, config, ids.new("krn"))
    engine = Engine(replace(parts, shelf=CountedShelf(home, steps)))
    await _made(store)
    await engine.start()
    try:
        with suppress(RingfenceError):
            await engine.people.user_add(OPERATOR, "default", USER)
        steps.on = True
        try:
            said = await VERBS[verb](engine)
        finally:
            steps.on = False
        return {"steps": steps.count, "said": said, **await _state(engine, store)}
    finally:
        await engine.stop()
        await store.close()
        await client.quiet()
        client.close()


async def _made(store: SqlStore) -> None:
    try:
        await store.tenants.get("default")
    except NotFound:
        await store.tenants.add("default")


async def _state(engine: Engine, store: SqlStore) -> dict[str, Any]:
    (box,) = await store.boxes.all()
    rows = await store.snapshots.here()
    return {
        "box": box.id,
        "uid": box.uid,
        "rest": box.rest.value,
        "verb": box.verb,
        "copies": {row.id: row.kind.value for row in rows},
        "unfinished": [row.id for row in rows if not row.whole],
    }


async def _snapshot(engine: Engine) -> str:
    return (await engine.copies.snapshot(OPERATOR, "default", USER)).snapshot.id


async def _restore(engine: Engine) -> str:
    copies = await engine.copies.list(OPERATOR, "default", USER)
    wanted = next(copy.id for copy in copies if copy.kind.value == "asked")
    changed = await engine.copies.restore(OPERATOR, "default", USER, wanted, How())
    return changed.before.id if changed.before is not None else ""


async def _reset(engine: Engine) -> str:
    changed = await engine.copies.reset(OPERATOR, "default", USER, How())
    return changed.before.id if changed.before is not None else ""


async def _archive(engine: Engine) -> str:
    return (await engine.copies.archive(OPERATOR, "default", USER, How())).observed


async def _unarchive(engine: Engine) -> str:
    """As the next start does; so does whoever wants the files."""
    return str(len(await engine.files.list(OPERATOR, "default", USER, b".", None, 100)))


async def _look(engine: Engine) -> str:
    """Until what was packed is emptied, which the server does by itself."""
    while any(
        (box.made_of or {}).get(FULL) and box.rest is Rest.ARCHIVED for box in await engine._parts.store.boxes.all()
    ):
        await asyncio.sleep(0.01)
    return ""


VERBS: dict[str, Callable[[Engine], Awaitable[str]]] = {
    "snapshot": _snapshot,
    "restore": _restore,
    "reset": _reset,
    "archive": _archive,
    "unarchive": _unarchive,
    "look": _look,
}


if __name__ == "__main__":
    home, fd, verb, at, serial = sys.argv[1:]
    print(json.dumps(asyncio.run(work(Path(home), int(fd), verb, at, int(serial)))))
