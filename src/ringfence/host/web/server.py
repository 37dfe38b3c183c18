"""Serves the two applications: the operator socket and TCP. Installs no signal handler: app.py owns the process."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from ringfence.host.kernel.errors import Conflict, Unavailable
from ringfence.host.web.app import make_app
from ringfence.host.web.denial import DenyingProtocol
from ringfence.host.web.exec_stream import WINDOW
from ringfence.host.web.guards import EXEC_LIMIT
from ringfence.host.web.peer import Admission, IdentifyingProtocol
from ringfence.host.web.ports import Engine, WebSettings

SOCKET_MODE = 0o660  # the server's account and its group
BACKLOG = 512
HEADER_LIMIT = 64 << 10  # a path of 4096 bytes is 12 KiB when each is percent-encoded, and may appear with a second one
KEEP_ALIVE_SECONDS = 30
DRAIN_SECONDS = 3  # what is under way when the server stops gets this long
_log = logging.getLogger("ringfence.web")


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Listening:
    socket: Path
    tcp: tuple[str, int] | None  # as bound: with the real port


async def serve(engine: Engine, settings: WebSettings, ready: Callable[[], Awaitable[None] | None]) -> None:
    """Serves until it is cancelled; then streams end, requests under way get DRAIN_SECONDS, the socket goes.

    `ready` is called once both listen. Conflict: another server answers on the socket. Unavailable: a port is taken.
    """
    own = os.getegid()
    groups = frozenset({own}) if settings.mode == "root" and own != 0 else frozenset[int]()
    async with listening(engine, Path(settings.socket), settings.listen, Admission(groups=groups), settings.domain):
        told = ready()
        if inspect.isawaitable(told):
            await told
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def listening(
    engine: Engine, path: Path, tcp: tuple[str, int] | None, admission: Admission | None = None, domain: str = ""
) -> AsyncIterator[Listening]:
    """Both servers, accepting when it is entered and gone when it is left. Port 0: any free one."""
    sockets = [_bind_unix(path)]
    operators = make_app(engine, operator=True, admission=admission)
    served = [(operators, sockets[0])]
    bound: tuple[str, int] | None = None
    try:
        if tcp is not None:
            sockets.append(_bind_tcp(*tcp))
            bound = (tcp[0], int(sockets[1].getsockname()[1]))
            served.append((make_app(engine, operator=False, hosts={tcp[0], domain} - {""}), sockets[1]))
        async with _running(served):
            yield Listening(path, bound)
    finally:
        _close(sockets, path)


def _close(sockets: list[socket.socket], path: Path) -> None:
    for sock in sockets:
        sock.close()
    path.unlink(missing_ok=True)


@asynccontextmanager
async def _running(served: list[tuple[FastAPI, socket.socket]]) -> AsyncIterator[None]:
    servers = [_Server(_config(app)) for app, _ in served]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(server.serve(sockets=[sock])) for server, (_, sock) in zip(servers, served, strict=True)
        ]
        try:
            for server in servers:
                await server.listens.wait()
            yield
        finally:
            for app, _ in served:
                app.state.stopping.set()
            for server in servers:
                server.should_exit = True
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS + 2)  # a cancelled group would cut them off at once
            await _hang_up(servers)


async def _hang_up(servers: list[_Server]) -> None:
    """Ends what a peer that reads nothing, or is gone, keeps open behind unsent bytes."""
    for server in servers:
        for connection in list(server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
    await asyncio.sleep(0)  # the loop calls connection_lost, which closes the socket, at its next turn


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=IdentifyingProtocol,
        ws=DenyingProtocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEADER_LIMIT,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        ws_max_size=max(EXEC_LIMIT, WINDOW),
        ws_per_message_deflate=False,
        # No pings: a reader that pauses (`exec U -- cmd | less`) answers none and is alive all the same. TCP keep-alive
        # finds peers that vanished; on a unix socket the kernel tells.
        ws_ping_interval=None,
        ws_ping_timeout=None,
    )


def _bind_unix(path: Path) -> socket.socket:
    """Conflict when somebody answers there; a left-over socket of a dead server is replaced."""
    if len(os.fsencode(path)) > 107:  # sun_path has 108 bytes with its NUL (man 7 unix)
        raise Unavailable(
            f"the socket's path is {len(os.fsencode(path))} bytes long; the limit is 107: {path}",
            remedy="choose a shorter RINGFENCE_HOME",
        )
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(os.fspath(path))
        path.chmod(SOCKET_MODE)  # before listen(): nobody can connect until then
    except OSError as error:
        sock.close()
        raise Unavailable(f"cannot make the socket {path}: {error.strerror}", remedy="ringfence doctor") from error
    return sock


def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Conflict(f"{path} exists and is no socket", remedy=f"move it away: mv {path} {path}.old")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            _log.info("removing the socket of a server that is gone: %s", path)
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise Conflict(f"another server answers at {path}", remedy="stop it first, or choose another RINGFENCE_HOME")


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio turns Nagle's algorithm off for such sockets only, and an answer or an event in two
    # small writes would wait 40 ms for the client's delayed acknowledgement.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy="choose another address in ringfence.toml, or: ringfence serve --listen 127.0.0.1:PORT",
        ) from error
    return sock
