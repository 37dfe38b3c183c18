"""The measurements that need the engine in the measuring process: engine call -> broker -> guest -> wait status, no HTTP.

A process of its own: it opens the host as the spawner does, forks the spawner's loop, and is the kernel at the other end.
Prints one JSON object. Measures only; must never run on a state that a server uses (the spawner's lock sees to it).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.spawner import config as spawner_config
from ringfence.spawner import main as spawner
from ringfence.spawner.children import Children
from ringfence.spawner.config import Config

if TYPE_CHECKING:  # the spawner's loop is forked before these are loaded: its forks must be as small as a server's
    from ringfence.host.engine.commands import ExecRequest
    from ringfence.host.engine.engine import Engine
    from ringfence.host.kernel.people import Actor
    from ringfence.host.kernel.settings import Settings

TENANT = "default"
WARM_ROUNDS, WARM_BLOCK = 25, 16  # 400 of each, in turns: what slows the host slows both
FIRST_ROUNDS = 21
START_ROUNDS = 41
PLAIN = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev"


def milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def spawned(argv: list[str]) -> None:
    """posix_spawn and wait: the least that any way of running a program costs."""
    pid = os.posix_spawn(argv[0], argv, {"PATH": "/usr/bin:/bin"})
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{argv} ended with {status}")


def request() -> ExecRequest:
    from ringfence.host.engine.commands import ExecRequest

    return ExecRequest(argv=[b"/bin/true"], env={}, cwd=None, timeout=None, stdin="null", output="stream")


async def command(engine: Engine, actor: Actor, user: str) -> None:
    started = await engine.commands.run(actor, TENANT, user, request())
    outcome = await started.outcome()
    if outcome.code != 0:
        raise RuntimeError(f"the command ended with {outcome}")


async def timed(engine: Engine, actor: Actor, user: str) -> float:
    begun = time.perf_counter()
    await command(engine, actor, user)
    return (time.perf_counter() - begun) * 1e3


async def person(engine: Engine, operator: Actor, name: str) -> Actor:
    """A new user as they come by token: what an operator does in somebody's box is written to the audit first."""
    await engine.people.user_add(operator, TENANT, name)
    _, secret = await engine.people.token_add(operator, TENANT, name, ["user"], "", None)
    return await engine.people.authenticate(secret)


async def warm(engine: Engine, operator: Actor) -> dict[str, list[float]]:
    actor = await person(engine, operator, "warm")
    ours, floor = [], []
    for number in range(WARM_ROUNDS + 1):
        block = [await timed(engine, actor, "warm") for _ in range(WARM_BLOCK)]
        bare = [milliseconds(lambda: spawned(["/bin/true"])) for _ in range(WARM_BLOCK)]
        if number:  # the first round warms both
            ours += block
            floor += bare
    return {"ours": ours, "floor": floor}


async def first(engine: Engine, operator: Actor, config: Config) -> dict[str, list[float]]:
    """The first command of a provisioned user, spaced: starts that follow at once are up to 3 times cheaper."""
    bare = [config.bwrap, *PLAIN.split(), "--unshare-all", config.python, "-I", "-S", "-c", "pass"]
    ours, floor = [], []
    for number in range(FIRST_ROUNDS + 1):
        user = f"first{number}"
        actor = await person(engine, operator, user)
        await asyncio.sleep(0.3)
        took = await timed(engine, actor, user)
        await asyncio.sleep(0.3)
        plain = milliseconds(lambda: spawned(bare))
        if number:
            ours.append(took)
            floor.append(plain)
        await engine.boxes.stop(actor, TENANT, user)
    return {"ours": ours, "floor": floor}


def guest_start(config: Config) -> dict[str, list[float]]:
    """From exec of the interpreter until the guest hears a host, outside any jail, against an interpreter
    that does nothing. Listening alone would say little: the guest does that before it loads itself."""
    guest = f"{config.runtime}/guest/init.pyc"
    ours, floor = [], []
    for number in range(START_ROUNDS):
        took = _until_it_answers(config.python, guest)
        bare = milliseconds(lambda: spawned([config.python, "-I", "-S", "-c", "pass"]))
        if number:
            ours.append(took)
            floor.append(bare)
    return {"ours": ours, "floor": floor}


def _until_it_answers(python: str, guest: str) -> float:
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as caller:
        door.bind("")  # an abstract name of the kernel's choice (unix(7))
        name = door.getsockname()
        os.set_inheritable(door.fileno(), True)
        begun = time.perf_counter()
        argv = [python, "-I", "-S", guest, str(door.fileno()), "-", "0" * 64]
        pid = os.posix_spawn(python, argv, {"PATH": "/usr/bin:/bin"}, setpgroup=0)
        try:
            _connect(caller, name)
            caller.shutdown(socket.SHUT_WR)  # a hello would make it look at every process of this host
            caller.recv(4096)  # it has ended the wire in turn
            return (time.perf_counter() - begun) * 1e3
        finally:
            os.killpg(pid, 9)
            os.waitpid(pid, 0)


def _connect(caller: socket.socket, name: str | bytes) -> None:
    while True:
        try:
            caller.connect(name)
            return
        except ConnectionRefusedError:
            time.sleep(0.0002)


async def measure(fd: int, config: Config, settings: Settings) -> dict[str, object]:
    from ringfence.host.app import running
    from ringfence.host.drivers.spawner_client import SpawnerClient

    client = SpawnerClient(fd)
    try:
        async with running(settings, client) as engine:
            operator = engine.people.operator(os.getuid(), os.getgid(), os.getpid())
            found: dict[str, object] = {
                "warm": await warm(engine, operator),
                "first": await first(engine, operator, config),
            }
            await engine.boxes.stop(operator, TENANT, "warm")
            return found | {"guest": guest_start(config)}
    finally:
        client.close()


def main(measure: Callable[[int, Config, Settings], Coroutine[Any, Any, dict[str, object]]] = measure) -> None:
    """Runs it over a spawner's loop of its own, for the installation whose configuration the first argument names."""
    config = spawner_config.load(sys.argv[1])
    host, _lock = spawner.open_host(config)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        theirs.close()
        spawner.run(host, ours, Children())
        os._exit(0)
    ours.close()
    from ringfence.host.kernel.settings import Settings

    settings = Settings.from_json(json.loads(Path(config.kernel_config).read_text()))
    print(json.dumps(asyncio.run(measure(theirs.detach(), config, settings))))  # noqa: T201
    os.waitpid(pid, 0)
    host.cgroups.leave()


if __name__ == "__main__":
    main()
