"""The real web servers (unix socket and TCP) over the engine double, on a loop in a thread of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.client import Client
from ringfence.host.kernel.people import Actor
from ringfence.host.web.peer import Admission
from ringfence.host.web.server import Listening, listening
from tests.support.double.commands import Command
from tests.support.double.engine import Engine

RINGFENCE = str(Path(sys.executable).parent / "ringfence")
OPERATOR = Actor(None, True, "test")


@dataclass
class Web:
    home: Path
    engine: Engine
    loop: asyncio.AbstractEventLoop
    listening: Listening

    @property
    def socket(self) -> str:
        return str(self.listening.socket)

    @property
    def url(self) -> str:
        assert self.listening.tcp is not None
        return "http://{}:{}".format(*self.listening.tcp)

    def does(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def user(self, name: str, tenant: str = "default") -> str:
        self.does(self.engine.people.user_add(OPERATOR, tenant, name))
        return name

    def token(self, user: str, *scopes: str, ttl: float | None = None, tenant: str = "default") -> str:
        made = self.engine.people.token_add(OPERATOR, tenant, user, list(scopes) or ["user"], "", ttl)
        secret: str = self.does(made)[1]
        return secret

    def client(self, **options: Any) -> Client:
        return Client(socket=self.socket, **options)

    def command(self) -> Command:
        """The last that was started."""
        return self.engine.commands.started[-1]

    # -- the command line

    @property
    def environment(self) -> dict[str, str]:
        """Without PYTHONUNBUFFERED: Python then counts a write that a closed pipe cut short as a whole one."""
        kept = os.environ.items()
        inherited = {k: v for k, v in kept if not k.startswith("RINGFENCE_") and k != "PYTHONUNBUFFERED"}
        return {**inherited, "RINGFENCE_HOME": str(self.home)}

    def popen(self, *words: str | bytes, **options: Any) -> subprocess.Popen[bytes]:
        defaults = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([RINGFENCE, *words], env=self.environment, **{**defaults, **options})

    def cli(
        self, *words: str | bytes, stdin: bytes | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        given: dict[str, Any] = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [RINGFENCE, *words],
            env={**self.environment, **(env or {})},
            capture_output=True,
            timeout=120,
            check=False,
            **given,
        )


@contextmanager
def web(admission: Admission | None = None) -> Iterator[Web]:
    """In a folder with a short name: the path of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        yield from _web(Path(folder), admission)


def _web(home: Path, admission: Admission | None) -> Iterator[Web]:
    """Home gets run/api.sock and files/."""
    (home / "run").mkdir()
    (home / "files").mkdir()
    engine = Engine(home / "files")
    loop = asyncio.new_event_loop()
    up: threading.Event = threading.Event()
    found: list[Listening] = []
    over: list[asyncio.Event] = []

    async def serve() -> None:
        over.append(asyncio.Event())
        async with listening(engine, home / "run" / "api.sock", ("127.0.0.1", 0), admission) as bound:
            found.append(bound)
            up.set()
            await over[0].wait()
        await engine.stop()
        await loop.shutdown_asyncgens()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert up.wait(30)
        yield Web(home, engine, loop, found[0])
    finally:
        loop.call_soon_threadsafe(over[0].set)
        thread.join(60)
        _finish(loop)


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=30))
    loop.close()
