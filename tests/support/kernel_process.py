"""A kernel process of its own over a shared database: the real engine and store, boxes without walls.

Run as `python -m tests.support.kernel_process URL INSTALLATION FOLDER NUMBER`; says `ready`, and works until it is killed or
its standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringfence.host.kernel.boxes import Limits
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.images import HOST
from ringfence.host.store.store import open_store
from tests.support.engine_rig import CONFIG, Numbers, RealClock, Rig
from tests.support.fake_driver import FakeDriver
from tests.support.fakes import World
from tests.support.seals import seals

ROOT = Path(__file__).parents[2]


class NumbersOf(Numbers):
    """Of one of several processes: 2**20 ids for each."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self._last = process << 20


class AnywhereDriver(FakeDriver):
    """Makes a box that another process of the installation has provisioned: these boxes are folders."""

    async def start(self, box: BoxId, limits: Limits, image: str = HOST) -> dict[str, Any]:
        await self.provision(box, None, limits)  # type: ignore[arg-type]  # a folder has no kind
        return await super().start(box, limits, image)


class ProcessRig(Rig):
    def __init__(self, number: int, *parts: Any) -> None:
        self._number = number
        super().__init__(*parts)

    def _made(self) -> Any:
        self.ids = NumbersOf(self._number)
        self.driver = AnywhereDriver(self.world)
        return super()._made()


async def main(url: str, installation: str, folder: str, number: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    world = World(Path(folder) / "boxes")
    ids = NumbersOf(int(number) + 512)
    store = await open_store(url, RealClock(), ids, installation=installation, seals=seals(Path(folder)))
    made = ProcessRig(int(number), store, world, replace(CONFIG, installation=installation, max_runs=8))
    await made.engine.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await made.engine.stop()
    await world.close()
    await store.close()


@dataclass(frozen=True)
class Kernel:
    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def _clear(home: Path) -> None:
    """Commands outlive the kernel, as they do in a real box; they are told by where they work."""
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if place.readlink().is_relative_to(home):
                os.kill(int(place.parent.name), signal.SIGKILL)


@contextmanager
def kernel(url: str, folder: Path, number: int, installation: str = "") -> Iterator[Kernel]:
    """Ready to work. Killed at the end, if it is still there."""
    home = folder / f"kernel{number}"
    home.mkdir(exist_ok=True)
    log = folder / f"kernel{number}.log"
    words = [sys.executable, "-m", "tests.support.kernel_process", url, installation, str(home), str(number)]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    assert process.stdout is not None and process.stdin is not None
    try:
        said = process.stdout.readline()
        assert said == b"ready\n", log.read_text()
        yield Kernel(process, log)
    finally:
        process.kill()
        process.wait()
        _clear(home)
        process.stdout.close()
        process.stdin.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
